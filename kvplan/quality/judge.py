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
_COMPARABLE: Final = 0.75
"""Passages, and share of all passages, in which a measure must be comparable to decide anything."""

MeasureName = Literal["log-probability", "perplexity", "top token", "first token", "greedy steps"]


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of the quantised cache beside the same figure of the repeat."""

    name: MeasureName
    unit: Literal["nat", "share"]
    repeat: float
    """Mean over the passages, unquantised against its own repeat: the noise floor."""
    value: float
    """Mean over the passages, unquantised against quantised."""
    low: float | None
    """95 % interval (paired t over the passages) of what lies beyond the noise floor; None: too few passages,
    or a count with an exact test."""
    high: float | None
    limit: float
    outcome: Outcome
    passages: int
    tokens: int
    """Places that were compared."""
    is_reference_steady: bool = True
    """Whether the repeat itself stayed within the limit; else the measure says nothing of the cache."""


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
    damage = _damage(first, repeat, other)
    if damage is not None:
        return _undecided(damage)
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
        _first_tokens(first, repeat, other),
        _beyond("greedy steps", "nat", _step_moves(first, repeat), _step_moves(first, other), LOGPROB_LIMIT),
    )
    needles = _needles(base.context_tokens, first.needles, repeat.needles, other.needles)
    outcome, reason = _outcome(measures, needles)
    unsteady = next((m.name for m in measures if not m.is_reference_steady), None)
    if unsteady is not None:
        outcome, reason = "undecided", f"{unsteady}: the reference does not repeat itself within the limit"
    if _left_no_trace(first, other):
        outcome, reason = (
            "undecided",
            "not one number differs: nothing shows that the quantised cache was read",
        )
    above = any(m.low is not None and m.low > 0 for m in measures if m.name != "perplexity")
    return QualityVerdict(outcome, reason, above, measures, needles)


def _damage(first: Run, repeat: Run, other: Run) -> str | None:
    """Why the three passes cannot be laid side by side (a journal that somebody edited); None if they can."""
    if not _layout(first) == _layout(repeat) == _layout(other):
        return "the samples are of unequal length: passages, tokens, steps or facts are missing"
    numbers = (
        number
        for run in (first, repeat, other)
        for text in run.texts
        for number in (*text.logprobs, *(n for s in text.steps for n in (s.logprob, s.second_logprob)))
    )
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return "a sample holds a log-probability that is not a finite number"
    return None


def _layout(run: Run) -> tuple[int, list[tuple[int, int, int]]]:
    return len(run.needles), [(len(t.logprobs), len(t.top_tokens), len(t.steps)) for t in run.texts]


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

    The first token comes from the prompt's own pass and is no decode step. It counts only where the answers
    part at it: there is nothing else to compare then, and an answer that leaves at once must not drop out.
    """
    moves: list[float] = []
    for number, (a, b) in enumerate(zip(one.steps, other.steps, strict=True)):
        if number or a.token != b.token:
            moves.append(abs(a.logprob - _logprob_of(a.token, b)))
        if a.token != b.token:
            break
    return moves


def _logprob_of(token: int, step: Step) -> float:
    """Of the chosen token or the second; of any other at most the second's, which understates the move."""
    return step.logprob if token == step.token else step.second_logprob


def _first_tokens(first: Run, repeat: Run, other: Run) -> Measure:
    """Passages whose greedy answer leaves the reference with its very first token, against the limit.

    Counted beyond the repeat's. At most what the limit lets expect, rounded up (1 of 12), passes; more than
    it allows by the exact binomial test at 95 % (3 of 12) fails. The same count bounds the repeat.
    """
    places = [
        (float(a.steps[0].token != b.steps[0].token), float(a.steps[0].token != c.steps[0].token))
        for a, b, c in zip(first.texts, repeat.texts, other.texts, strict=True)
        if a.steps
    ]
    count = len(places)
    parted, changed = (sum(int(pair[which]) for pair in places) for which in (0, 1))
    allowed = math.ceil(TOP_TOKEN_LIMIT * count)
    outcome: Outcome = "undecided"
    if _is_enough(count, len(first.texts)) and parted <= allowed:
        outcome = _counted(max(0, changed - parted), count, allowed)
    return Measure(
        name="first token",
        unit="share",
        repeat=_mean([r for r, _ in places]),
        value=_mean([c for _, c in places]),
        low=None,
        high=None,
        limit=TOP_TOKEN_LIMIT,
        outcome=outcome,
        passages=count,
        tokens=count,
        is_reference_steady=parted <= allowed,
    )


def _counted(parted: int, count: int, allowed: int) -> Outcome:
    if parted <= allowed:
        return "passes"
    from scipy import stats

    tested = stats.binomtest(parted, count, TOP_TOKEN_LIMIT, alternative="greater")
    return "fails" if tested.pvalue < 1 - CONFIDENCE else "undecided"


def _is_enough(comparable: int, passages: int) -> bool:
    return comparable >= max(_FEWEST_TEXTS, _COMPARABLE * passages)


def _beyond(
    name: MeasureName,
    unit: Literal["nat", "share"],
    repeat: Places,
    changed: Places,
    limit: float,
) -> Measure:
    """What the change moved beyond the repeat, passage by passage, against the limit."""
    pairs = [(_mean(r), _mean(c), len(c)) for r, c in zip(repeat, changed, strict=True) if r and c]
    low, high = _interval([c - r for r, c, _ in pairs])
    floor = _mean([r for r, _, _ in pairs])
    is_steady = abs(floor) <= limit
    outcome: Outcome = "undecided"
    if is_steady and low is not None and high is not None and _is_enough(len(pairs), len(changed)):
        outcome = "passes" if high <= limit else "fails" if low > limit else "undecided"
    return Measure(
        name=name,
        unit=unit,
        repeat=floor,
        value=_mean([c for _, c, _ in pairs]),
        low=low,
        high=high,
        limit=limit,
        outcome=outcome,
        passages=len(pairs),
        tokens=sum(n for _, _, n in pairs),
        is_reference_steady=is_steady,
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
