"""The right report for a run: a tuning run, a running server's load sweep, or a ladder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.tune.journal import JournalContents


class RunReport(Protocol):
    """What every kind of run can be told as."""

    @property
    def met(self) -> bool:
        """Whether the run's answer is yes."""

    def render(self, output_format: str) -> str:
        """The report as text, markdown, json or html."""

    def save(self, folder: Path) -> None:
        """Keep it beside the journal."""


def special_report_of(contents: JournalContents) -> RunReport | None:
    """The report of a run that is not a search for settings; None for one that is."""
    from kvplan.report.ladder import LadderReport
    from kvplan.report.server import ServerReport
    from kvplan.tune.ladder_run import KIND as LADDER
    from kvplan.tune.running_server import KIND as SERVER

    match contents.header.get("what"):
        case kind if kind == SERVER:
            return ServerReport.of(contents)
        case kind if kind == LADDER:
            return LadderReport.of(contents)
        case _:
            return None
