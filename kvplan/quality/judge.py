"""Does a quantised KV cache answer like the unquantised one? From two samples to a verdict. Pure.

Every measure is a mean over the tokens of a passage, compared passage by passage with what repeating the
unquantised server's own measurement moved (the noise floor); the passages are the independent samples, the
tokens within one are not. Limits and their sources: docs/quality.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.quality.sample import QualitySample, Run, Step, TextScore

Outcome = Literal["passes", "fails", "undecided"]
NeedleOutcome = Literal["passes", "fails", "undecided", "not informative"]

CONFIDENCE: Final = 0.95
LOGPROB_LIMIT: Final = 0.1
"""Nat by which a token's log-probability may move in the mean, beyond the noise floor."""
PERPLEXITY_LIMIT: Final = 0.01
"""Nat by which the passages may become less probable in the mean: 1 % of perplexity."""
TOP_TOKEN_LIMIT: Final = 0.05
"""Share of places in which another token may be the most probable one, beyond the noise floor."""
NEEDLE_LOSS: Final = 0.05
"""Share of facts whose loss is still called acceptable; more, shown at 95 %, fails."""
INFORMATIVE: Final = 0.8
"""Share of the facts that the unquantised cache must give back, twice, for the test to say anything."""
_FEWEST_TEXTS: Final = 6
"""Passages in which greedy answers can be compared; below that the steps decide nothing."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of the quantised cache beside the same figure of the repeat."""

    name: Literal["log-probability", "perplexity", "top token", "greedy steps"]
    unit: Literal["nat", "share"]
    repeat: float
    """Mean over the passages, unquantised against its own repeat: the noise floor."""
    value: float
    """Mean over the passages, unquantised against quantised."""
    low: float | None
    """95 % interval (paired t over the passages) of what lies beyond the noise floor."""
    high: float | None
    limit: float
    outcome: Outcome
    passages: int
    tokens: int
    """Places that were compared."""


@dataclass(frozen=True, slots=True)
class NeedleResult:
    """Facts given back, of those hidden."""

    asked: int
    context_tokens: int
    """Longest prompt that they lay in: of longer ones the test says nothing."""
    base: int
    stable: int
    """Given back by the unquantised cache both times."""
    quantised: int
    """Of the stable ones."""
    loss_high: float | None
    """Highest share of losses that the count leaves possible (one-sided, 95 %)."""
    outcome: NeedleOutcome


@dataclass(frozen=True, slots=True)
class QualityVerdict:
    """Whether a quantised KV cache may win."""

    outcome: Outcome
    reason: str
    """What decided it."""
    is_above_noise: bool
    """Whether the quantised cache differs from the unquantised one by more than a repeat does."""
    measures: tuple[Measure, ...] = ()
    needles: NeedleResult | None = None


def judge(base: QualitySample | None, quantised: QualitySample | None) -> QualityVerdict:
    """The verdict on a quantised cache from the unquantised server's sample and its own."""
    for sample, whose in ((base, "unquantised"), (quantised, "quantised")):
        if sample is None:
            return _undecided(f"the answers of the {whose} cache were not looked at")
        if sample.error is not None:
            return _undecided(f"the answers of the {whose} cache could not be looked at: {sample.error}")
    if (
        base is None
        or quantised is None
        or base.first is None
        or base.repeat is None
        or quantised.first is None
    ):
        return _undecided("a measurement is incomplete")
    if base.prompts != quantised.prompts:
        return _undecided("the two servers were not asked the same: their tokenizers or max_model_len differ")
    first, repeat, other = base.first, base.repeat, quantised.first
    measures = (
        _beyond(
            "log-probability",
            "nat",
            _logprob_moves(first, repeat),
            _logprob_moves(first, other),
            LOGPROB_LIMIT,
        ),
        _beyond("perplexity", "nat", _losses(first, repeat), _losses(first, other), PERPLEXITY_LIMIT),
        _beyond(
            "top token", "share", _top_changes(first, repeat), _top_changes(first, other), TOP_TOKEN_LIMIT
        ),
        _beyond("greedy steps", "nat", _step_moves(first, repeat), _step_moves(first, other), LOGPROB_LIMIT),
    )
    needles = _needles(base.context_tokens, first.needles, repeat.needles, other.needles)
    outcome, reason = _outcome(measures, needles)
    if _left_no_trace(first, other):
        outcome, reason = (
            "undecided",
            "not one number differs: nothing shows that the quantised cache was read",
        )
    above = any(m.low is not None and m.low > 0 for m in measures if m.name != "perplexity")
    return QualityVerdict(outcome, reason, above, measures, needles)


def _undecided(reason: str) -> QualityVerdict:
    return QualityVerdict("undecided", reason, is_above_noise=False)


