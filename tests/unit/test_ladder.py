"""The ladder: its scale, its steps, its journal and its report; what fails is a row with its reason."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import kvplan.tune.ladder_run
import kvplan.tune.ladder_rungs
import kvplan.tune.setup
from kvplan.config.serving import ServingConfig
from kvplan.errors import FailureClass, InputError
from kvplan.planning import PlanRequest, plan_for
from kvplan.report.ladder import LadderReport
from kvplan.tune.journal import new_journal, read_journal
from kvplan.tune.ladder import (
    ARTICLES_KV_TOKENS,
    lengths_for,
    rungs_for,
    scale_for,
    scale_words,
    users_for,
)
from kvplan.tune.ladder_result import RungResult
from kvplan.tune.ladder_run import climb, climb_on, ladder_request, results_of, scale_of
from kvplan.tune.ladder_rungs import RungMaker, middle_of
from kvplan.tune.load_point import LoadPoint
from kvplan.tune.request import TuneRequest
from kvplan.tune.setup import prepare
from tests.tiny_model import make_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.engine.plan import LaunchPlan
    from kvplan.tune.ladder import Rung

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "fake_tunable_vllm.py"
DEMO = ROOT / "tests" / "data" / "runs" / "demo-cpu"


GENERATES = """
import json, sys
spec = json.load(open(sys.argv[1]))
step = 0.01 if spec["use_cache"] else 0.1
times = [step * (i + 1) for i in range(spec["output_len"])]
result = {"token_times_s": [times], "transformers": "5", "torch": "2"}
result |= {"dtype": "bfloat16", "attention": "sdpa"}
json.dump(result, open(spec["result_path"], "w"))
"""
FAILS = "raise SystemExit('ValueError: this model cannot be generated with')"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder, on a machine whose vLLM is 0.32.0 and whose lock is the test's own."""
    for module in (kvplan.tune.setup, kvplan.tune.ladder_run):
        monkeypatch.setattr(module, "installed_vllm", lambda: "0.32.0")
    monkeypatch.setenv("KVPLAN_LOCK_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return make_model(tmp_path / "model")


SMALL = {"target_concurrency": 2, "input_len": 64, "output_len": 8}


def request(model: Path, **plan: Any) -> TuneRequest:
    """A ladder on a small CPU card."""
    return TuneRequest(
        PlanRequest(
            model=str(model),
            device="cpu",
            gpu_memory_gib=0.25,
            serving=ServingConfig(enforce_eager=True),
            local_calibration=False,
            **plan,
        )
    )


# Scale


def test_on_a_gpu_it_is_the_articles_own_load() -> None:
    scale = scale_for("cuda", users_for("cuda", None), *lengths_for("cuda", None, None), None)
    start, fp8, prefix = rungs_for(scale, {})[2:5]

    assert scale.is_full
    assert dict(start.flags) == {
        "gpu_memory_utilization": 0.85,
        "max_model_len": 8192,
        "max_num_seqs": 32,
        "kv_cache_dtype": "auto",
        "enable_prefix_caching": False,
    }
    assert dict(fp8.flags) == {**start.flags, "kv_cache_dtype": "fp8", "max_num_seqs": 64}
    assert dict(prefix.flags) == {**fp8.flags, "enable_prefix_caching": True}
    assert [load.users for load in scale.loads()] == [32, 32, 64]
    # 1,000 of the 1,500 tokens, in whole blocks of 16.
    assert scale.loads()[1].workload.shared_prefix_tokens == 992
    assert scale_words(scale) == ("the articles' load: 32 users, 1,500 tokens in, 512 out",)


def test_the_articles_kv_cache_is_what_the_memory_model_still_says() -> None:
    answer = plan_for(
        PlanRequest(
            model="qwen2-7b",
            gpu="4090",
            vllm_version="0.32.0",
            serving=ServingConfig(gpu_memory_utilization=0.85, max_model_len=8192, max_num_seqs=32),
            local_calibration=False,
        )
    ).estimate()
    kv = answer.budget.line("kv_cache").bytes

    # 57,344 bytes a token: 2 x 28 layers x 4 KV heads x 128 x 2 bytes.
    assert kv.low / 57_344 <= ARTICLES_KV_TOKENS <= kv.high / 57_344


def test_on_a_cpu_everything_is_smaller_and_said_by_what_factor(model: Path) -> None:
    scale = scale_of(prepare(ladder_request(request(model))))

    # A quarter of the users, an eighth of the lengths: 1,500 / 8 = 187.5 -> 188, 512 / 8 = 64.
    assert (scale.users, scale.input_len, scale.output_len) == (8, 188, 64)
    # 2,012 / 252 = 7.98; 8,192 / 7.98 = 1,026 -> 8 x 128.
    assert scale.max_model_len == 1024
    # 80,224 x (8 x 252) / (32 x 2,012) = 2,511 tokens -> 79 blocks of 32; with the null block 80,
    # each of 32 tokens x 4 layers x 2 x 2 KV heads x 64 x 2 bytes.
    assert scale.kv_cache_tokens == 79 * 32
    assert scale.kv_cache_memory_bytes == 80 * 32 * 4 * 2 * 2 * 64 * 2
    assert scale.shared_tokens == 96  # 125 of 188 tokens, in blocks of 32
    words = " ".join(scale_words(scale))
    assert "8 users instead of 32 (1/4)" in words
    assert "188 + 64 tokens instead of 1,500 + 512 (1/7.98)" in words


def test_a_load_of_the_users_own_is_taken(model: Path) -> None:
    scale = scale_of(
        prepare(ladder_request(request(model, target_concurrency=2, input_len=64, output_len=8)))
    )

    assert (scale.users, scale.input_len, scale.output_len) == (2, 64, 8)
    with pytest.raises(InputError, match="--ladder compares one prompt length"):
        ladder_request(request(model, workload="chat"))


# Runs


class Maker(RungMaker):
    """Starts the fake in place of vLLM, and a few lines in place of Transformers."""

    moods: ClassVar[dict[str, str]] = {}
    generates: ClassVar[str] = GENERATES
    made: ClassVar[list[str]] = []

    def make(self, rung: Rung) -> RungResult:
        """Note what is made."""
        self.made.append(rung.name)
        self.generator = (sys.executable, "-c", self.generates)
        return super().make(rung)

    def _plan(self, rung: Rung, folder: Path) -> LaunchPlan:
        script = {"mood": self.moods.get(rung.name, "fine"), "itl_ms": 1, "ttft_ms": 2}
        return dataclasses.replace(
            super()._plan(rung, folder),
            program=(sys.executable, str(FAKE)),
            env={"FAKE_VLLM": json.dumps(script), "PYTHONPATH": str(FAKE.parent)},
            ready_timeout_s=20,
        )


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> type[Maker]:
    monkeypatch.setattr(kvplan.tune.ladder_run, "RungMaker", Maker)
    # The repeats have a test of their own; three of everything would take most of a minute a test.
    monkeypatch.setattr(kvplan.tune.ladder_rungs, "REPEATS", 1)
    Maker.moods, Maker.generates, Maker.made = {}, GENERATES, []
    return Maker


def tuned_run(runs: Path, model: Path) -> Path:
    """A finished tuning run of this model, from the demo's journal: only what identifies it is changed."""
    lines = [json.loads(line) for line in (DEMO / "journal.jsonl").read_text().splitlines()]
    ours = prepare(ladder_request(request(model, **SMALL))).header
    lines[0]["context"] = {**lines[0]["context"], **{k: ours["context"][k] for k in ("model", "machine")}}
    lines[0]["context"]["vllm_version"] = "0.32.0"
    lines[0]["problem"]["card_bytes"] = ours["problem"]["card_bytes"]
    for line in lines:
        if line["kind"] == "outcome":
            line["recommendation"]["settings"]["kv_cache_memory_bytes"] = 32 << 20  # of a smaller card
    folder = runs / "20260101-000000-demo"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def no_search(_request: TuneRequest, _folder: Path | None, _begins: Callable[[Path], None]) -> Path:
    raise AssertionError("a search was begun")


def quiet(_line: str) -> None:
    """Nobody listens."""


def climbed(model: Path, runs: Path) -> tuple[Path, LadderReport]:
    folder = climb(request(model, **SMALL), runs, quiet, tuned_run=None, search=no_search)
    return folder, LadderReport.of(read_journal(folder))


def test_every_step_is_made_once_with_the_newest_fitting_settings(
    model: Path, maker: type[Maker], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    tuned = tuned_run(runs, model)
    folder, report = climbed(model, runs)

    assert maker.made == ["no_cache", "cache", "start", "fp8", "prefix", "tuned"]
    assert report.met
    assert report.is_finished
    assert report.tuned is not None
    assert report.tuned.run == read_journal(tuned).run_id
    # A tenth of a second a token without a cache: 2 users x 8 tokens in 0.8 s are 20 tokens/s.
    no_cache = report.results["no_cache"].loads["own"]
    assert no_cache.output_throughput == pytest.approx(20)
    assert no_cache.p50_ttft_ms == pytest.approx(100)
    assert no_cache.p50_tpot_ms == pytest.approx(100)
    assert set(report.results["start"].loads) == {"own", "shared", "twice"}
    text = report.render("text")
    assert all(len(line) <= 100 for line in text.splitlines() if "vllm.entrypoints" not in line)
    assert "1 Transformers, use_cache=False" in text
    assert "6 tuned" in text
    record = json.loads(report.render("json"))
    assert [rung["name"] for rung in record["rungs"]] == maker.made
    assert "<table>" in report.render("html")
    assert "| 6 tuned |" in report.render("markdown")
    # Done is done.
    climb_on(folder, TuneRequest(PlanRequest()), runs, quiet, tuned_run=None, search=no_search)
    assert len(maker.made) == 6


def test_a_step_that_fails_is_a_row_with_its_reason_and_the_others_are_made(
    model: Path, maker: type[Maker], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    tuned_run(runs, model)
    maker.moods = {"fp8": "traceback_then_hangs", "prefix": "dies_on_request"}
    maker.generates = FAILS
    _, report = climbed(model, runs)

    assert not report.met
    assert report.is_finished
    failures = {name: result.failure for name, result in report.results.items()}
    assert failures["start"] is None
    assert failures["tuned"] is None
    assert failures["fp8"] is FailureClass.KV_TOO_SMALL
    assert failures["no_cache"] is FailureClass.UNKNOWN
    assert "this model cannot be generated with" in (report.results["no_cache"].evidence or "")
    assert failures["prefix"] is not None
    text = report.render("text")
    for step in ("1 Transformers", "2 Transformers", "3 vLLM", "4 + FP8", "5 + prefix", "6 tuned"):
        assert step in text
    assert "FAILED, AND WHY" in text
    assert "To serve at least one request" in text


def test_resuming_makes_what_is_missing_and_what_nothing_explained(
    model: Path, maker: type[Maker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    tuned_run(runs, model)
    maker.generates = FAILS
    make = Maker.make

    def interrupted(self: Maker, rung: Rung) -> RungResult:
        if rung.name == "fp8":
            raise KeyboardInterrupt
        return make(self, rung)

    monkeypatch.setattr(Maker, "make", interrupted)
    with pytest.raises(KeyboardInterrupt):
        climb(request(model, **SMALL), runs, quiet, tuned_run=None, search=no_search)
    folder = next(path for path in runs.iterdir() if not path.name.endswith("demo"))
    assert set(results_of(read_journal(folder))) == {"no_cache", "cache", "start"}
    assert not LadderReport.of(read_journal(folder)).is_finished

    monkeypatch.setattr(Maker, "make", make)
    maker.generates, maker.made = GENERATES, []
    climb_on(folder, TuneRequest(PlanRequest()), runs, quiet, tuned_run=None, search=no_search)

    # The two that failed for no known reason are asked again; the start, which worked, is not.
    assert maker.made == ["no_cache", "cache", "fp8", "prefix", "tuned"]
    assert LadderReport.of(read_journal(folder)).met


def test_without_a_fitting_run_the_search_is_made_and_gone_on_with(
    model: Path, maker: type[Maker], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    asked: list[tuple[Path | None, int | None]] = []

    def search(asked_for: TuneRequest, folder: Path | None, begins: Callable[[Path], None]) -> Path:
        asked.append((folder, asked_for.plan.target_concurrency))
        if folder is None:
            begins(tuned_run(runs, model))
            raise KeyboardInterrupt
        return folder

    with pytest.raises(KeyboardInterrupt):
        climb(request(model, **SMALL), runs, quiet, tuned_run=None, search=search)
    folder = next(path for path in runs.iterdir() if not path.name.endswith("demo"))
    climb_on(folder, TuneRequest(PlanRequest()), runs, quiet, tuned_run=None, search=search)

    assert asked == [(None, 2), (runs / "20260101-000000-demo", 2)]
    assert maker.made[-1] == "tuned"
    assert LadderReport.of(read_journal(folder)).met


def test_a_search_that_was_begun_can_be_left_for_a_run_that_is_named(
    model: Path, maker: type[Maker], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"

    def search(_request: TuneRequest, _folder: Path | None, begins: Callable[[Path], None]) -> Path:
        begins(runs / "20260101-000000-begun")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        climb(request(model, **SMALL), runs, quiet, tuned_run=None, search=search)
    folder = next(runs.iterdir())
    tuned = tuned_run(runs, model)
    climb_on(folder, TuneRequest(PlanRequest()), runs, quiet, tuned_run=str(tuned), search=no_search)

    report = LadderReport.of(read_journal(folder))
    assert maker.made[-1] == "tuned"
    assert report.met
    assert report.tuned is not None
    assert report.tuned.run == read_journal(tuned).run_id


def test_a_run_that_recommends_nothing_makes_a_row_not_an_error(
    model: Path, maker: type[Maker], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    tuned = tuned_run(runs, model)
    kept = (tuned / "journal.jsonl").read_text().splitlines()[0]
    (tuned / "journal.jsonl").write_text(kept + "\n")
    folder = climb(request(model, **SMALL), runs, quiet, tuned_run=str(tuned), search=no_search)

    result = results_of(read_journal(folder))["tuned"]
    assert "tuned" not in maker.made
    assert result.failure is FailureClass.UNSUPPORTED
    assert "recommends no setting" in (result.evidence or "")


def test_another_model_is_not_mixed_into_a_ladder(model: Path, maker: type[Maker], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    tuned_run(runs, model)
    folder, _ = climbed(model, runs)
    make_model(model, num_hidden_layers=5)

    with pytest.raises(InputError, match="was made differently: model"):
        climb_on(folder, TuneRequest(PlanRequest()), runs, quiet, tuned_run=None, search=no_search)
    assert len(maker.made) == 6


def test_the_middle_repeat_is_shown_with_the_spread() -> None:
    # 100, 130 and 110 tokens/s: the middle is 110, 30 / 110 apart.
    repeats = [LoadPoint(8, 24, 0, output_throughput=rate) for rate in (100.0, 130.0, 110.0)]
    middle, spread = middle_of(repeats)

    assert middle == repeats[2]
    assert spread == pytest.approx(30 / 110)
    # Waiting that one repeat saw was there.
    waited = [*repeats[:2], dataclasses.replace(repeats[2], waited_for_memory=False)]
    waited[0] = dataclasses.replace(waited[0], waited_for_memory=True)
    assert middle_of(waited)[0].waited_for_memory
    # One that failed stands for all.
    failed = LoadPoint(8, 20, 4, output_throughput=500.0, error="500: no")
    assert middle_of([*repeats, failed]) == (failed, None)


def test_a_result_comes_back_from_the_journal_as_it_was() -> None:
    result = RungResult(
        "start",
        {"max_num_seqs": 8},
        "vllm serve m",
        loads={"own": LoadPoint(8, 48, 0, output_throughput=1.5, notes=("a", "b"))},
        failure=FailureClass.OOM_SERVING,
        notes=("c",),
    )

    assert RungResult.from_dict(json.loads(json.dumps(result.as_dict()))) == result


@pytest.mark.parametrize("kind", ["server", "ladder"])
def test_a_run_that_searched_no_settings_is_refused_before_the_first_step(kind: str, tmp_path: Path) -> None:
    with new_journal(tmp_path, {"what": kind}) as journal:
        name = journal.run_id

    with pytest.raises(InputError, match="recommends no settings"):
        climb(
            TuneRequest(PlanRequest(), demo=True),
            tmp_path,
            lambda _line: None,
            tuned_run=name,
            search=lambda *_: tmp_path,
        )
    assert [path.parent.name for path in tmp_path.glob("*/journal.jsonl")] == [name]
