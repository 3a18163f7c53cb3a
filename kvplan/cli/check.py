"""`kvplan check`: the vLLM launches of a repository, read and judged."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.gate.run import Asked


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
    """Judge the vLLM launches in serving configs before a merge.

    Says which will not start, and why. Nothing that a file brings is executed, expanded or fetched.
    """
    from pathlib import Path

    if print_schema:
        _refuse_outputs(output, "--print-schema")
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
        stdin=_stdin if paths == ["-"] else None,
    )
    from kvplan.report.check.show import default_format, parse_outputs, show

    outputs = parse_outputs(output or [])
    if init:
        _refuse_outputs(output, "--init")
        typer.echo(run.write_policy(asked))
        return
    if list_only:
        raise typer.Exit(_list(asked, output_format, outputs))
    checked, root = run.checked(asked)
    form = default_format() if output_format is None else output_format.value
    text = show(checked, form, outputs, tag=tag, root=root)
    if text:
        typer.echo(text)
    raise typer.Exit(checked.exit_code)


def _refuse_outputs(output: list[str] | None, option: str) -> None:
    if output:
        raise InputError(f"--output with {option}: nothing is judged that could be written", "leave it out")


def _stdin(most: int) -> bytes:
    if sys.stdin is None:
        raise InputError("-: stdin is closed", "pipe what is to be judged into kvplan, or name a file")
    return sys.stdin.buffer.read(most)


def _list(asked: Asked, output_format: CheckFormat | None, outputs: list[tuple[str, Path]]) -> int:
    from kvplan.gate import run
    from kvplan.report.check import listing
    from kvplan.report.check.show import write

    forms = {"text": listing.as_text, "json": listing.as_json}
    shown = "text" if output_format is None else output_format.value
    for option, form in (("--format", shown), *(("--output", form) for form, _ in outputs)):
        if form not in forms:
            raise InputError(
                f"--list {option} {form}: text and json only", f"{option} text, or {option} json"
            )
    found = run.read(asked)
    for form, path in outputs:
        write(path, forms[form](found) + "\n", "w")
    typer.echo(forms[shown](found))
    return 2 if found.nothing_read else 0
