"""The gate's answer as plain text and as `kvplan.check/1`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.redact import redact_text

if TYPE_CHECKING:
    from kvplan.gate.result import Checked, Finding, LaunchResult, Numbers

SCHEMA: Final = "kvplan.check/1"
_LONGEST_LINE: Final = 600


def as_json(checked: Checked) -> str:
    """The run as `kvplan.check/1`."""
    document = {
        "schema": SCHEMA,
        "verdict": checked.verdict,
        "exit_code": int(checked.exit_code),
        "fail_on": checked.fail_on,
        "base": checked.base,
        "launches": [_launch(item) for item in checked.launches],
        "findings": [_finding(item) for item in checked.findings],
        "unchanged_findings": [_finding(item) for item in checked.old],
        "waived_findings": [_finding(item) for item in checked.waived],
        "fixed_findings": [_finding(item) for item in checked.fixed],
        "removed_launches": [
            {"path": redact_text(item.path), "line": item.line, "model": redact_text(item.model or "")}
            for item in checked.removed
        ],
        "not_read": [
            {"path": redact_text(miss.path), "line": miss.line, "reason": redact_text(miss.reason)}
            for miss in checked.not_read
        ],
        "notes": [redact_text(note, _LONGEST_LINE) for note in checked.notes],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _launch(item: LaunchResult) -> dict[str, Any]:
    launch = item.launch
    return {
        "path": redact_text(launch.path),
        "line": launch.line,
        "name": None if launch.name is None else redact_text(launch.name),
        "model": None if launch.model is None else redact_text(launch.model),
        "format": launch.format,
        "change": item.change,
        "now": _numbers(item.now),
        "before": _numbers(item.before),
        "refusal": None if item.refusal is None else redact_text(item.refusal, _LONGEST_LINE),
        "not_judged": None if item.not_judged is None else redact_text(item.not_judged, _LONGEST_LINE),
        "must_be_judged": item.must_be_judged,
        "assumptions": [redact_text(text, _LONGEST_LINE) for text in item.assumptions],
    }


def _numbers(found: Numbers | None) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) for name in found.__slots__}


def _finding(item: Finding) -> dict[str, Any]:
    launch = item.launch
    return {
        "rule": item.rule,
        "name": item.name,
        "severity": item.severity,
        "status": item.status,
        "path": redact_text(item.path),
        "line": item.line,
        "end_line": item.end_line or item.line,
        "column": item.column,
        "model": None if launch is None or launch.model is None else redact_text(launch.model),
        "flag": item.flag,
        "message": redact_text(item.message, _LONGEST_LINE),
        "passes": None if item.passes is None else redact_text(item.passes, _LONGEST_LINE),
        "seen": item.seen,
        "before": item.before,
        "limit": item.limit,
        "waiver": None
        if item.waiver is None
        else {
            "until": item.waiver.until,
            "reason": redact_text(item.waiver.reason),
            "owner": None if item.waiver.owner is None else redact_text(item.waiver.owner),
            "expired": item.waiver.expired,
        },
    }


def as_text(checked: Checked) -> str:
    """One finding a line, then what was waived, changed and not judged, then the count."""
    lines = [_line(item) for item in checked.findings]
    lines += [f"{_line(item)} (the base has it too)" for item in checked.old]
    lines += [_line(item) for item in checked.waived]
    lines += [
        redact_text(f"{item.path}:{item.line}: fixed {item.rule}: {item.message}", _LONGEST_LINE)
        for item in checked.fixed
    ]
    lines += [line for item in checked.launches if (line := _change(item)) is not None]
    for item in checked.not_judged:
        text = f"{item.launch.path}:{item.launch.line}: not judged: {item.not_judged}"
        lines.append(
            redact_text(text, _LONGEST_LINE)
            + (" (the policy requires that it is)" if item.must_be_judged else "")
        )
    lines += [redact_text(f"{miss.path}:{miss.line}: not read: {miss.reason}") for miss in checked.not_read]
    lines += [redact_text(note, _LONGEST_LINE) for note in checked.notes]
    total, judged, found = len(checked.launches), len(checked.judged), len(checked.findings)
    new = "" if checked.base is None else "new "
    waived = f", {len(checked.waived)} waived" if checked.waived else ""
    lines.append(
        f"{total} launch{'' if total == 1 else 'es'}, {judged} judged, {len(checked.not_judged)} not judged, "
        f"{found} {new}finding{'' if found == 1 else 's'}{waived}"
    )
    return "\n".join(lines)


def _line(item: Finding) -> str:
    text = f"{item.path}:{item.line}: {item.severity} {item.rule}: {item.message}"
    text = redact_text(text, _LONGEST_LINE)
    if item.passes:
        joint = "" if item.passes.startswith("without") else "with "
        text += redact_text(f"; passes {joint}{item.passes}", _LONGEST_LINE)
    waiver = item.waiver
    if waiver is None:
        return text
    said = f"waiver expired on {waiver.until}" if waiver.expired else f"waived until {waiver.until}"
    return text + redact_text(f" ({said}: {waiver.reason})")


def _change(item: LaunchResult) -> str | None:
    """What a change does to a launch, in one line; None where nothing can be compared or nothing changed."""
    now, before = item.now, item.before
    if now is None or before is None or item.change != "changed":
        return None
    parts = [f"KV tokens {before.kv_tokens:,} -> {now.kv_tokens:,}"]
    if before.kv_tokens > 0:
        parts[0] += f" ({100 * (now.kv_tokens / before.kv_tokens - 1):+.1f} %)"
    if before.max_requests != now.max_requests or before.max_model_len != now.max_model_len:
        parts.append(
            f"requests of max_model_len {before.max_requests} of {before.max_model_len:,} -> "
            f"{now.max_requests} of {now.max_model_len:,}"
        )
    if before.num_gpus != now.num_gpus:
        parts.append(f"GPUs {before.num_gpus} -> {now.num_gpus}")
    if before.usd_per_hour is not None and now.usd_per_hour is not None and before.num_gpus != now.num_gpus:
        parts.append(f"USD an hour {before.usd_per_hour:.2f} -> {now.usd_per_hour:.2f}")
    return redact_text(f"{item.launch.path}:{item.launch.line}: {', '.join(parts)}", _LONGEST_LINE)
