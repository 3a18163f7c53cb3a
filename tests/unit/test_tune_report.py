"""The report of a run, from its journal alone."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from kvplan.report.html import render_html
from kvplan.report.server import ServerReport
from kvplan.report.tune import TuneReport
from kvplan.tune.journal import FILE_NAME, read_journal, reopened_journal
from kvplan.tune.trial import Trial
from kvplan.units import format_duration

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "data" / "runs" / "demo-cpu"


@pytest.fixture(scope="module")
def report() -> TuneReport:
    return TuneReport.of(read_journal(RUN))


def documented(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_every_key_of_the_json_is_documented(report: TuneReport) -> None:
    text = (ROOT / "docs" / "reports.md").read_text()
    record = json.loads(report.render("json"))
    assert record["schema"] == "kvplan.report/1"
    assert set(record) - documented(text) == set()
    assert set(record["recommendation"]) - documented(text) == set()


def test_the_demo_shows_both_ends_of_the_boundary_with_their_evidence(report: TuneReport) -> None:
    answer = report.recommendation
    assert report.is_finished
    assert report.memory_limit == "cgroup"
    assert answer.met
    assert answer.low_end is not None
    assert answer.boundary_survived is not None
    assert answer.boundary_failed is not None
    assert answer.low_end.failure == "kv_too_small"
    assert "To serve at least one request" in (answer.low_end.evidence or "")
    assert answer.boundary_failed.failure == "killed"
    assert (answer.boundary_failed.oom_kill_count or 0) >= 1
    assert answer.boundary_failed.gpu_memory_utilization is not None
    assert answer.boundary_survived.gpu_memory_utilization is not None
    width = answer.boundary_failed.gpu_memory_utilization - answer.boundary_survived.gpu_memory_utilization
    assert 0 < width <= report.problem.tolerance + 1e-9


def test_an_interrupted_copy_of_it_is_told_as_far_as_it_went(report: TuneReport, tmp_path: Path) -> None:
    lines = (RUN / FILE_NAME).read_text().splitlines(keepends=True)
    kept, trials = [], 0
    for line in lines:
        trials += json.loads(line)["kind"] == "trial"
        kept.append(line)
        if trials == 3:
            break
    (tmp_path / FILE_NAME).write_text("".join(kept) + lines[-1][:100])
    cut = TuneReport.of(read_journal(tmp_path))
    assert not cut.is_finished
    assert not cut.recommendation.met
    assert len(cut.trials) == 3
    assert cut.recommendation.curve == report.recommendation.curve
    assert len(cut.warnings) == 1
    text = cut.render("text")
    assert "kvplan tune --resume" in text
    assert "the last line is torn" in text


def test_a_run_that_is_being_tuned_is_not_called_interrupted(tmp_path: Path) -> None:
    lines = (RUN / FILE_NAME).read_text().splitlines(keepends=True)
    third = [number for number, line in enumerate(lines) if json.loads(line)["kind"] == "trial"][2]
    (tmp_path / FILE_NAME).write_text("".join(lines[: third + 1]))
    owner = f"process {os.getpid()}"

    with reopened_journal(tmp_path):
        told = TuneReport.of(read_journal(tmp_path))
        texts = [told.render("text"), told.render("markdown"), render_html(told, tmp_path)]

    assert told.tuned_by == owner
    assert texts[0].startswith(f"being tuned by {owner}; so far:\n")
    for text in texts:
        assert re.search(f"being tuned by {owner}; so far:", text, re.IGNORECASE)
        assert "interrupted" not in text
        # Only how the run was made, in the page's last section, may name the option.
        assert "kvplan tune --resume" not in text
    after = TuneReport.of(read_journal(tmp_path))
    assert after.tuned_by is None
    assert "interrupted" in after.render("text")


def test_a_sweep_that_is_being_made_is_not_told_to_be_gone_on_with(tmp_path: Path) -> None:
    lines = (
        (ROOT / "tests" / "data" / "runs" / "server-cpu" / FILE_NAME).read_text().splitlines(keepends=True)
    )
    third = [number for number, line in enumerate(lines) if json.loads(line)["kind"] == "load"][2]
    (tmp_path / FILE_NAME).write_text("".join(lines[: third + 1]))
    owner = f"process {os.getpid()}"

    with reopened_journal(tmp_path):
        told = ServerReport.of(read_journal(tmp_path))
        texts = {name: told.render(name) for name in ("text", "markdown", "html", "json")}

    record = json.loads(texts.pop("json"))
    assert (record["finished"], record["tuned_by"]) == (False, owner)
    for text in texts.values():
        assert f"being measured by {owner}; so far: " in text
        assert f"not finished: {owner} is measuring it" in text
        assert "--resume" not in text
    after = ServerReport.of(read_journal(tmp_path))
    assert json.loads(after.render("json"))["tuned_by"] is None
    assert "being measured" not in after.render("text")
    assert "--resume" in after.render("text")


def test_the_time_of_a_run_is_told_with_what_it_waited_for_other_engines(report: TuneReport) -> None:
    # This journal is of a kvplan that did not note it yet: unknown, and nothing is said.
    assert json.loads(report.render("json"))["waited_s"] is None
    assert "waiting for other engines" not in report.render("text")
    first, second, *others = report.trials
    trials = (
        dataclasses.replace(first, waited_s=1400.0),
        dataclasses.replace(second, waited_s=100.5),
        *(dataclasses.replace(trial, waited_s=0.0) for trial in others),
    )
    waited = dataclasses.replace(
        report, trials=tuple(Trial.from_dict(json.loads(json.dumps(t.as_dict()))) for t in trials)
    )

    record = json.loads(waited.render("json"))
    assert record["waited_s"] == 1500.5
    assert record["wall_s"] == report.wall_s
    # 25 x 60 s = 1500 s.
    spent = f"{len(trials)} launches, {format_duration(report.wall_s)}"
    said = f"{spent}, and 25 min 00 s of waiting for other engines"
    for text in (waited.render("text"), waited.render("markdown"), render_html(waited, RUN)):
        assert said in text


def test_what_is_not_recommended_is_called_so_nowhere(tmp_path: Path) -> None:
    lines = (RUN / FILE_NAME).read_text().splitlines(keepends=True)
    third = [number for number, line in enumerate(lines) if json.loads(line)["kind"] == "trial"][2]
    (tmp_path / FILE_NAME).write_text("".join(lines[: third + 1]))
    nearest = TuneReport.of(read_journal(tmp_path))
    assert not nearest.recommendation.met
    assert nearest.recommendation.measured is not None

    page = render_html(nearest, tmp_path)

    assert "8, nearest" in page
    said = re.sub(r"(?s)<(script|style).*?</\1>", "", page).replace("not recommended", "")
    assert "recommended" not in said
    assert "recommended" not in nearest.render("text").replace("not recommended", "")


def test_without_outcome_lines_the_replayed_search_says_the_same(report: TuneReport, tmp_path: Path) -> None:
    lines = (RUN / FILE_NAME).read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["kind"] != "outcome"]
    assert len(kept) < len(lines)
    (tmp_path / FILE_NAME).write_text("".join(kept))
    replayed = TuneReport.of(read_journal(tmp_path))
    assert replayed.recommendation == report.recommendation
