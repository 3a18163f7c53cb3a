"""What the user names becomes a problem; what is missing is asked for by name; what was assumed is told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.errors import InputError
from kvplan.planning import PlanRequest
from kvplan.report.tune_plan import plan_as_dict, render_plan
from kvplan.tune.identity import workload_from_record, workload_record
from kvplan.tune.problem import Problem
from kvplan.tune.request import TuneRequest
from kvplan.tune.resume import as_begun
from kvplan.tune.session import forecast
from kvplan.tune.setup import prepare
from kvplan.units import GIB
from tests.tiny_model import make_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("kvplan.tune.setup.installed_vllm", lambda: "0.32.0")
    monkeypatch.chdir(tmp_path)
    return str(make_model(tmp_path / "model", max_position_embeddings=1024))


def request(model: str | None, **changes: Any) -> TuneRequest:
    plan: dict[str, Any] = {
        "model": model,
        "device": "cpu",
        "gpu_memory_gib": 2.0,
        "target_concurrency": 8,
        "input_len": 256,
        "output_len": 64,
        "local_calibration": False,
    }
    names = {f.name for f in dataclasses.fields(PlanRequest)}
    return TuneRequest(
        PlanRequest(**(plan | {k: v for k, v in changes.items() if k in names})),
        **{k: v for k, v in changes.items() if k not in names},
    )


def test_the_length_is_the_longest_request_in_whole_blocks_and_the_loads_surround_the_target(
    model: str,
) -> None:
    problem = prepare(request(model)).problem
    # 256 + 64 = 320 tokens are three blocks of 128.
    assert problem.max_model_len == 384
    assert problem.loads == (4, 8, 16, 32)
    assert problem.card_bytes == 2 * GIB
    assert problem.space.kv_cache_dtype == ("auto", "fp8")
    assert problem.space.block_size == (128, 32)


def test_a_problem_and_its_workload_come_back_from_the_journal(model: str) -> None:
    prepared = prepare(request(model))
    header = json.loads(json.dumps(prepared.header))
    assert Problem.from_dict(header["problem"]) == prepared.problem
    record = json.loads(json.dumps(workload_record(prepared.workload)))
    again = workload_from_record(record)
    assert again.samples == prepared.workload.samples
    assert workload_record(again) == record


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"model": None}, "no model given", "--model"),
        ({"gpu_memory_gib": None}, "on CPU the card has the size that you give it", "--gpu-memory-gib"),
        ({"input_len": None}, "--input-len is missing", "a prompt and an answer"),
        ({"input_len": None, "output_len": None}, "--input-len and --output-len missing", "--workload"),
        ({"target_concurrency": None}, "nothing says how many users", "--target-concurrency"),
        ({"input_len": 2000}, "longer than the model's 1024", "--input-len"),
        ({"block_sizes": (48,)}, "block size 48 does not start on CPU", "multiples of 32"),
        ({"device": "tpu"}, "--device 'tpu' is not known", "cuda or cpu"),
        (
            {"serving": ServingConfig(max_model_len=128)},
            "--max-model-len 128 is shorter than the workload's longest request of 320",
            "longer",
        ),
    ],
)
def test_what_is_missing_or_impossible_is_named_with_the_flag(
    model: str, changes: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        prepare(request(changes.pop("model", model), **changes))
    assert hint in (caught.value.hint or "")


def test_the_project_file_fills_what_the_command_line_leaves_open_and_it_is_told(
    model: str, tmp_path: Path
) -> None:
    (tmp_path / ".kvplan.yaml").write_text(
        "model: model\ntarget_concurrency: 12\ngpu_memory_gib: 3\ndevice: cpu\n"
    )
    prepared = prepare(request(None, device=None, gpu_memory_gib=None, target_concurrency=None))
    assert prepared.problem.model == model
    assert prepared.problem.target_concurrency == 12
    assert prepared.problem.card_bytes == 3 * GIB
    assert "target_concurrency 12 (.kvplan.yaml)" in prepared.assumptions


def test_a_dry_run_names_every_launch_its_decision_and_its_command(model: str, tmp_path: Path) -> None:
    prepared = prepare(request(model, demo=True))
    plan = forecast(prepared, tmp_path / "runs")
    record = plan_as_dict(prepared, plan)
    phases = [launch["phase"] for launch in record["launches"]]
    assert phases[:4] == ["probe", "low_end", "knob", "knob"]
    assert phases[-1] == "confirm"
    assert set(phases[4:-1]) == {"boundary"}
    assert all(
        launch["decides"] and "--max-model-len 384" in launch["command"] for launch in record["launches"]
    )
    assert "VLLM_API_KEY='***'" in record["setup"]
    assert record["expected_minutes"] > 0
    for output_format in ("text", "markdown"):
        text = render_plan(prepared, plan, output_format)
        assert all(launch["command"] in text for launch in record["launches"])
        assert text.count("VLLM_API_KEY") == 1  # the variables are the same for all: said once
    assert not (tmp_path / "runs").exists()


def test_flags_beside_resume_are_compared_with_the_run_and_nothing_given_is_nothing_to_compare(
    model: str,
) -> None:
    header = json.loads(json.dumps(prepare(request(model)).header))
    assert as_begun(TuneRequest(PlanRequest(), max_launches=3), header) is None
    same = as_begun(TuneRequest(PlanRequest(target_concurrency=8)), header)
    other = as_begun(TuneRequest(PlanRequest(target_concurrency=9)), header)
    assert same is not None
    assert other is not None
    assert json.loads(json.dumps(same.header["problem"])) == header["problem"]
    assert other.header["problem"]["target_concurrency"] == 9


@pytest.mark.parametrize(
    ("strategy", "given", "ends"),
    [
        (None, (0.9,), (0.05, 0.9)),
        (None, (0.9, 0.6), (0.6, 0.9)),
        ("grid", (0.9, 0.6), (0.05, 1.0)),
        (None, (), (0.05, 1.0)),
    ],
)
def test_utilisations_are_ends_of_the_guided_search_and_values_of_the_grid(
    model: str, strategy: Any, given: tuple[float, ...], ends: tuple[float, float]
) -> None:
    prepared = prepare(request(model, utilizations=given, strategy=strategy))
    space = prepared.problem.space
    assert (space.lowest_utilization, space.highest_utilization) == ends
    assert space.utilization == tuple(sorted(given))
    assert prepared.assumed.probe_utilization <= ends[1]


def test_secrets_of_a_config_are_in_no_setting_no_journal_and_no_line(model: str) -> None:
    serving = ServingConfig().with_flags(
        api_key=["SECRETCFG1", "SECRETCFG3"],
        hf_token="hf_SECRETCFG2",
        ssl_keyfile_password="SECRETCFG4",
        swap_space=2,
    )
    prepared = prepare(request(model, serving=serving))

    assert prepared.problem.fixed == {"swap_space": 2}
    shown = render_plan(prepared, forecast(prepared, Path("none")), "text")
    assert "SECRETCFG" not in json.dumps(prepared.header) + shown
    # ... and it is said that they are left out.
    assert any("no api_key, no hf_token, no ssl_keyfile_password" in line for line in prepared.assumptions)


def test_a_secret_that_cannot_be_left_out_is_refused_and_not_repeated(model: str) -> None:
    nested = ServingConfig().with_flags(kv_transfer_config={"extra": [{"api_key": "SECRETCFG1"}]})
    for asked in (request(model, serving=nested), request(model, knobs={"hf_token": ("SECRETCFG1", "x")})):
        with pytest.raises(InputError, match="holds a secret") as caught:
            prepare(asked)
        assert "SECRETCFG1" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(("target", "is_said"), [(8, False), (400, True)])
def test_a_target_that_the_card_cannot_hold_is_said_before_the_first_launch(
    model: str, target: int, is_said: bool
) -> None:
    prepared = prepare(request(model, target_concurrency=target, gpu_memory_gib=1.5))
    assumed = prepared.assumed
    left = prepared.problem.card_bytes - assumed.non_kv_bytes - assumed.unbudgeted_bytes
    # 4 layers x 2 x 2 KV heads x 64 B = 1,024 B a token in fp8; 320 tokens are 3 blocks of 128: 393,216 B.
    assert (target * 393_216 > left) == is_said
    assert any("out of reach" in warning for warning in prepared.warnings) == is_said
