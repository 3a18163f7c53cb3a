"""The report of the committed demo run, to the letter. `--update-golden` rewrites it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.report.tune import TuneReport
from kvplan.tune.journal import read_journal

GOLDEN = Path(__file__).parent
RUN = GOLDEN.parent / "data" / "runs" / "demo-cpu"


@pytest.mark.parametrize(("output_format", "suffix"), [("text", "txt"), ("markdown", "md")])
def test_the_report_of_the_demo(output_format: str, suffix: str, pytestconfig: pytest.Config) -> None:
    rendered = TuneReport.of(read_journal(RUN)).render(output_format) + "\n"
    path = GOLDEN / f"tune-demo.{suffix}"
    if pytestconfig.getoption("--update-golden"):
        path.write_text(rendered)
    assert rendered == path.read_text()
