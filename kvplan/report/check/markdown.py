"""The comment on a pull request: verdict, one sentence, a table of what changed, all else folded.

Nothing is printed when no launch changed. A variable's value is printed nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import kvplan
from kvplan.report.check.fitted import Section, fit
from kvplan.report.check.launch_table import launch_lines
from kvplan.report.check.safe import code, joint_of, place_of, prose
from kvplan.report.check.words import VERDICTS, is_quiet, known_before, sentence, shown_launches

if TYPE_CHECKING:
    from kvplan.gate.result import Checked, Finding
    from kvplan.report.check.marker import Marker

HOST_LIMIT: Final = 65_536
"""Characters of a GitHub comment; GitLab takes 1,000,000."""
SUMMARY_LIMIT: Final = 900_000
"""A step's summary may have 1 MiB, in UTF-8; what is cut first is ASCII nearly throughout."""
_EXPECTED: Final = (
    "Figures are the expected values of the memory model. Only what the files say is judged; nothing was run."
)


def as_comment(checked: Checked, marker: Marker, limit: int = HOST_LIMIT) -> str:
    """The comment with its hidden first line; empty when there is nothing to post."""
    if is_quiet(checked):
        return ""
    return fit([Section([f"{marker}\n{_headline(checked)}"]), *_body(checked)], limit)


def as_summary(checked: Checked) -> str:
    """The page of a CI job, which is written also when nothing changed."""
    return fit([Section([_headline(checked)]), *_body(checked)], SUMMARY_LIMIT)


def _headline(checked: Checked) -> str:
    return f"### kvplan check {VERDICTS[checked.verdict]}: {sentence(checked)}"


def _body(checked: Checked) -> list[Section]:
    shown = shown_launches(checked)
    sections = [
        Section([launch_lines(item, checked) for item in shown], expendable=1, left_out=_LAUNCHES_OUT)
    ]
    sections.append(Section(_loose(checked), expendable=1))
    unmet = [
        f"- {_launch_reason(item.launch.path, item.launch.line, item.not_judged)}" for item in checked.unmet
    ]
    sections.append(_listed("The policy asks that these can be judged:", unmet))
    folded = (
        ("What was found", [_found(finding) for finding in checked.findings]),
        (
            _capital(known_before(checked)),
            [_found(finding) for finding in checked.old],
        ),
        ("Waived", [_waived(finding) for finding in checked.waived]),
        ("Fixed", [_found(finding) for finding in checked.fixed]),
        (
            "Not judged",
            [
                f"- {_launch_reason(item.launch.path, item.launch.line, item.not_judged)}"
                for item in checked.not_judged
            ],
        ),
        (
            "Could not be read",
            [f"- {_launch_reason(miss.path, miss.line, miss.reason)}" for miss in checked.not_read],
        ),
        (
            "Launches removed",
            [_removed(launch.path, launch.line, launch.model) for launch in checked.removed],
        ),
        ("Assumptions", _assumptions(checked)),
    )
    sections += [_folded(title, items) for title, items in folded]
    sections.append(Section([_footer(checked)]))
    return [section for section in sections if section.items]


_LAUNCHES_OUT: Final = "*{} launches left out: the host takes no longer comment*\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(title: str, items: list[str]) -> Section:
    return Section(items, before=[title, ""], expendable=2)


def _folded(title: str, items: list[str]) -> Section:
    return Section(
        items,
        before=[f"<details><summary>{title} ({len(items)})</summary>", ""],
        after=["", "</details>"],
        expendable=3,
    )


def _loose(checked: Checked) -> list[str]:
    """Findings of a file or of the policy, which have no launch to stand at."""
    return [_found(finding) for finding in checked.findings if finding.launch is None]


def _found(finding: Finding) -> str:
    place = code(place_of(finding.path, finding.line))
    text = f"- {finding.severity} {finding.rule} {finding.name} at {place}: {prose(finding.message)}"
    if finding.passes:
        text += f"; passes {joint_of(finding.passes)}{code(finding.passes)}"
    if finding.waiver is not None and finding.waiver.expired:
        text += f"; its waiver expired on {prose(finding.waiver.until)}"
    return text


def _waived(finding: Finding) -> str:
    text, waiver = _found(finding), finding.waiver
    if waiver is None:
        return text
    text += f"; waived until {prose(waiver.until)}"
    text += f" by {prose(waiver.owner)}" if waiver.owner else ""
    return f"{text}: {prose(waiver.reason)}"


def _launch_reason(path: str, line: int, reason: str | None) -> str:
    return f"{code(place_of(path, line))}: {prose(reason or '')}"


def _removed(path: str, line: int, model: str | None) -> str:
    return f"- {code(place_of(path, line))}: {code(model or 'unknown model')}"


def _assumptions(checked: Checked) -> list[str]:
    lines = [f"- {prose(note)}" for note in checked.notes]
    for item in shown_launches(checked):
        if item.assumptions:
            told = "; ".join(prose(text) for text in item.assumptions)
            lines.append(f"- {code(place_of(item.launch.path, item.launch.line))}: {told}")
    return lines


def _footer(checked: Checked) -> str:
    against = f", compared with {prose(checked.base[:12])}" if checked.base else ""
    return f"<sub>kvplan {kvplan.__version__}{against}. {_EXPECTED}</sub>"
