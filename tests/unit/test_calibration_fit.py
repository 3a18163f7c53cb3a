"""The fit: it reproduces what is shipped, and its honest errors stay within what the project promises."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvplan.calibration.cases import prepare
from kvplan.calibration.evaluate import Outcome, score, weighted_quantile
from kvplan.calibration.fit import PRIORS, fit, targets_of
from kvplan.calibration.public_launches import PublicLaunch, read_public_launches
from kvplan.calibration.study import Study, score_fitted, score_left_out
from kvplan.calibration.write_fit import as_module, as_profile
from kvplan.errors import InputError
from kvplan.memory.overhead import fitted as fitted_module
from kvplan.memory.overhead.fitted import FITTED
from kvplan.report.calibration import render_study, study_as_dict
from kvplan.units import GIB

ROOT = Path(__file__).parents[2]
LAUNCHES = ROOT / "tests" / "data" / "launches.jsonl"


@pytest.fixture(scope="module")
def left_out() -> Study:
    return score_left_out(LAUNCHES)


@pytest.fixture(scope="module")
def shipped() -> Study:
    return score_fitted(LAUNCHES)


def launch(**fields: Any) -> PublicLaunch:
    record = {
        "id": "x",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "H100",
        "vllm": "0.19.0",
        "flags_complete": True,
        "outcome": "started",
        "kv_cache_gib": 58.11,
    } | fields
    path = Path.cwd() / "one.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return read_public_launches(path)[0]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_fit_reproduces_the_shipped_coefficients() -> None:
    cases, _ = prepare(read_public_launches(LAUNCHES))
    again = fit(targets_of(cases))
    for name, prior in PRIORS.items():
        # Profiles may learn a model more; a coefficient may then move by a small part of its prior's width.
        assert getattr(again, name) == pytest.approx(getattr(FITTED, name), abs=0.05 * prior.spread), name


def test_the_shipped_module_and_profile_hold_the_same_figures() -> None:
    module = Path(fitted_module.__file__).read_text()
    assert module == as_module(FITTED)
    profile = yaml.safe_load((ROOT / "profiles" / "engines" / "overhead-fit.yaml").read_text())
    values = {name: fact["value"] for name, fact in profile["facts"].items()}
    assert values == dataclasses.asdict(FITTED)
    assert all(fact["source"] for fact in profile["facts"].values())
    assert profile == yaml.safe_load(as_profile(FITTED, LAUNCHES.name))


def test_counted_tensors_came_out_of_the_fit_as_counted() -> None:
    """What vLLM's source says is alive per logit: 36 bytes beside the logits when sorting, 12 when fused."""
    assert pytest.approx(36, abs=0.2) == FITTED.sort_bytes_per_logit
    assert pytest.approx(12, abs=0.1) == FITTED.fused_bytes_per_logit
    assert pytest.approx(4, abs=0.2) == FITTED.compiled_hidden_copies
    assert pytest.approx(3, abs=0.2) == FITTED.eager_hidden_copies


def test_leave_one_source_out_errors_are_within_the_promise(left_out: Study) -> None:
    figures = left_out.score
    assert figures.launches >= 55
    assert figures.median_abs_percent <= 0.5
    assert figures.p90_abs_percent <= 3.0
    assert figures.source_median_abs_percent <= 1.0
    assert figures.over_promised_share <= 0.1
    assert 0.75 <= figures.coverage <= 0.9
    assert figures.tight_share <= 0.15
    assert figures.failed_called_yes == ()
    assert len(figures.started_called_no) <= 1


def test_the_shipped_fit_is_within_the_promise(shipped: Study) -> None:
    figures = shipped.score
    assert figures.median_abs_percent <= 0.3
    assert figures.over_promised_share <= 0.1
    assert 0.75 <= figures.coverage <= 0.9
    assert figures.failed_called_yes == ()
    assert len(figures.started_called_no) <= 1


