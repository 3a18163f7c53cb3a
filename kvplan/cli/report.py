"""`kvplan report`: tell a tuning run again, from its journal alone."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.cli.estimate import Format
from kvplan.cli.output import emit
from kvplan.errors import ExitCode


def report(
    run: Annotated[str, typer.Argument(help="A run's name, its folder or journal, or `last`.")],
    runs_dir: Annotated[str, typer.Option(help="Where runs are kept.")] = "kvplan-runs",
    output_format: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
) -> None:
    """Render a run of `kvplan tune`, finished or not.

    Exit code: 0 it has a confirmed setting that meets the target, 1 it has none, 2 no such run.
    """
    from pathlib import Path

    from kvplan.report.tune import TuneReport
    from kvplan.tune.journal import find_run, read_journal

    told = TuneReport.of(read_journal(find_run(run, Path(runs_dir))))
    emit(told.render(output_format.value))
    raise typer.Exit(ExitCode.OK if told.recommendation.met else ExitCode.NO)
