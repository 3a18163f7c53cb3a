"""`kvplan check`: the vLLM launches of a repository, read and judged."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.gate.found import Found


class CheckFormat(enum.StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    GITHUB = "github"
    GITLAB = "gitlab"
    SARIF = "sarif"
    JUNIT = "junit"


class FailOn(enum.StrEnum):
    """From which severity on the exit code is 1."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"


def check(
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files or folders; - is stdin. Default: the whole repository.")
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="Only print what was read, judge nothing.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(help="Judge what changed since the merge base with this ref, by this ref's policy."),
    ] = None,
    head_policy: Annotated[
        bool, typer.Option("--head-policy", help="With --base: take the policy from the working tree.")
    ] = False,
    gpu: Annotated[str | None, typer.Option(help="Card for launches whose files name none.")] = None,
    vllm_version: Annotated[
        str | None, typer.Option(help="Judge with this version, whatever the launches pin.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 from this severity on.")] = FailOn.ERROR,
    output_format: Annotated[
        CheckFormat | None, typer.Option("--format", help="How to print: text, or github inside its Actions.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(help="Write a format to a file as well: --output sarif=FILE.")
    ] = None,
    tag: Annotated[str, typer.Option(help="Name of this gate, where a repository has several.")] = "default",
    init: Annotated[
        bool, typer.Option("--init", help="Write a commented .kvplan.yaml from what is found.")
    ] = False,
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the JSON Schema of .kvplan.yaml.")
    ] = False,
    today: Annotated[
        str | None, typer.Option(help="The day that waivers are measured against, 2026-11-29.", hidden=True)
    ] = None,
) -> None:
    """Find the vLLM launches in serving configs and say which will not start, before they are merged.

    Nothing that a file brings is executed, expanded or fetched.
    """
    from pathlib import Path

    if print_schema:
        from kvplan.gate.load_policy import json_schema

        typer.echo(json_schema())
        return
    from kvplan.gate import run

    asked = run.Asked(
        here=Path.cwd(),
        paths=tuple(paths or ()),
        base=base,
        head_policy=head_policy,
        gpu=gpu,
        vllm_version=vllm_version,
        fail_on=fail_on.value,
        today=run.day(today),
        stdin=sys.stdin.buffer.read if paths == ["-"] else None,
    )
    if init:
        typer.echo(run.write_policy(asked))
        return
    if list_only:
        raise typer.Exit(_list(run.read(asked), output_format))
    from kvplan.report.check.show import default_format, parse_outputs, show

    outputs = parse_outputs(output or [])
    checked, root = run.checked(asked)
    form = default_format() if output_format is None else output_format.value
    text = show(checked, form, outputs, tag=tag, root=root)
    if text:
        typer.echo(text)
    raise typer.Exit(checked.exit_code)


def _list(found: Found, output_format: CheckFormat | None) -> int:
    from kvplan.report.check import listing

    if output_format not in {None, CheckFormat.TEXT, CheckFormat.JSON}:
        raise InputError(
            f"--list --format {output_format}: text and json only", "--format text, or --format json"
        )
    typer.echo(listing.as_json(found) if output_format is CheckFormat.JSON else listing.as_text(found))
    return 2 if not found.files_read and found.not_read else 0
