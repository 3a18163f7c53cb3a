"""Workflow commands of GitHub Actions: annotations on the lines of a pull request.

Source: GitHub, "Workflow commands for GitHub Actions" (escapes) and "Usage limits" (10 errors and 10 warnings
a step are shown).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.report.check.safe import clean, clean_path, told_of

if TYPE_CHECKING:
    from kvplan.gate.found import NotRead
    from kvplan.gate.result import Checked, Finding, LaunchResult

MOST_OF_A_KIND: Final = 10
_COMMANDS: Final = {"error": "error", "warning": "warning", "note": "notice"}


def as_commands(checked: Checked) -> str:
    """The annotations, errors first; what had to be judged or read and could not be is an error too."""
    lines: dict[str, list[str]] = {"error": [], "warning": [], "note": []}
    for finding in checked.findings:
        lines[finding.severity].append(_command(finding))
    lines["error"] += [_unmet(item) for item in checked.unmet]
    must_read = checked.not_read if checked.found.nothing_read else checked.must_read
    lines["error"] += [_unread("error", miss) for miss in must_read]
    # Of a whole tree it would be said at every run, of files that nobody touched.
    if checked.base is not None:
        lines["note"] += [_unread("notice", miss) for miss in checked.not_read if miss not in must_read]
    out: list[str] = []
    left_out = 0
    for of_one_kind in lines.values():
        out += of_one_kind[:MOST_OF_A_KIND]
        left_out += len(of_one_kind[MOST_OF_A_KIND:])
    if left_out:
        out.append(f"kvplan check: {left_out} more; the job summary lists all of them")
    return "\n".join(out)


def _command(finding: Finding) -> str:
    return command(
        _COMMANDS[finding.severity],
        told_of(finding),
        file=clean_path(finding.path),
        line=finding.line,
        endLine=max(finding.end_line, finding.line),
        title=f"{finding.rule} {finding.name}",
    )


def _unmet(item: LaunchResult) -> str:
    launch = item.launch
    return command(
        "error",
        f"could not be judged, and the policy asks for it: {clean(item.not_judged or '')}",
        file=clean_path(launch.path),
        line=launch.line,
        endLine=launch.line,
        title="kvplan check: not judged",
    )


def _unread(kind: str, miss: NotRead) -> str:
    return command(
        kind,
        f"could not be read: {clean(miss.reason)}",
        file=clean_path(miss.path),
        line=miss.line,
        endLine=miss.line,
        title="kvplan check: not readable",
    )


def command(name: str, message: str, **properties: str | int) -> str:
    """One workflow command, with everything in it escaped."""
    settings = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{name} {settings}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
