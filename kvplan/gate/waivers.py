"""Waivers: findings that are accepted until a day, said in the policy or in a comment above the launch."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Final

from kvplan.errors import InputError
from kvplan.gate.globs import path_matches
from kvplan.gate.policy import SHORTEST_REASON, Waiver, refuse_long_waiver
from kvplan.gate.result import Finding, WaiverNote
from kvplan.gate.rules import IDLE_WAIVER, RULE_IDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from kvplan.gate.found import Comment, LaunchFound
    from kvplan.gate.result import Severity

_IGNORE: Final = r"ignore\s?\[([^\]]{0,200})\]\s{0,20}(.{0,300})"
_KEY: Final = r"(?:^|\s)(until|reason|owner)="
_CLOSERS: Final = ("*/ -}}", "*/ }}", "*/}}", "*/-}}", "*/", "-->")


def of_comments(
    comments: Sequence[Comment], today: dt.date, *, counts: Callable[[Comment], bool]
) -> tuple[list[Waiver], list[Finding]]:
    """The waivers that comments hold, and a finding for each comment that holds none.

    Args:
        comments: what files say to the gate.
        today: what a waiver's end is measured from.
        counts: whether a comment may waive at all; one that a pull request brings may not.
    """
    waivers: list[Waiver] = []
    wrong: list[Finding] = []
    lines = {(comment.path, comment.line) for comment in comments}
    for comment in comments:
        below = comment.line + 1
        while (comment.path, below) in lines:
            below += 1
        try:
            waiver = _parsed(comment, today)._replace(launch_line=below)
        except InputError as error:
            wrong.append(_idle(comment.path, comment.line, error.message, error.hint))
            continue
        if counts(comment):
            waivers.append(waiver)
        else:
            message = "this waiver comes with the change that it waives: it counts from the base on"
            wrong.append(_idle(comment.path, comment.line, message, "a waiver that is merged first", "note"))
    return waivers, wrong


def _parsed(comment: Comment, today: dt.date) -> Waiver:
    """`ignore[KVP006] until=2027-03-31 reason=…`.

    Raises:
        InputError: something is missing or wrong.
    """
    hint = "# kvplan: ignore[KVP001] until=2027-03-31 reason=why"
    match = re.match(_IGNORE, comment.text)
    if match is None:
        raise InputError("a comment to kvplan that is no waiver", hint)
    rules = tuple(rule.strip() for rule in match[1].split(",") if rule.strip())
    unknown = [rule for rule in rules if rule not in RULE_IDS]
    if not rules or unknown:
        raise InputError(f"a waiver for no rule: {', '.join(unknown) or 'none named'}", hint)
    parts = re.split(_KEY, _unclosed(match[2]))
    said = {key: text.strip() for key, text in zip(parts[1::2], parts[2::2], strict=True)}
    try:
        until = dt.date.fromisoformat(said.get("until", ""))
    except ValueError:
        raise InputError("a waiver without `until=` and a date", hint) from None
    if "reason" not in said:
        raise InputError("a waiver without `reason=`", hint)
    if len(said["reason"]) < SHORTEST_REASON:
        raise InputError(f"a waiver whose `reason=` has less than {SHORTEST_REASON} characters", hint)
    refuse_long_waiver(until, today, "comment")
    return Waiver(
        rules,
        comment.path,
        until,
        said["reason"],
        said.get("owner") or None,
        said_in=comment.path,
        line=comment.line,
    )


def _unclosed(text: str) -> str:
    text = text.strip()
    for closer in _CLOSERS:
        text = text.removesuffix(closer).strip()
    return text


class WaiverBook:
    """All waivers of a run, and which of them had something to waive."""

    def __init__(self, waivers: Iterable[Waiver], today: dt.date) -> None:
        self._waivers = list(waivers)
        self._today = today
        self._used: set[int] = set()

    def note_for(self, finding: Finding) -> WaiverNote | None:
        """The waiver that a finding falls under; one that holds before an expired one."""
        best: WaiverNote | None = None
        for i, waiver in enumerate(self._waivers):
            if not _covers(waiver, finding):
                continue
            self._used.add(i)
            expired = waiver.until < self._today
            if best is None or (best.expired and not expired):
                best = WaiverNote(
                    waiver.until.isoformat(),
                    waiver.reason,
                    waiver.owner,
                    expired=expired,
                    path=waiver.said_in,
                    line=waiver.line,
                )
        return best

    def idle(self, launches: Sequence[LaunchFound], *, whole: bool, silent: Collection[str]) -> list[Finding]:
        """A warning for each waiver that waived nothing, where it could have.

        Args:
            launches: what was read and judged.
            whole: whether that is the whole repository.
            silent: paths whose launches could not be judged, so that nothing can be said of their waivers.
        """
        found = []
        for i, waiver in enumerate(self._waivers):
            there = [launch for launch in launches if path_matches(waiver.path, launch.path)]
            if i in self._used or any(launch.path in silent for launch in there) or not (there or whole):
                continue
            rules = ", ".join(waiver.rules)
            where = f" for {waiver.path}" if waiver.launch_line is None else ""
            message = f"the waiver of {rules}{where} until {waiver.until} waives nothing"
            if waiver.launch_line is not None and there:
                places = ", ".join(str(launch.line) for launch in there[:4])
                message += f" on line {waiver.launch_line} (launches of the file begin on {places})"
            found.append(_idle(waiver.said_in, waiver.line, message, "without the waiver"))
        return found


def _covers(waiver: Waiver, finding: Finding) -> bool:
    if finding.rule not in waiver.rules or not path_matches(waiver.path, finding.path):
        return False
    launch = finding.launch
    if waiver.launch_line is not None:
        return waiver.launch_line in {finding.line, launch.line if launch is not None else finding.line}
    return waiver.model is None or (launch is not None and launch.model == waiver.model)


def _idle(path: str, line: int, message: str, passes: str | None, severity: Severity = "warning") -> Finding:
    rule, name = IDLE_WAIVER
    return Finding(
        rule=rule,
        name=name,
        severity=severity,
        message=message,
        passes=passes,
        path=path,
        line=line,
        column=1,
        launch=None,
        end_line=line,
    )
