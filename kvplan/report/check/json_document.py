"""The gate's answer as `kvplan.check/1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.redact import redact_text
from kvplan.report.check.safe import LONGEST_MESSAGE, LONGEST_PATH, safe_json

if TYPE_CHECKING:
    from kvplan.gate.result import Checked, Finding, LaunchResult, Numbers

SCHEMA: Final = "kvplan.check/1"


def as_json(checked: Checked) -> str:
    """The run as `kvplan.check/1`."""
    document = {
        "schema": SCHEMA,
        "verdict": checked.verdict,
        "exit_code": int(checked.exit_code),
        "fail_on": checked.fail_on,
        "base": checked.base,
        "upgrade_to": checked.upgrade_to,
        "launches": [_launch(item) for item in checked.launches],
        "findings": [_finding(item) for item in checked.findings],
        "unchanged_findings": [_finding(item) for item in checked.old],
        "waived_findings": [_finding(item) for item in checked.waived],
        "fixed_findings": [_finding(item) for item in checked.fixed],
        "removed_launches": [
            {
                "path": _path(item.path),
                "line": item.line,
                "model": redact_text(item.model or ""),
            }
            for item in checked.removed
        ],
        "not_read": [
            {
                "path": _path(miss.path),
                "line": miss.line,
                "reason": redact_text(miss.reason),
            }
            for miss in checked.not_read
        ],
        "notes": [redact_text(note, LONGEST_MESSAGE) for note in checked.notes],
    }
    return safe_json(document)


def _path(path: str) -> str:
    return redact_text(path, LONGEST_PATH)


def _launch(item: LaunchResult) -> dict[str, Any]:
    launch = item.launch
    return {
        "path": _path(launch.path),
        "line": launch.line,
        "name": None if launch.name is None else redact_text(launch.name),
        "model": None if launch.model is None else redact_text(launch.model),
        "format": launch.format,
        "change": item.change,
        "now": _numbers(item.now),
        "before": _numbers(item.before),
        "refusal": None if item.refusal is None else redact_text(item.refusal, LONGEST_MESSAGE),
        "not_judged": None if item.not_judged is None else redact_text(item.not_judged, LONGEST_MESSAGE),
        "must_be_judged": item.must_be_judged,
        "assumptions": [redact_text(text, LONGEST_MESSAGE) for text in item.assumptions],
    }


def _numbers(found: Numbers | None) -> dict[str, Any] | None:
    return None if found is None else found._asdict()


def _finding(item: Finding) -> dict[str, Any]:
    launch = item.launch
    return {
        "rule": item.rule,
        "name": item.name,
        "severity": item.severity,
        "status": item.status,
        "path": _path(item.path),
        "line": item.line,
        "end_line": item.end_line or item.line,
        "column": item.column,
        "model": None if launch is None or launch.model is None else redact_text(launch.model),
        "flag": None if item.flag is None else redact_text(item.flag),
        "message": redact_text(item.message, LONGEST_MESSAGE),
        "passes": None if item.passes is None else redact_text(item.passes, LONGEST_MESSAGE),
        "seen": None if item.seen is None else redact_text(item.seen),
        "before": None if item.before is None else redact_text(item.before),
        "limit": None if item.limit is None else redact_text(item.limit),
        "waiver": None
        if item.waiver is None
        else {
            "until": item.waiver.until,
            "reason": redact_text(item.waiver.reason),
            "owner": None if item.waiver.owner is None else redact_text(item.waiver.owner),
            "expired": item.waiver.expired,
        },
    }
