"""GitLab's Code Quality report: a JSON array, empty when there is nothing to say.

GitLab compares the report with the target branch's by fingerprint: what the base has too belongs in it.
Source: GitLab docs, "Code Quality", report format (Code Climate's, a subset).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.report.check.identity import fingerprints
from kvplan.report.check.safe import clean_path, safe_json, told_of

if TYPE_CHECKING:
    from kvplan.gate.result import Checked

_SEVERITIES: Final = {"error": "critical", "warning": "minor", "note": "info"}


def as_code_quality(checked: Checked) -> str:
    """Every finding that no waiver covers. GitLab does not show `check_name`: the rule stands in front."""
    findings = [*checked.findings, *checked.old]
    report = [
        {
            "description": f"{finding.rule}: {told_of(finding)}",
            "check_name": finding.rule,
            "fingerprint": fingerprint,
            "severity": _SEVERITIES[finding.severity],
            "location": {"path": clean_path(finding.path), "lines": {"begin": finding.line}},
        }
        for finding, fingerprint in zip(findings, fingerprints(findings), strict=True)
    ]
    return safe_json(report)
