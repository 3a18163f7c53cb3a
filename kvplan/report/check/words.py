"""The gate's answer in one sentence, and one line a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.report.check.safe import clean

if TYPE_CHECKING:
    from kvplan.gate.result import Checked, LaunchResult

VERDICTS: Final = {"passes": "passes", "fails": "fails", "cannot_judge": "could not judge"}
_DIRECTIONS: Final = {
    "no longer starts": "no longer start",
    "will not start": "will not start",
    "starts again": "start again",
    "holds fewer tokens": "hold fewer tokens",
    "holds more tokens": "hold more tokens",
}
"""What became of one launch, and of several."""


def compares(checked: Checked) -> bool:
    """Whether there is a base that the launches are held against."""
    return checked.base is not None or any(item.change is not None for item in checked.launches)


def known_before(checked: Checked) -> str:
    """What is said of a finding that is no news."""
    return "the base has it too" if checked.upgrade_to is None else "with the pinned vLLM too"


def upgrade_told(checked: Checked) -> str:
    """How many launches another vLLM breaks: with an error that their own release does not have.

    A launch that pins none has nothing that could break: what is wrong with it may be wrong with any release.
    """
    release, alone = clean(checked.upgrade_to or ""), pinning_none(checked)
    pinned = "pinned " if alone else ""
    broken = {id(one.launch) for one in checked.findings if one.launch and one.severity == "error"} - alone
    total = len(checked.launches) - len(alone)
    if broken:
        return f"vLLM {release} breaks {len(broken)} of {total} {pinned}launch{'' if total == 1 else 'es'}"
    judged = sum(id(item.launch) not in alone for item in checked.judged)
    if not judged:
        return f"nothing can be said of vLLM {release}"
    return f"vLLM {release} breaks none of {judged} judged {pinned}launch{'' if judged == 1 else 'es'}"


def pinning_none(checked: Checked) -> set[int]:
    """The `id` of launches that an upgrade finds without a counterpart: they pin no release."""
    if checked.upgrade_to is None:
        return set()
    return {id(item.launch) for item in checked.launches if item.change == "added"}


def shown_launches(checked: Checked) -> list[LaunchResult]:
    """The launches that have a table: those that changed, and those that something is found of."""
    told = {id(finding.launch) for finding in checked.findings}
    if compares(checked):
        return [item for item in checked.launches if item.change != "unchanged" or id(item.launch) in told]
    told |= {id(finding.launch) for finding in checked.waived}
    return [item for item in checked.launches if id(item.launch) in told]


def is_quiet(checked: Checked) -> bool:
    """Whether the change has nothing to do with any launch: then nothing is posted."""
    if not compares(checked) or checked.verdict != "passes":
        return False
    changed = shown_launches(checked) or checked.findings or checked.fixed or checked.removed
    return not (changed or checked.not_read)


def sentence(checked: Checked) -> str:
    """How many launches changed, and in which direction."""
    clauses = [_how_many(checked), *_directions(checked)]
    for items, text in (
        (checked.removed, "removed"),
        (checked.findings, "finding" if len(checked.findings) == 1 else "findings"),
        (checked.waived, "waived"),
        (checked.not_judged, "not judged"),
        (checked.not_read, "not readable"),
    ):
        if items:
            clauses.append(f"{len(items)} {text}")
    return ", ".join(clauses)


def _how_many(checked: Checked) -> str:
    total = len(checked.launches)
    launches = "launch" if total == 1 else "launches"
    if checked.upgrade_to is not None:
        return upgrade_told(checked)
    if not compares(checked):
        return f"{total} {launches} read"
    changed = sum(item.change in {"added", "changed"} for item in checked.launches)
    return f"{changed} of {total} {launches} changed"


def _directions(checked: Checked) -> list[str]:
    changed = [item for item in checked.launches if item.change != "unchanged"]
    clauses = []
    for one, several in _DIRECTIONS.items():
        items = [item for item in changed if direction(item) == one]
        if len(items) == 1:
            clauses.append(f"1 {one}{_by_how_much(items[0])}")
        elif items:
            clauses.append(f"{len(items)} {several}")
    return clauses


def _by_how_much(item: LaunchResult) -> str:
    now, before = item.now, item.before
    if now is None or before is None or not before.kv_tokens or "no" in {now.starts, before.starts}:
        return ""
    return f" ({percent_change(before.kv_tokens, now.kv_tokens)})"


def percent_change(before: int, now: int, digits: int = 0) -> str:
    """By how much it rose or fell, in percent with its sign; what rounds to nothing has none."""
    rounded = round(100 * (now / before - 1), digits)
    return f"{rounded:+.{digits}f} %" if rounded else f"{0:.{digits}f} %"


def direction(item: LaunchResult) -> str | None:
    """What became of a launch, in a few words; None when it serves what it served."""
    now, before = item.now, item.before
    refused = item.refusal is not None
    if now is None and not refused:
        return None
    starts = now is not None and now.starts != "no"
    if not starts:
        return "no longer starts" if before is not None and before.starts != "no" else "will not start"
    if before is None or now is None:
        return None
    if before.starts == "no":
        return "starts again"
    if now.kv_tokens != before.kv_tokens:
        return "holds fewer tokens" if now.kv_tokens < before.kv_tokens else "holds more tokens"
    return None
