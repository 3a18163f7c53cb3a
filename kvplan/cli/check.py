"""`kvplan check`: the vLLM launches of a repository."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvplan.errors import ExitCode, InputError


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
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Find the vLLM launches in serving configs, without executing or fetching anything."""
    from pathlib import Path

    from kvplan.gate import find, listing

    if output_format not in {"text", "json"}:
        raise InputError(f"--format {output_format}: unknown format", "use text or json")
    if not list_only:
        raise InputError("kvplan check judges nothing yet", "add --list to print the launches that it reads")
    here = Path.cwd()
    if paths == ["-"]:
        from kvplan.gate.found import Found
        from kvplan.gate.repo_files import DiskFiles, decode

        found = Found()
        data = sys.stdin.buffer.read()
        find.read_into(found, "-", decode(data), DiskFiles(find.repository_root(here)))
    elif base is not None:
        root = find.repository_root(here)
        found = find.read_tree(root, find.changed_files(root, find.merge_base(root, base)))
    else:
        found = find.read_paths(paths or ["."], here)
    typer.echo(listing.as_json(found) if output_format == "json" else listing.as_text(found))
    if not found.files_read and found.not_read:
        raise typer.Exit(ExitCode.CANNOT_JUDGE)