def test_nothing_of_a_launch_is_read_when_it_is_predicted(shipped: Study) -> None:
    """The printed figures of a record may be anything: the answer is the same."""
    outcome = next(o for o in shipped.outcomes if o.case.launch.weights_bytes)
    changed = dataclasses.replace(
        outcome.case.launch, weights_bytes=1, activation_bytes=1, non_torch_bytes=1, kv_cache_bytes=1
    )
    again = dataclasses.replace(outcome.case, launch=changed).predict(FITTED)
    assert again.budget.available_kv_bytes == outcome.answer.budget.available_kv_bytes


def test_what_lies_outside_is_listed_with_its_reason(left_out: Study) -> None:
    text = render_study(left_out)
    outside = [o for o in left_out.outcomes if not o.covered]
    assert outside
    assert all(o.case.launch.id in text for o in outside)
    assert "tensor parallelism over two nodes" in text
    for launch_ in (u.launch for u in left_out.unanswered):
        assert launch_.id in text


def test_the_study_as_json(shipped: Study) -> None:
    record = study_as_dict(shipped)
    assert record["schema"] == "kvplan.calibration/1"
    assert len(record["launches"]) == len(shipped.outcomes)
    assert json.loads(json.dumps(record)) == record


def test_markdown_has_a_table_for_every_grouping(shipped: Study) -> None:
    text = render_study(shipped, markdown=True)
    for heading in ("## By card", "## By version", "## By model kind", "## By source", "## Outside"):
        assert heading in text


def test_each_source_counts_once() -> None:
    # a: errors 1 and 9, half a vote each; b: 2. Votes in order: 1 (.5), 2 (1), 9 (.5) of 2
    pairs = [(1.0, 0.5), (9.0, 0.5), (2.0, 1.0)]
    assert weighted_quantile(pairs, 0.5) == 2.0
    assert weighted_quantile(pairs, 0.9) == 9.0
    assert weighted_quantile([(1.0, 1.0)], 0.5) == 1.0


def test_a_score_of_nothing_is_no_score() -> None:
    with pytest.raises(ValueError, match="no outcome"):
        score([])


@pytest.mark.parametrize(
    ("fields", "usable"),
    [
        ({}, True),
        ({"gpu": "unnamed 24 GB card"}, False),
        ({"flags_complete": False}, False),
        ({"vllm": "nightly"}, False),
        ({"remarks": ["fork"]}, False),
        ({"remarks": ["shared_card"]}, False),
        ({"notes": "other processes on it"}, False),
        ({"kv_cache_gib": None}, False),
        ({"outcome": "failed", "failure": "no_kv_memory"}, True),
        ({"outcome": "failed", "failure": "free_memory_low"}, False),
    ],
)
def test_which_launches_can_be_scored(fields: dict[str, Any], usable: bool) -> None:
    assert launch(**fields).is_usable is usable


def test_the_last_stage_is_the_one_that_is_fitted() -> None:
    assert launch(activation_peak_gib=1.1, stage_peak_gib=[1.1, 2.01]).activation_bytes == round(2.01 * GIB)


def test_flags_become_vllm_flags() -> None:
    serving = launch(tp=2, pp=1, gpu_memory_utilization=0.5, dtype="float32").serving
    assert serving.given() == {
        "gpu_memory_utilization": 0.5,
        "dtype": "float32",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
    }


@pytest.mark.parametrize("line", ["{", "[]", '{"id": "x"}'])
def test_a_line_that_is_no_launch_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "a", "outcome": "started"}\n' + line + "\n")
    with pytest.raises(InputError, match=r"bad\.jsonl:2: not a launch"):
        read_public_launches(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_public_launches(tmp_path / "none.jsonl")


def test_an_outcome_without_a_printed_figure_has_no_error(shipped: Study) -> None:
    outcome = shipped.outcomes[0]
    bare = dataclasses.replace(outcome.case.launch, kv_cache_bytes=None)
    unknown = Outcome(dataclasses.replace(outcome.case, launch=bare), outcome.answer)
    assert unknown.error_percent is None
    assert unknown.covered is None
    assert not unknown.over_promised
