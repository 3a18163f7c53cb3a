"""A tuning run as one self-contained HTML page: figures as inline SVG, nothing from the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.report.tune import TuneReport


def render_html(report: TuneReport, folder: Path) -> str:
    """The whole page.

    Args:
        report: the run, as told from its journal.
        folder: the run's folder: memory samples and the commands as run are read from it where they are.

    Raises:
        MissingDependencyError: jinja2 or matplotlib is not installed; the hint names the extra.
    """
    from kvplan.report.html.page import render

    return render(report, folder)
