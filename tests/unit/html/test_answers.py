"""The page's part on a quantised KV cache's answers: there when they were looked at, and only then."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvplan.quality.judge import Measure, NeedleResult, QualityVerdict
from kvplan.report.html import render_html
from kvplan.report.tune import TuneReport
from kvplan.tune.answers import QualityFinding
from kvplan.tune.journal import read_journal

RUN = Path(__file__).parents[2] / "data" / "runs" / "demo-cpu"
MOVES = Measure("log-probability", "nat", 0.002, 0.031, 0.027, 0.035, 0.1, "passes", 12, 1908)
LOSS = Measure("perplexity", "nat", 0.0, 0.004, -0.001, 0.009, 0.01, "passes", 12, 1908)
NEEDLES = NeedleResult(20, 8180, 20, 20, 20, 0.139, "passes")


@pytest.fixture(scope="module")
def report() -> TuneReport:
    return TuneReport.of(read_journal(RUN))


def looked_at(report: TuneReport, verdict: QualityVerdict) -> TuneReport:
    found = (QualityFinding("fp8", 1, 3, verdict),)
    return dataclasses.replace(
        report, recommendation=dataclasses.replace(report.recommendation, quality=found)
    )


def test_a_verdict_is_shown_with_every_measure_and_its_limit(report: TuneReport) -> None:
    verdict = QualityVerdict("passes", "all is well", True, (MOVES, LOSS), NEEDLES)  # noqa: FBT003  a field
    page = render_html(looked_at(report, verdict), RUN)
    assert "Answers of the quantised KV cache" in page
    assert "fp8 (trial 3 against trial 1): passes: all is well" in page
    for cell in ("0.0310", "0.0270 to 0.0350", "0.1000", "+0.40 %", "-0.10 % to +0.90 %", "+1.01 %"):
        assert cell in page
    assert "facts found, of 20" in page


def test_one_that_could_not_be_had_says_why_and_has_no_table(report: TuneReport) -> None:
    verdict = QualityVerdict("undecided", "the server answered 400", is_above_noise=False)
    page = render_html(looked_at(report, verdict), RUN)
    assert "undecided: the server answered 400" in page
    assert "Answers, measure by measure" not in page


def test_where_nothing_was_looked_at_there_is_no_such_part(report: TuneReport) -> None:
    assert "Answers of the quantised KV cache" not in render_html(report, RUN)
