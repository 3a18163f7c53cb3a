"""How close the whole estimate comes on launches that the fit has not seen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.calibration.cases import Unanswered
from kvplan.calibration.fit import fit, targets_of
from kvplan.errors import KvplanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvplan.calibration.cases import Case
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.overhead.coefficients import Coefficients

OVER_PROMISE_PERCENT: Final = 2.0
TARGET_COVERAGE: Final = 0.83
"""Of leave-one-source-out: a little above 80 %, for launches with flags that nobody mentions."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One launch, predicted and measured."""

    case: Case
    answer: Estimate

    @property
    def error_percent(self) -> float | None:
        """(predicted - measured) available KV memory, in percent of the card; None where none was printed."""
        measured = self.case.launch.kv_cache_bytes
        if measured is None:
            return None
        return 100 * (self.answer.budget.available_kv_bytes.mid - measured) / self.answer.gpu.total_bytes

    @property
    def covered(self) -> bool | None:
        """Whether the measured figure lies in the 80 % interval."""
        measured = self.case.launch.kv_cache_bytes
        interval = self.answer.budget.available_kv_bytes
        return None if measured is None else interval.low <= measured <= interval.high

    @property
    def over_promised(self) -> bool:
        """Whether more than 2 % of the card too much was promised."""
        return (self.error_percent or 0.0) > OVER_PROMISE_PERCENT


@dataclass(frozen=True, slots=True)
class Score:
    """The figures of a set of outcomes."""

    launches: int
    with_kv: int
    median_abs_percent: float
    p90_abs_percent: float
    source_median_abs_percent: float
    """With each source counting once."""
    source_p90_abs_percent: float
    over_promised_share: float
    coverage: float
    tight_share: float
    failed_called_yes: tuple[str, ...]
    started_called_no: tuple[str, ...]


def predict_all(
    cases: Iterable[Case], coefficients: Callable[[Case], Coefficients]
) -> tuple[list[Outcome], list[Unanswered]]:
    """Every case predicted with the coefficients that belong to it."""
    outcomes: list[Outcome] = []
    missing: list[Unanswered] = []
    for case in cases:
        try:
            outcomes.append(Outcome(case, case.predict(coefficients(case))))
        except KvplanError as error:
            missing.append(Unanswered(case.launch, error.message))
    return outcomes, missing


def leave_one_source_out(cases: Sequence[Case], start: Coefficients) -> dict[str, Coefficients]:
    """For each source, the coefficients fitted to all the others.

    Args:
        cases: every launch, also those that only the fit can use.
        start: coefficients fitted to all, where each search begins.
    """
    targets = targets_of(cases)
    fitted: dict[str, Coefficients] = {}
    for source in {case.launch.source for case in cases}:
        rest = [t for t in targets if t.case.launch.source != source]
        fitted[source] = start if len(rest) == len(targets) else fit(rest, start, max_evaluations=6)
    return fitted


def calibrated_spread(outcomes: Callable[[float], list[Outcome]]) -> float:
    """The scale of the spreads at which the 80 % intervals hold in leave-one-source-out.

    Args:
        outcomes: the predictions at a given scale.
    """
    low, high = 0.05, 8.0
    for _ in range(12):
        middle = (low * high) ** 0.5
        covered = [o.covered for o in outcomes(middle) if o.covered is not None]
        if sum(covered) / len(covered) < TARGET_COVERAGE:
            low = middle
        else:
            high = middle
    return high


def with_spread(fitted: Coefficients, scale: float) -> Coefficients:
    """The same coefficients with wider or narrower intervals."""
    return dataclasses.replace(fitted, spread_scale=scale)


def score(outcomes: Sequence[Outcome]) -> Score:
    """The figures of a set of outcomes.

    Raises:
        ValueError: none of them has a measured figure.
    """
    errors = [(abs(o.error_percent), o.case.launch.source) for o in outcomes if o.error_percent is not None]
    if not errors:
        raise ValueError("no outcome has a measured KV cache")
    per_source: dict[str, int] = {}
    for _, source in errors:
        per_source[source] = per_source.get(source, 0) + 1
    plain = [(error, 1.0) for error, _ in errors]
    by_source = [(error, 1 / per_source[source]) for error, source in errors]
    covered = [o.covered for o in outcomes if o.covered is not None]
    said = [(o.case.launch, o.answer.verdict.starts) for o in outcomes]
    return Score(
        launches=len(outcomes),
        with_kv=len(errors),
        median_abs_percent=weighted_quantile(plain, 0.5),
        p90_abs_percent=weighted_quantile(plain, 0.9),
        source_median_abs_percent=weighted_quantile(by_source, 0.5),
        source_p90_abs_percent=weighted_quantile(by_source, 0.9),
        over_promised_share=sum(o.over_promised for o in outcomes) / len(errors),
        coverage=sum(covered) / len(covered),
        tight_share=sum(starts == "tight" for _, starts in said) / len(said),
        failed_called_yes=tuple(launch.id for launch, s in said if launch.outcome == "failed" and s == "yes"),
        started_called_no=tuple(launch.id for launch, s in said if launch.outcome == "started" and s == "no"),
    )


def weighted_quantile(pairs: Sequence[tuple[float, float]], quantile: float) -> float:
    """The value below which that share of the weight lies."""
    ordered = sorted(pairs)
    goal = quantile * sum(weight for _, weight in ordered)
    running = 0.0
    for value, weight in ordered:
        running += weight
        if running >= goal:
            return value
    return ordered[-1][0]