def _outcome(measures: Sequence[Measure], needles: NeedleResult) -> tuple[Outcome, str]:
    """The worst of all parts: everything must pass, one failure is enough."""
    for measure in measures:
        if measure.outcome == "fails":
            return "fails", f"{measure.name}: beyond the limit at 95 %"
    if needles.outcome == "fails":
        return "fails", f"{needles.stable - needles.quantised} of {needles.stable} hidden facts were lost"
    for measure in measures:
        if measure.outcome == "undecided":
            return (
                "undecided",
                f"{measure.name}: the interval contains the limit, or too little could be compared",
            )
    if needles.outcome == "not informative":
        hidden = (
            f"{needles.base} of {needles.asked} hidden facts" if needles.asked else "no room to hide facts"
        )
        return "undecided", f"the needle test says nothing: {hidden}, with the unquantised cache"
    if needles.outcome == "undecided":
        return "undecided", f"{needles.stable - needles.quantised} of {needles.stable} hidden facts were lost"
    return "passes", "every measure is within its limit at 95 %, and no hidden fact was lost"


Places = list[list[float]]
"""One list of differences a passage; empty where nothing can be compared."""


def _logprob_moves(one: Run, other: Run) -> Places:
    return [
        [abs(a - b) for a, b in zip(t.logprobs, u.logprobs, strict=True)]
        for t, u in zip(one.texts, other.texts, strict=True)
    ]


def _losses(one: Run, other: Run) -> Places:
    return [
        [a - b for a, b in zip(t.logprobs, u.logprobs, strict=True)]
        for t, u in zip(one.texts, other.texts, strict=True)
    ]


def _top_changes(one: Run, other: Run) -> Places:
    return [
        [float(a != b) for a, b in zip(t.top_tokens, u.top_tokens, strict=True)]
        for t, u in zip(one.texts, other.texts, strict=True)
    ]


def _step_moves(one: Run, other: Run) -> Places:
    return [_steps_together(t, u) for t, u in zip(one.texts, other.texts, strict=True)]


def _steps_together(one: TextScore, other: TextScore) -> list[float]:
    """Moves of the decode steps that both took after the same tokens, up to and with the first that differs.

    The first token comes from the prompt's own pass and is no decode step.
    """
    moves: list[float] = []
    for number, (a, b) in enumerate(zip(one.steps, other.steps, strict=True)):
        if number:
            moves.append(abs(a.logprob - _logprob_of(a.token, b)))
        if a.token != b.token:
            break
    return moves


def _logprob_of(token: int, step: Step) -> float:
    """Of the chosen token or the second; of any other at most the second's, which understates the move."""
    return step.logprob if token == step.token else step.second_logprob


def _beyond(
    name: Literal["log-probability", "perplexity", "top token", "greedy steps"],
    unit: Literal["nat", "share"],
    repeat: Places,
    changed: Places,
    limit: float,
) -> Measure:
    """What the change moved beyond the repeat, passage by passage, against the limit."""
    pairs = [(_mean(r), _mean(c), len(c)) for r, c in zip(repeat, changed, strict=True) if r and c]
    low, high = _interval([c - r for r, c, _ in pairs])
    outcome: Outcome = "undecided"
    if low is not None and high is not None and len(pairs) >= _FEWEST_TEXTS:
        outcome = "passes" if high <= limit else "fails" if low > limit else "undecided"
    return Measure(
        name=name,
        unit=unit,
        repeat=_mean([r for r, _, _ in pairs]),
        value=_mean([c for _, c, _ in pairs]),
        low=low,
        high=high,
        limit=limit,
        outcome=outcome,
        passages=len(pairs),
        tokens=sum(n for _, _, n in pairs),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's 95 % interval of the mean; None below two values."""
    if len(values) < 2:
        return None, None
    if len({*values}) == 1:
        return values[0], values[0]
    from scipy import stats

    found = stats.ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    return float(found.low), float(found.high)


def _needles(
    context: int, base: Sequence[bool], repeat: Sequence[bool], other: Sequence[bool]
) -> NeedleResult:
    """Losses among the facts that the unquantised cache gives back both times."""
    stable = [c for a, b, c in zip(base, repeat, other, strict=True) if a and b]
    kept = sum(stable)
    asked = len(base)
    if not base or len(stable) < INFORMATIVE * asked:
        return NeedleResult(asked, context, sum(base), len(stable), kept, None, "not informative")
    from scipy import stats

    lost = len(stable) - kept
    tested = stats.binomtest(lost, len(stable), NEEDLE_LOSS, alternative="greater")
    high = stats.binomtest(lost, len(stable), alternative="less").proportion_ci(CONFIDENCE).high
    outcome: NeedleOutcome = (
        "passes" if lost == 0 else "fails" if tested.pvalue < 1 - CONFIDENCE else "undecided"
    )
    return NeedleResult(asked, context, sum(base), len(stable), kept, float(high), outcome)


def _left_no_trace(one: Run, other: Run) -> bool:
    moves = (*_logprob_moves(one, other), *_step_moves(one, other))
    return not any(move for passage in moves for move in passage)
