"""`kvplan profiles calibrate`: how close the memory model comes, and your own launches to correct it."""

from __future__ import annotations

import enum
from pathlib import Path  # noqa: TC003  typer reads the annotations when it runs
from typing import Annotated

import typer

from kvplan.cli.output import emit, tell
from kvplan.cli.profiles import app

__all__ = ["app", "calibrate"]


class CalibrationFormat(enum.StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


@app.command("calibrate")
def calibrate(
    log: Annotated[
        Path | None, typer.Option(help="Take a vLLM log into the store: estimates are corrected by it.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="With --log: the card, which vLLM's log never names.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --log: the model's id, where the log has an alias or a path.")
    ] = None,
    vllm_version: Annotated[
        str | None, typer.Option(help="With --log: the release, if not in the log.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(help="With --log: the store to write; default: .kvplan.yaml's, or your own."),
    ] = None,
    leave_one_source_out: Annotated[
        bool, typer.Option("--leave-one-source-out", help="Predict every source by a fit to all the others.")
    ] = False,
    fit: Annotated[
        bool, typer.Option("--fit", help="Fit the coefficients again and write them (in a checkout).")
    ] = False,
    launches: Annotated[
        Path | None, typer.Option(help="Published launches, JSON lines; default: the repository's.")
    ] = None,
    profiles: Annotated[str | None, typer.Option(help="Folder of your own profiles; they win.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write plots (SVG) to this folder.")] = None,
    output_format: Annotated[
        CalibrationFormat, typer.Option("--format", help="How to print.")
    ] = CalibrationFormat.TEXT,
) -> None:
    """Show how close estimates come to launches, or learn from a log."""
    if log is not None:
        emit(_take_log(log, gpu=gpu, model=model, vllm_version=vllm_version, store=store))
        return
    from kvplan.calibration import study
    from kvplan.report.calibration import render_study, study_as_dict

    path = launches or study.default_launches_path()
    if fit:
        from kvplan.calibration.write_fit import write_fit

        fitted, found = study.refit(path, profiles)
        for written in write_fit(fitted, path):
            tell(f"kvplan: wrote {written}")
    else:
        found = (study.score_left_out if leave_one_source_out else study.score_fitted)(path, profiles)
    if plots is not None:
        from kvplan.calibration.plots import write_plots

        for written in write_plots(found, plots):
            tell(f"kvplan: wrote {written}")
    if output_format is CalibrationFormat.JSON:
        import json

        emit(json.dumps(study_as_dict(found), indent=2))
    else:
        emit(render_study(found, markdown=output_format is CalibrationFormat.MARKDOWN))


def _take_log(
    log: Path, *, gpu: str | None, model: str | None, vllm_version: str | None, store: Path | None
) -> str:
    from kvplan.calibration.log_import import launch_from_log
    from kvplan.calibration.store import remember, store_path
    from kvplan.config.project_file import read_project_file
    from kvplan.report.calibration import render_taken

    launch = launch_from_log(log, model=model, gpu=gpu, vllm_version=vllm_version)
    path = store or store_path(read_project_file())
    remember(launch, path)
    return render_taken(launch, path)
