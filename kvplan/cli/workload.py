"""`kvplan workload`: my traffic as a workload file, and what it looks like."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from kvplan.cli.estimate import Format
from kvplan.cli.output import emit, tell
from kvplan.errors import InputError


class ArrivalsKind(enum.StrEnum):
    """How requests arrive when the workload is replayed."""

    USERS = "users"
    POISSON = "poisson"
    TRACE = "trace"


def workload(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A log of requests (JSON lines, access log), CSV of lengths, Prometheus text, URL of a "
            "running vLLM, preset or workload file. Without it the presets are listed."
        ),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Write the workload file here; - is stdout.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the file of --output.")] = False,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the workload; default: of the file, or the server's host-port."),
    ] = None,
    arrivals: Annotated[
        ArrivalsKind, typer.Option(help="users (closed loop), or the log's rate or its very times.")
    ] = ArrivalsKind.USERS,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Users of the closed loop.")] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Longest request that the service admits, in tokens.")
    ] = None,
    shared_prefix_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens at the start of every prompt that are the same.")
    ] = 0,
    model: Annotated[str | None, typer.Option(help="Of a server's metrics: the model_name.")] = None,
    input_column: Annotated[str | None, typer.Option(help="Of a CSV: prompt tokens.")] = None,
    output_column: Annotated[str | None, typer.Option(help="Of a CSV: answer tokens.")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="VLLM_API_KEY", show_envvar=True, help="Of a server that asks for one."),
    ] = None,
    profiles: Annotated[str | None, typer.Option(help="A folder of profiles that wins.")] = None,
    output_format: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
) -> None:
    """Make a workload file from real traffic, or look at one.

    Shows means, percentiles and the longest requests. The file goes to --workload of estimate, tune and
    bench. Only token counts and times are read of a log; no prompt and no answer enters the file.
    """
    from kvplan.foreign import reading
    from kvplan.load.compose import Extras
    from kvplan.load.source import default_name, workload_from
    from kvplan.load.workload_file import preset_paths
    from kvplan.report.workload import render_presets, render_workload

    if source is None:
        emit(render_presets(preset_paths(profiles), output_format.value))
        return
    if output is not None and Path(output).is_file() and not replace:
        raise InputError(f"--output {output} is there already", "--replace overwrites it")
    extras = Extras(
        name=name or default_name(source),
        source=source,
        arrivals=arrivals.value,
        users=concurrency,
        max_model_len=max_model_len,
        shared_prefix_tokens=shared_prefix_tokens,
    )
    with reading(source):
        made = workload_from(
            source,
            extras,
            model=model,
            api_key=api_key,
            input_column=input_column,
            output_column=output_column,
            profiles_dir=profiles,
        )
    rendered = render_workload(made.workload, made.notes, output_format.value)
    if output == "-":
        emit(made.text.rstrip("\n"), data=True)
        tell(rendered)
        return
    if output is not None:
        try:
            Path(output).write_text(made.text, encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"--output {output}: {error.strerror}", "name a file in a folder that is there"
            ) from error
        tell(f"kvplan: wrote {output}")
    emit(rendered)
