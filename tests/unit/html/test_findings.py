"""What the page works out itself: ledger, Pareto front, cheat sheet, thinned samples, the command again."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kvplan.load.workload import Workload
from kvplan.report.html import render_html
from kvplan.report.html.cheat_sheet import cheat_sheet
from kvplan.report.html.commands import tune_command
from kvplan.report.html.ledger import measured_ledger
from kvplan.report.html.pareto import Candidate, candidates
from kvplan.report.html.samples import thinned
from kvplan.report.html.words import gib_column

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.report.tune import TuneReport

GIB = 2**30


def test_the_measured_ledger_sums_to_the_card(report: TuneReport) -> None:
    # Trial 7: KV cache 564,126,680 B as set; the worker before it as sampled; the peak of its memory cgroup.
    trial = report.trials[6]
    assert trial.launch is not None
    assert trial.non_kv_bytes is not None
    ledger = measured_ledger(2 * GIB, trial)
    assert ledger is not None
    peaks = [trial.launch.peak_bytes, *(load.peak_memory_bytes for load in trial.loads)]
    peak = max(size for size in peaks if size is not None)
    assert dict(ledger.parts) == {
        "before_kv": trial.non_kv_bytes,
        "kv_cache": 564_126_680,
        "outside": peak - 564_126_680 - trial.non_kv_bytes,
        "free": 2 * GIB - peak,
    }


def test_a_ledger_without_a_peak_says_what_is_not_measured(report: TuneReport) -> None:
    trial = report.trials[6]
    assert trial.launch is not None
    loads = tuple(dataclasses.replace(load, peak_memory_bytes=None) for load in trial.loads)
    launch = dataclasses.replace(trial.launch, peak_bytes=None)
    ledger = measured_ledger(2 * GIB, dataclasses.replace(trial, launch=launch, loads=loads))
    assert ledger is not None
    assert trial.non_kv_bytes is not None
    assert dict(ledger.parts) == {
        "before_kv": trial.non_kv_bytes,
        "kv_cache": 564_126_680,
        "unknown": 2 * GIB - 564_126_680 - trial.non_kv_bytes,
    }


def test_a_trial_that_did_not_start_has_no_ledger(report: TuneReport) -> None:
    trial = dataclasses.replace(report.trials[6], non_kv_bytes=None)
    assert measured_ledger(2 * GIB, trial) is None


def test_the_front_of_the_run(report: TuneReport) -> None:
    # tokens/s, TPOT p99, headroom: #1 933, 8.8, 0.576 and #5 728, 12.4, 0.028 are beaten in all three by
    # #4 1,105, 6.4, 0.582; #3 1,094, 5.8, 0.596 has the most room, #7 1,253, 5.1, 0.057 the most speed.
    points = candidates(report.problem, report.trials)
    assert [p.trial for p in points] == [1, 3, 4, 5, 7], "trials 2 and 6 failed"
    assert [p.trial for p in points if p.is_on_front] == [3, 4, 7]


def test_an_unknown_figure_is_neither_on_the_front_nor_beaten() -> None:
    known = Candidate(1, "", 100.0, 5.0, GIB, None)
    unknown = Candidate(2, "", None, 1.0, 2 * GIB, None)
    assert not known.beats(unknown)
    assert not unknown.beats(known)
    assert not unknown.is_complete


POINTS = st.builds(
    Candidate,
    trial=st.integers(1, 9),
    settings=st.just(""),
    output_throughput=st.integers(0, 3).map(float),
    p99_tpot_ms=st.integers(0, 3).map(float),
    headroom_bytes=st.integers(0, 3),
    kv_cache_tokens=st.none(),
)


@given(POINTS, POINTS, POINTS)
def test_beating_is_an_order(a: Candidate, b: Candidate, c: Candidate) -> None:
    assert not a.beats(a)
    assert not (a.beats(b) and b.beats(a))
    assert not (a.beats(b) and b.beats(c)) or a.beats(c)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=900), st.integers(1, 200))
def test_thinning_keeps_the_peak_and_the_order(sizes: list[int], most: int) -> None:
    points = tuple((float(at), size) for at, size in enumerate(sizes))
    kept = thinned(points, most)
    assert len(kept) <= max(most, 1)
    assert max(size for _, size in kept) == max(sizes)
    assert list(kept) == sorted(kept)
    assert set(kept) <= set(points)


def test_the_cheat_sheet_is_vllm_s_arithmetic_on_the_measured_cache(report: TuneReport) -> None:
    # One block of 128 tokens: 4 layers x (K, V) x 2 heads x 64 x 2 B x 128 = 262,144 B, so 564,126,680 B are
    # 2,151 blocks, one of which vLLM keeps as the null block. 320 tokens take 3 blocks: 2,150 // 3 = 716.
    # In fp8 a block has half the bytes: 4,303 blocks, 4,302 // 3 = 1,434.
    # 1,500 + 512 = 2,012 tokens take 16 blocks, so max_model_len 2,048: 2,150 // 16 = 134, and in fp8
    # 4,302 // 16 = 268.
    # 40,000 tokens are more than the model's 32,768.
    presets = {"articles": Workload.fixed(1500, 512), "novels": Workload.fixed(39_000, 1000)}
    own, articles, novels = cheat_sheet(report, presets).classes
    assert (own.max_model_len, own.at_once_p95, own.at_once_longest, own.at_once_p95_fp8) == (
        384,
        716,
        716,
        1434,
    )
    assert (articles.max_model_len, articles.at_once_p95, articles.at_once_p95_fp8) == (2048, 134, 268)
    assert (novels.longest_tokens, novels.max_model_len, novels.at_once_p95) == (40_000, None, None)


def test_fp8_is_not_called_safe_where_its_answers_were_not_looked_at(report: TuneReport) -> None:
    sheet = cheat_sheet(report, {})
    assert sheet.fp8_verdict.startswith("Not shown to be safe: ")
    assert ("What it buys", "716 → 1,434 requests of 320 tokens at once") in sheet.fp8
    assert (
        "Needed for this target",
        "no: the unquantised cache holds 716 of the longest, the target is 8",
    ) in sheet.fp8


def on_a_gpu(report: TuneReport, **answer: object) -> TuneReport:
    """The same run, as if its card were a GPU of 24 GiB that was tuned by utilisation."""
    gpu = report.header["gpu"] | {
        "id": "test",
        "name": "a card",
        "vendor": "nvidia",
        "compute_capability": [8, 9],
        **dict.fromkeys(("total_bytes", "total_bytes_low", "total_bytes_high"), 24 * GIB),
    }
    settings = {"gpu_memory_utilization": 0.88, "max_model_len": 384, "max_num_seqs": 16, "block_size": 16}
    problem = dataclasses.replace(report.problem, device="cuda", card_bytes=24 * GIB)
    given = {"settings": settings, **answer}
    recommendation = dataclasses.replace(report.recommendation, **given)  # type: ignore[arg-type]
    return dataclasses.replace(
        report, header={**report.header, "gpu": gpu}, problem=problem, recommendation=recommendation
    )


def test_no_utilisation_is_advised_that_failed_or_was_not_tried(report: TuneReport) -> None:
    survived, failed = report.recommendation.boundary_survived, report.recommendation.boundary_failed
    assert survived is not None
    assert failed is not None
    survived = dataclasses.replace(survived, gpu_memory_utilization=0.9)
    failed = dataclasses.replace(failed, gpu_memory_utilization=0.92)
    told = on_a_gpu(report, boundary_survived=survived, boundary_failed=failed)
    changes = [change.change for change in cheat_sheet(told, {}).first_changes]
    assert [change for change in changes if "utilization" in change] == ["gpu_memory_utilization 0.900"]


def test_on_cpu_the_way_further_is_said_in_bytes(report: TuneReport) -> None:
    # Trial 5 survived with 607,076,352 B; gpu_memory_utilization would mean another memory to vLLM there.
    first = cheat_sheet(report, {}).first_changes[0]
    assert first.change == "kv_cache_memory_bytes 607076352"
    # 607,076,352 // 262,144 = 2,315 blocks, 2,314 // 3 = 771.
    assert first.buys.startswith("716 → 771 requests of 320 tokens at once")


def test_the_page_of_a_gpu_asks_for_gpus_and_names_the_card(report: TuneReport, tmp_path: Path) -> None:
    page = render_html(on_a_gpu(report), tmp_path)
    assert "on a card, 24.00 GiB</h1>" in page
    assert "nvidia.com/gpu: 1" in page
    assert "--gpu-memory-utilization 0.88" in page
    assert "vllm/vllm-openai:v0.32.0" in page
    assert "mem_limit" not in page


def test_a_card_that_takes_no_fp8_says_so(report: TuneReport) -> None:
    told = on_a_gpu(report)
    old = {**told.header, "gpu": told.header["gpu"] | {"compute_capability": [7, 5]}}
    sheet = cheat_sheet(dataclasses.replace(told, header=old), {})
    assert sheet.refusal is not None or sheet.fp8_verdict.startswith("Not here: ")


def test_a_model_without_a_rule_has_no_sheet_but_a_reason(report: TuneReport) -> None:
    config = {
        **report.header["model_config"],
        "architectures": ["NobodyKnowsForCausalLM"],
        "model_type": "nobody",
    }
    sheet = cheat_sheet(dataclasses.replace(report, header={**report.header, "model_config": config}), {})
    assert sheet.refusal is not None
    assert "nobody" in sheet.refusal.lower()


def test_the_same_search_asks_the_same_question(report: TuneReport, tmp_path: Path) -> None:
    command, notes = tune_command(report)
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:2] == ["kvplan", "tune"]
    assert notes == ()
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *words[1:], "--dry-run", "--format", "json"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    asked = json.loads(done.stdout)["problem"]
    then = json.loads(json.dumps(report.problem.as_dict()))
    # Where the demo's model lies is the machine's own; how often a load repeats is the tuner's.
    own = {"model": None, "repeats": None}
    assert asked | own == then | own


def test_a_little_is_not_nothing() -> None:
    assert gib_column(507 * 1024, 2 * GIB) == "<0.001"
    assert gib_column(0, 2 * GIB) == "0.000"
    assert gib_column(None, 2 * GIB) == "n/a"
    assert gib_column(24 * GIB, 80 * GIB) == "24.00"
