"""SARIF 2.1.0, as far as GitHub code scanning reads it.

Source: OASIS SARIF 2.1.0; GitHub docs, "SARIF support for code scanning": only the first location counts; a
pull request shows a result only where all its lines are among the changed ones (a result here is the flag's
line, not the whole command); `primaryLocationLineHash` is the only fingerprint; suppressions are ignored, so
that what is waived is left out; `security-severity` would make this a security alert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import kvplan
from kvplan.report.check.identity import fingerprints
from kvplan.report.check.rule_pages import RulePage, rule_pages
from kvplan.report.check.safe import clean_path, safe_json, told_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.gate.result import Checked, Finding

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_STATES: Final = {"new": "new", "worse": "updated", "unchanged": "unchanged"}


def as_sarif(checked: Checked, *, tag: str, line_text: Callable[[str, int], str | None]) -> str:
    """The run with every finding that no waiver covers.

    Args:
        checked: what the gate found.
        tag: tells several gates of one repository apart.
        line_text: a line of a file by its path and number, without its end; None where it is not known.
    """
    pages = rule_pages()
    index = {page.id: number for number, page in enumerate(pages)}
    findings = [*checked.findings, *checked.old]
    results = [
        _result(finding, fingerprint, index, line_text, compared=checked.base is not None)
        for finding, fingerprint in zip(findings, fingerprints(findings), strict=True)
    ]
    driver = {
        "name": "kvplan",
        "semanticVersion": kvplan.__version__,
        "rules": [_rule(page) for page in pages],
    }
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"kvplan/{tag}/"},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return safe_json(log)


def _rule(page: RulePage) -> dict[str, Any]:
    return {
        "id": page.id,
        "name": "".join(word.capitalize() for word in page.name.split("-")),
        "shortDescription": {"text": page.short},
        "fullDescription": {"text": page.full},
        "help": {"text": page.full, "markdown": page.markdown},
        "defaultConfiguration": {"level": page.level},
        "properties": {"tags": ["vllm", "gpu-memory"], "precision": "high"},
    }


def _result(
    finding: Finding,
    fingerprint: str,
    index: dict[str, int],
    line_text: Callable[[str, int], str | None],
    *,
    compared: bool,
) -> dict[str, Any]:
    path = clean_path(finding.path)
    out: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": told_of(finding)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(path)},
                    "region": _region(finding, line_text(finding.path, finding.line)),
                }
            }
        ],
        "partialFingerprints": {"primaryLocationLineHash": f"{fingerprint}:1"},
    }
    if finding.rule in index:
        out["ruleIndex"] = index[finding.rule]
    if compared:
        out["baselineState"] = _STATES[finding.status]
    return out


def _region(finding: Finding, text: str | None) -> dict[str, int]:
    line, column = max(finding.line, 1), max(finding.column, 1)
    region = {"startLine": line, "startColumn": column, "endLine": line}
    if text is not None:
        # To the end of what is written there; a continuation mark is no part of the flag.
        end = len(text.rstrip().removesuffix("\\").rstrip())
        region["endColumn"] = max(end, column) + 1
    return region
