"""The gate's answer in one sentence, and one line a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvplan.gate.result import Checked, LaunchResult

VERDICTS: Final = {"passes": "passes", "fails": "fails", "cannot_judge": "could not judge"}


def compares(checked: Checked) -> bool:
    """Whether there is a base that the launches are held against."""
    return checked.base is not None or any(item.change is not None for item in checked.launches)


def shown_launches(checked: Checked) -> list[LaunchResult]:
    """The launches that changed; without a base, or of a finding that is new, every one that matters."""
    told = {id(finding.launch) for finding in (*checked.findings, *checked.waived)}
    if not compares(checked):
        return [item for item in checked.launches if id(item.launch) in told or item.refusal]
    told = {id(finding.launch) for finding in checked.findings}
    return [item for item in checked.launches if item.change != "unchanged" or id(item.launch) in told]


def is_quiet(checked: Checked) -> bool:
    """Whether the change has nothing to do with any launch: then nothing is posted."""
    if not compares(checked) or checked.verdict != "passes":
        return False
    return not (shown_launches(checked) or checked.findings or checked.fixed or checked.removed)


def sentence(checked: Checked) -> str:
    """How many launches changed, and in which direction."""
    total = len(checked.launches)
    if not compares(checked):
        clauses = [f"{total} {_plural(total, 'launch', 'launches')} read"]
    else:
        changed = sum(item.change in {"added", "changed"} for item in checked.launches)
        clauses = [
            f"{changed} of {total} {_plural(total, 'launch', 'launches')} changed"
            if total
            else "no launch left"
        ]
    clauses += [f"{count} {text}" for text, count in _directions(checked).items() if count]
    if checked.removed:
        clauses.append(f"{len(checked.removed)} removed")
    others = len(checked.findings)
    if others:
        clauses.append(f"{others} {_plural(others, 'finding', 'findings')}")
    if checked.waived:
        clauses.append(f"{len(checked.waived)} waived")
    if checked.not_judged:
        clauses.append(f"{len(checked.not_judged)} not judged")
    if checked.not_read:
        clauses.append(f"{len(checked.not_read)} not readable")
    return ", ".join(clauses)


def _directions(checked: Checked) -> dict[str, int]:
    counts = dict.fromkeys(
        ("no longer starts", "will not start", "starts again", "holds fewer tokens", "holds more tokens"), 0
    )
    for item in checked.launches:
        word = direction(item)
        if word is not None and item.change != "unchanged":
            counts[word] += 1
    for one, many in (
        ("no longer starts", "no longer start"),
        ("starts again", "start again"),
        ("holds fewer tokens", "hold fewer tokens"),
        ("holds more tokens", "hold more tokens"),
    ):
        if counts[one] > 1:
            counts = {many if key == one else key: count for key, count in counts.items()}
    return counts


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


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many
