"""What makes a finding the same one in the next run: its rule, file, launch and flag, never a line number."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kvplan.report.check.safe import clean_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.gate.result import Finding


def fingerprints(findings: Iterable[Finding]) -> list[str]:
    """32 hexadecimal digits each; equal findings of one run are told apart by their order."""
    seen: dict[str, int] = {}
    out: list[str] = []
    for finding in findings:
        launch = finding.launch
        parts = (
            finding.rule,
            clean_path(finding.path),
            (launch and launch.name) or "",
            (launch and launch.model) or "",
            finding.flag or "",
        )
        base = "\0".join(parts)
        count = seen[base] = seen.get(base, 0) + 1
        salted = base if count == 1 else f"{base}\0{count}"
        out.append(hashlib.sha256(salted.encode("utf-8", "replace")).hexdigest()[:32])
    return out
