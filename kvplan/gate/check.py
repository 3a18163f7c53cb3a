"""One run of the gate: every launch judged, every rule asked, and what that comes to."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.judge import Judged, NotJudged, judge
from kvplan.gate.numbers import numbers
from kvplan.gate.redact import redact_text
from kvplan.gate.result import Checked, LaunchResult
from kvplan.gate.rules import RULES

if TYPE_CHECKING:
    from kvplan.gate.found import Found
    from kvplan.gate.result import FailOn, Finding

SCHEMA: Final = "kvplan.check/1"
_LONGEST_LINE: Final = 600


def check_launches(
    found: Found,
    *,
    gpu: str | None = None,
    vllm_version: str | None = None,
    base: Found | None = None,
    fail_on: FailOn = "error",
) -> Checked:
    """Judge every launch; with a base, what it had already is kept apart.

    Args:
        found: the launches.
        gpu: the card for launches whose files name none.
        vllm_version: judge with this version, whatever the launches pin.
        base: the launches of the base commit.
        fail_on: from which severity on the gate says no.
    """
    checked = Checked(found, fail_on=fail_on)
    for launch in found.launches:
        answer = judge(launch, gpu=gpu, vllm_version=vllm_version)
        checked.launches.append(_result(answer))
        if isinstance(answer, Judged):
            checked.findings += [item for rule in RULES if (item := rule.check(answer)) is not None]
    if base is not None:
        before = check_launches(base, gpu=gpu, vllm_version=vllm_version)
        known = {item.key for item in before.findings}
        checked.old = [
            dataclasses.replace(item, status="unchanged") for item in checked.findings if item.key in known
        ]
        checked.findings = [item for item in checked.findings if item.key not in known]
    return checked


def _result(answer: Judged | NotJudged) -> LaunchResult:
    if isinstance(answer, NotJudged):
        return LaunchResult(answer.launch, not_judged=answer.reason)
    return LaunchResult(
        answer.launch,
        now=None if answer.estimate is None else numbers(answer.estimate),
        refusal=answer.refusal,
        assumptions=answer.assumptions,
    )


def as_json(checked: Checked) -> str:
    """The run as `kvplan.check/1`."""
    document = {
        "schema": SCHEMA,
        "launches": len(checked.found.launches),
        "judged": len(checked.judged),
        "findings": [_as_dict(item) for item in checked.findings],
        "unchanged_findings": [_as_dict(item) for item in checked.old],
        "not_judged": [
            {
                "path": redact_text(item.launch.path),
                "line": item.launch.line,
                "reason": redact_text(item.not_judged or ""),
            }
            for item in checked.not_judged
        ],
        "not_read": [
            {"path": redact_text(miss.path), "line": miss.line, "reason": redact_text(miss.reason)}
            for miss in checked.found.not_read
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _as_dict(item: Finding) -> dict[str, Any]:
    return {
        "rule": item.rule,
        "severity": item.severity,
        "path": redact_text(item.path),
        "line": item.line,
        "column": item.column,
        "model": redact_text((item.launch and item.launch.model) or ""),
        "message": redact_text(item.message, _LONGEST_LINE),
        "passes": item.passes,
    }


def as_text(checked: Checked) -> str:
    """One finding a line, then what was not judged, then the count."""
    lines: list[str] = []
    for items, suffix in ((checked.findings, ""), (checked.old, " (the base has it too)")):
        for item in items:
            text = f"{item.path}:{item.line}: {item.severity} {item.rule}: {item.message}"
            lines.append(
                redact_text(text, _LONGEST_LINE)
                + (f"; passes with {item.passes}" if item.passes else "")
                + suffix
            )
    lines += [
        redact_text(f"{item.launch.path}:{item.launch.line}: not judged: {item.not_judged}", _LONGEST_LINE)
        for item in checked.not_judged
    ]
    lines += [
        redact_text(f"{miss.path}:{miss.line}: not read: {miss.reason}") for miss in checked.found.not_read
    ]
    total, judged, found = len(checked.found.launches), len(checked.judged), len(checked.findings)
    lines.append(
        f"{total} launch{'' if total == 1 else 'es'}, {judged} judged, {len(checked.not_judged)} not judged, "
        f"{found} finding{'' if found == 1 else 's'}"
    )
    return "\n".join(lines)
