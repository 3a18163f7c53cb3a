"""What a dry run expects of each launch is what `kvplan estimate` says of the same settings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.planning import PlanRequest, plan_for
from kvplan.report.tune_plan import plan_as_dict, render_plan
from kvplan.tune.problem import Budget
from kvplan.tune.request import TuneRequest
from kvplan.tune.session import forecast
from kvplan.tune.setup import prepare

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvplan.tune.setup.installed_vllm", lambda: "0.32.0")
    monkeypatch.chdir(tmp_path)


def request(gpu: str, serving: ServingConfig | None = None, input_len: int = 1000) -> TuneRequest:
    return TuneRequest(
        PlanRequest(
            model="qwen2-7b",
            gpu=gpu,
            target_concurrency=32,
            input_len=input_len,
            output_len=200,
            offline=True,
            local_calibration=False,
            serving=serving or ServingConfig(),
        )
    )


@pytest.mark.parametrize("gpu", ["a100-80gb", "4090", "l4"])
@pytest.mark.parametrize("input_len", [1000, 30000])
def test_every_launch_of_a_dry_run_is_expected_to_end_as_the_estimate_of_its_settings_says(
    gpu: str, input_len: int, tmp_path: Path
) -> None:
    asked = request(gpu, input_len=input_len)
    trials = forecast(prepare(asked), tmp_path).trials
    estimates = [
        plan_for(
            dataclasses.replace(asked.plan, vllm_version="0.32.0", serving=trial.spec.settings)
        ).estimate()
        for trial in trials
    ]

    expected = [None if e.verdict.probability >= 0.5 else e.verdict.failure for e in estimates]
    assert [trial.failure for trial in trials] == expected
    assert [trial.kv_cache_bytes for trial in trials] == [
        estimate.budget.available_kv_bytes.mid for estimate in estimates
    ]


def test_a_share_that_the_cuda_context_does_not_leave_free_is_refused_at_the_start(tmp_path: Path) -> None:
    # vLLM 0.32.0 v1/worker/utils.py::request_memory compares free memory, the context already taken, with
    # utilisation x total before it loads anything: at 1.0 nothing can be enough.
    trials = forecast(prepare(request("a100-80gb")), tmp_path).trials

    above = [t.failure for t in trials if t.spec.settings.gpu_memory_utilization == 1.0]
    assert above == ["free_memory_low"]


def test_the_minutes_are_a_range_from_the_fewest_repeats_to_as_many_as_may_be(tmp_path: Path) -> None:
    # fp8 is tried on this card (compute capability 8.9), so answers are asked for: of the probe's unquantised
    # cache twice, of fp8 once. No start was seen here: 120 s each, 15 s of loads for each that survives.
    prepared = prepare(request("4090"))
    plan = forecast(prepared, tmp_path)
    phases = [trial.spec.phase for trial in plan.trials]
    survived = [trial.spec.phase for trial in plan.trials if trial.failure is None]
    assert phases == ["probe", "knob", "knob", "boundary", "boundary", "confirm"]
    assert survived == ["probe", "knob", "knob", "boundary", "confirm"]

    least_s = 6 * 120 + 5 * 15 + 15 * (2 + 1)
    assert plan.minutes == least_s / 60
    # Settings are compared in the probe and the two of the knobs: each may go on for one more start's time.
    assert plan.most_minutes == (least_s + 3 * 120) / 60
    record = plan_as_dict(prepared, plan)
    assert (record["expected_minutes"], record["expected_minutes_most"]) == (14.0, 20.0)
    assert "6 launches, about 14 to 20 min, if memory" in render_plan(prepared, plan, "text")
    assert "does not hold" not in render_plan(prepared, plan, "text")
    # A budget between the two may do, one below both does not.
    for minutes, said in ((15.0, "may not hold"), (10.0, "does not hold")):
        short = dataclasses.replace(prepared, budget=Budget(14, minutes))
        assert f"{said} this plan of about 14 to 20 min" in render_plan(short, plan, "text")


def test_without_the_gate_nothing_is_asked_and_a_grid_repeats_nothing(tmp_path: Path) -> None:
    asked = request("4090")
    ungated = dataclasses.replace(asked, quality_gate=False)
    assert forecast(prepare(ungated), tmp_path).minutes == 14.0 - 45 / 60
    grid = dataclasses.replace(
        asked, strategy="grid", utilizations=(0.8, 0.9), kv_cache_dtypes=("auto",), quality_gate=False
    )
    plan = forecast(prepare(grid), tmp_path)
    assert plan.minutes == plan.most_minutes
    assert " to " not in plan.minutes_text
