"""`kvplan report`: tell a tuning run again, from its journal alone."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.output import emit, tell
from kvplan.errors import ExitCode, InputError

if TYPE_CHECKING:
    from pathlib import Path


class Format(enum.StrEnum):
    """How a run is told."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    HTML = "html"


def report(
    run: Annotated[str, typer.Argument(help="A run's name, its folder or journal, or `last`.")],
    runs_dir: Annotated[str, typer.Option(help="Where runs are kept.")] = "kvplan-runs",
    output_format: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
    output: Annotated[str | None, typer.Option(help="A file to write instead of printing.")] = None,
) -> None:
    """Render a run of `kvplan tune`, finished or not.

    Also one of --url or --ladder. Exit code: 0 it met its target, 1 it did not, 2 no such run.
    """
    from pathlib import Path

    from kvplan.foreign import reading
    from kvplan.tune.journal import find_run

    folder = find_run(run, Path(runs_dir))
    with reading(f"the journal of {folder}"):
        text, is_met = _rendered(folder, output_format)
    if output is None:
        emit(text)
    else:
        _write(text, Path(output))
        tell(f"kvplan: wrote {output}")
    raise typer.Exit(ExitCode.OK if is_met else ExitCode.NO)


def _rendered(folder: Path, output_format: Format) -> tuple[str, bool]:
    """The report, and whether its answer is yes."""
    from kvplan.report.runs import special_report_of
    from kvplan.report.tune import TuneReport
    from kvplan.tune.journal import read_journal

    contents = read_journal(folder)
    special = special_report_of(contents)
    if special is not None:
        return special.render(output_format.value), special.met
    told = TuneReport.of(contents)
    if output_format is Format.HTML:
        from kvplan.report.html import render_html

        return render_html(told, folder), told.recommendation.met
    return told.render(output_format.value), told.recommendation.met


def _write(text: str, path: Path) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"--output {path}: {error.strerror}", "name a file in a folder that is there"
        ) from error
