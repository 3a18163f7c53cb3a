"""`kvplan check`: the vLLM launches of a repository, read and judged."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

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
        str | None, typer.Option(help="Read only what changed since the merge base with this ref.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Card for launches whose files name none.")] = None,
    vllm_version: Annotated[
        str | None, typer.Option(help="Judge with this version, whatever the launches pin.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 from this severity on.")] = FailOn.ERROR,
    output_format: Annotated[
        CheckFormat | None,
        typer.Option("--format", help="How to print. Default: text; github in a step of GitHub Actions."),
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(metavar="FORMAT=FILE", help="Write a file too; may be repeated.")
    ] = None,
    tag: Annotated[str, typer.Option(help="Tells several gates of one pull request apart.")] = "default",
) -> None:
    """Find the vLLM launches in serving configs and say which will not start, before they are merged.

    Nothing that a file brings is executed, expanded or fetched.
    """
    from pathlib import Path

    from kvplan.gate import find, listing
    from kvplan.report.check import show

    outputs = show.parse_outputs(output or [])
    here = Path.cwd()
    before: Found | None = None
    if paths == ["-"]:
        found = _stdin(here)
    elif base is not None:
        if paths:
            raise InputError("--base and paths together", "--base reads what changed; leave the paths out")
        root = find.repository_root(here)
        commit = find.merge_base(root, base)
        names = find.changed_files(root, commit)
        found = find.read_tree(root, names)
        before = None if list_only else find.read_commit(root, commit, names)
    else:
        found = find.read_paths(paths or ["."], here)
    as_json = output_format is CheckFormat.JSON
    if list_only:
        typer.echo(listing.as_json(found) if as_json else listing.as_text(found))
        raise typer.Exit(2 if not found.files_read and found.not_read else 0)
    from kvplan.gate import check as gate

    checked = gate.check_launches(
        found, gpu=gpu, vllm_version=vllm_version, base=before, fail_on=fail_on.value
    )
    form = output_format.value if output_format else show.default_format()
    if text := show.show(checked, form, outputs, tag=tag, root=find.repository_root(here)):
        typer.echo(text)
    raise typer.Exit(checked.exit_code)


def _stdin(here: Path) -> Found:
    from kvplan.gate import find
    from kvplan.gate.found import Found as FoundType
    from kvplan.gate.repo_files import DiskFiles, decode

    found = FoundType()
    files = DiskFiles(find.repository_root(here))
    find.read_into(found, "-", decode(sys.stdin.buffer.read()), files)
    return found
