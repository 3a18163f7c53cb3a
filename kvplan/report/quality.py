"""The verdict on a quantised KV cache's answers, as one line and as rows of a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.quality.judge import Measure, NeedleResult, QualityVerdict
    from kvplan.tune.answers import QualityFinding

HEADER: Final = ("answers", "KV", "repeat", "changed", "beyond, 95 %", "limit", "verdict")
LEFT: Final = (0, 1, 6)
"""Columns that are text."""
_NAMES: Final = {
    "log-probability": "log-probability moves, nat",
    "perplexity": "perplexity",
    "top token": "another likeliest token",
    "first token": "answers that part at once",
    "greedy steps": "greedy steps move, nat",
}


def quality_line(finding: QualityFinding) -> str:
    """The verdict in one sentence."""
    verdict = finding.verdict
    against = "" if finding.base_trial is None else f" against trial {finding.base_trial}"
    line = f"{finding.kv_cache_dtype} (trial {finding.trial}{against}): {verdict.outcome}: {verdict.reason}"
    if verdict.outcome == "passes" and not verdict.is_above_noise:
        line += "; it differs no more from the unquantised cache than a repeat does"
    return line + _extent(verdict)


def _extent(verdict: QualityVerdict) -> str:
    """How much was compared, for whoever wants to know what the verdict does not cover."""
    text = next((m for m in verdict.measures if m.name == "log-probability"), None)
    steps = next((m for m in verdict.measures if m.name == "greedy steps"), None)
    if text is None or steps is None or verdict.needles is None:
        return ""
    needles = f"facts in up to {verdict.needles.context_tokens:,} tokens"
    return f". Compared: {text.tokens:,} tokens of text, {steps.tokens:,} greedy steps, {needles}"


def quality_rows(findings: Sequence[QualityFinding]) -> list[tuple[str, ...]]:
    """One row for each measure of each quantised cache."""
    rows = []
    for finding in findings:
        verdict = finding.verdict
        dtype = finding.kv_cache_dtype
        rows += [_measure_row(measure, dtype) for measure in verdict.measures]
        if verdict.needles is not None:
            rows.append(_needle_row(verdict.needles, dtype))
    return rows


def _measure_row(measure: Measure, dtype: str) -> tuple[str, ...]:
    def shown(value: float | None) -> str:
        if value is None:
            return "n/a"
        if measure.name == "perplexity":
            return f"{100 * math.expm1(value):+.2f} %"
        return f"{100 * value:.2f} %" if measure.unit == "share" else f"{value:.4f}"

    return (
        _NAMES[measure.name],
        dtype,
        shown(measure.repeat),
        shown(measure.value),
        "n/a" if measure.low is None else f"{shown(measure.low)} to {shown(measure.high)}",
        shown(measure.limit),
        measure.outcome,
    )


def _needle_row(needles: NeedleResult, dtype: str) -> tuple[str, ...]:
    possible = "n/a" if needles.loss_high is None else f"loss <= {needles.loss_high:.0%}"
    return (
        f"facts found, of {needles.asked}",
        dtype,
        f"{needles.stable}",
        f"{needles.quantised} of them",
        possible,
        "none lost",
        needles.outcome,
    )
