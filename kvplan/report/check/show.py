"""One answer in as many forms as are asked for: on stdout, and in files."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvplan.gate.result import Checked

FORMATS: Final = ("text", "json", "markdown", "github", "gitlab", "sarif", "junit")


def default_format() -> str:
    """Annotations in a step of GitHub Actions, else plain text."""
    return "github" if os.environ.get("GITHUB_ACTIONS") == "true" else "text"


def parse_outputs(texts: Sequence[str]) -> list[tuple[str, Path]]:
    """`sarif=out.sarif` as a format and a file.

    Raises:
        InputError: an unknown format, or no file.
    """
    outputs = []
    for text in texts:
        form, equals, name = text.partition("=")
        if form not in FORMATS or not equals or not name:
            raise InputError(f"--output {text}: not FORMAT=FILE", f"formats: {', '.join(FORMATS)}")
        outputs.append((form, Path(name)))
    return outputs


def show(checked: Checked, form: str, outputs: Sequence[tuple[str, Path]], *, tag: str, root: Path) -> str:
    """Write the files, and give the text for stdout.

    In the format `github` the annotations go to stderr, where the runner reads them too, and the page of the
    job is appended to the file that GITHUB_STEP_SUMMARY names.

    Raises:
        InputError: a file that cannot be written.
    """
    for wanted, path in outputs:
        text = render(checked, wanted, tag=tag, root=root).rstrip("\n")
        write(path, f"{text}\n" if text else "", "w")
    if form != "github":
        return render(checked, form, tag=tag, root=root).rstrip("\n")
    from kvplan.report.check.markdown import as_summary

    if commands := render(checked, "github", tag=tag, root=root):
        sys.stderr.write(commands + "\n")
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        write(Path(summary), as_summary(checked) + "\n", "a")
    return render(checked, "text", tag=tag, root=root)


def render(checked: Checked, form: str, *, tag: str, root: Path) -> str:
    """The answer in one format."""
    if form == "sarif":
        from kvplan.report.check.sarif import as_sarif

        return as_sarif(checked, tag=tag, line_text=_lines_below(root))
    if form == "markdown":
        from kvplan.report.check.markdown import as_comment
        from kvplan.report.check.marker import new_marker

        return as_comment(checked, new_marker(tag))
    return _renderer(form)(checked)


def _renderer(form: str) -> Callable[[Checked], str]:
    if form == "github":
        from kvplan.report.check.github import as_commands

        return as_commands
    if form == "gitlab":
        from kvplan.report.check.gitlab import as_code_quality

        return as_code_quality
    if form == "junit":
        from kvplan.report.check.junit import as_junit

        return as_junit
    if form == "json":
        from kvplan.report.check.json_document import as_json

        return as_json
    from kvplan.report.check.text import as_text

    return as_text


def write(path: Path, text: str, mode: str) -> None:
    """Write the text.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with path.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror})", "name a file in a folder that is there"
        ) from error


def _lines_below(root: Path) -> Callable[[str, int], str | None]:
    """Lines of the working tree's files, read as the gate reads them: nothing outside, no links followed."""
    from kvplan.gate.repo_files import DiskFiles

    files = DiskFiles(root)
    texts: dict[str, list[str]] = {}

    def line_text(path: str, line: int) -> str | None:
        if path not in texts:
            text = files.read(path) if path != "-" else None
            texts[path] = [] if text is None else text.split("\n")
        lines = texts[path]
        return lines[line - 1] if 0 < line <= len(lines) else None

    return line_text
