"""Which of two measured settings is better, and whether the measurements decide it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.tune.problem import Constraints, Problem
    from kvplan.tune.trial import LoadResult, Trial

CONFIDENCE: Final = 0.95
SWEEP_NOISE: Final = 0.01
"""Loads on one server whose output throughput is this close are taken for equally fast."""
LEAST_GAIN: Final = 0.01
"""An undecided change is taken from this expected gain on; below, the value that others run stays."""
USUAL_EFFECT: Final = 0.05
"""Spread of what a knob's value is believed to change before anything was measured (relative, one sigma)."""
LAUNCH_NOISE: Final = 0.05
"""Least relative difference of output throughput that a launch of the same settings may show: a smaller
change is undecided, however tight the repeats inside one launch are."""


@dataclass(frozen=True, slots=True)
class Difference:
    """B against A in output throughput: relative change with its interval at 95 %."""

    change: float
    low: float | None
    high: float | None
    """None: one measurement a side says nothing of its own spread."""
    standard_error: float | None = None
    """Of the change, where it was worked out; relative."""

    def is_decided(self, launch_noise: float) -> bool:
        """The interval excludes 0 and the change is more than launches differ by themselves."""
        if self.low is None or self.high is None:
            return False
        return (self.low > 0 or self.high < 0) and abs(self.change) > launch_noise


BETWEEN_LAUNCHES: Final = 0.025
"""Believed spread of the difference of two single launches beyond that of their repeats (relative, one
sigma): half of `LAUNCH_NOISE`, a 95 % figure. From two launches of each on it is measured."""


def is_quantised(knob: str, value: Any) -> bool:
    """Whether a value of kv_cache_dtype stores keys and values in fewer bits than the model computes with."""
    return knob == "kv_cache_dtype" and value not in {"auto", "bfloat16", "float16", "float32"}


def throughputs(loads: Sequence[LoadResult]) -> list[float]:
    """Output tokens per second of the usable repeats."""
    return [load.output_throughput for load in loads if load.is_usable and load.output_throughput is not None]


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


def compare(base: Sequence[float], changed: Sequence[float]) -> Difference | None:
    """How much faster `changed` is than `base`, by Welch's interval on the difference of means.

    The interval covers the repeats within the two servers, not what differs between launches
    (`LAUNCH_NOISE` stands for that). None when a side has no measurement.
    """
    base_mean, changed_mean = mean(base), mean(changed)
    if base_mean is None or changed_mean is None or base_mean <= 0:
        return None
    change = changed_mean / base_mean - 1
    if len(base) < 2 or len(changed) < 2:
        return Difference(change, None, None)
    from scipy import stats

    if len({*base}) == 1 and len({*changed}) == 1:
        return Difference(change, change, change)
    interval = stats.ttest_ind(changed, base, equal_var=False).confidence_interval(CONFIDENCE)
    return Difference(change, float(interval.low) / base_mean, float(interval.high) / base_mean)


def objective_values(problem: Problem, trial: Trial) -> list[float]:
    """What the objective makes of a trial, one value a repeat; higher is better, empty is unknown.

    target, throughput: output tokens per second at the target's load. latency: whole answers per second of
    one user (the inverse of the end-to-end P99), so that a relative gain means the same in all three.
    capacity: tokens of KV cache.
    """
    return [value for _, value in _objective(problem, trial)]


def objective_by_repeat(problem: Problem, trial: Trial) -> dict[int, float]:
    """`objective_values` by the number of the repeat: equal numbers saw the same requests."""
    return dict(_objective(problem, trial))


def _objective(problem: Problem, trial: Trial) -> list[tuple[int, float]]:
    loads = [load for load in trial.results("target", problem.target_concurrency) if load.is_usable]
    if problem.objective == "latency":
        return [(load.repeat, 1000 / load.p99_e2el_ms) for load in loads if load.p99_e2el_ms]
    if problem.objective == "capacity":
        tokens = None if trial.launch is None else trial.launch.facts.kv_cache_tokens
        return [] if tokens is None else [(load.repeat, float(tokens)) for load in loads]
    return [(load.repeat, load.output_throughput) for load in loads if load.output_throughput is not None]


def prediction_half_width(values: Sequence[float]) -> float | None:
    """Half-width of the 95 % prediction interval of one more value, relative to the mean; None below two.

    t(n - 1) x s x sqrt(1 + 1/n) for values that are drawn alike.
    """
    count, middle = len(values), mean(values)
    if count < 2 or not middle:
        return None
    from scipy import stats

    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (count - 1))
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    return quantile * spread * math.sqrt(1 + 1 / count) / middle


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change of settings is worth: at the target's load, and through the seats it leaves."""

    difference: Difference
    """As measured, without the seats."""
    speed: float
    """Relative gain to expect at the target's load: the measured one, drawn towards 0 by its noise."""
    expected: float
    """That times what the seats make of it."""
    is_decided: bool

    @property
    def is_taken(self) -> bool:
        """Better for certain, or expected to be by `LEAST_GAIN`."""
        return self.expected >= LEAST_GAIN or (self.is_decided and self.expected > 0)

    @property
    def is_settled(self) -> bool:
        """More launches are not worth it: decided, or no gain to be expected that would be taken."""
        return self.is_decided or self.expected < LEAST_GAIN


def gain_of(
    problem: Problem, base: Sequence[Trial], changed: Sequence[Trial], seats: float = 1.0
) -> Gain | None:
    """What the settings of `changed` are worth against those of `base`, each launched once or more.

    The expected gain is the measured one times USUAL_EFFECT^2 / (USUAL_EFFECT^2 + the difference's variance):
    the posterior mean under a normal prior around "no change". Without it the best of several noisy values
    looks better than it is, and the more so the noisier they are.

    Args:
        problem: the objective.
        base: launches of the settings to compare with.
        changed: launches of the changed ones.
        seats: factor by which another number of requests that run at once changes the throughput.
    """
    difference = compare_launches(problem, base, changed)
    if difference is None:
        return None
    again = min(len(base), len(changed)) > 1
    variance = (difference.standard_error or 0.0) ** 2 + (0.0 if again else BETWEEN_LAUNCHES**2)
    trust = USUAL_EFFECT**2 / (USUAL_EFFECT**2 + variance)
    speed = difference.change * trust
    return Gain(
        difference, speed, (1 + speed) * seats - 1, difference.is_decided(0.0 if again else LAUNCH_NOISE)
    )


def compare_launches(problem: Problem, base: Sequence[Trial], changed: Sequence[Trial]) -> Difference | None:
    """`compare` over launches in pairs (the first of one with the first of the other, and so on).

    Within a pair the repeats of the same number put the same requests on both servers, so they are compared
    with each other. From two pairs on the pairs' means are what is compared: repeats inside one launch know
    nothing of what launches differ by.
    """
    means: list[tuple[float, float]] = []
    single: Difference | None = None
    for one, other in zip(base, changed, strict=False):
        before, after = objective_by_repeat(problem, one), objective_by_repeat(problem, other)
        both = sorted(before.keys() & after.keys())
        if not both:
            continue
        pairs = [(before[n], after[n]) for n in both]
        single = single or compare_paired(pairs)
        means.append((mean([b for b, _ in pairs]) or 0.0, mean([a for _, a in pairs]) or 0.0))
    return compare_paired(means) if len(means) > 1 else single


def compare_paired(pairs: Sequence[tuple[float, float]]) -> Difference | None:
    """How much faster the second of each pair is, by Student's t interval on the pairs' differences."""
    base_mean = mean([before for before, _ in pairs])
    if base_mean is None or base_mean <= 0:
        return None
    differences = [(after - before) / base_mean for before, after in pairs]
    change = math.fsum(differences) / len(differences)
    if len(pairs) < 2:
        return Difference(change, None, None)
    spread = math.sqrt(math.fsum((d - change) ** 2 for d in differences) / (len(pairs) - 1))
    error = spread / math.sqrt(len(pairs))
    half = t_quantile(len(pairs) - 1) * error
    return Difference(change, change - half, change + half, error)


def t_quantile(degrees: int) -> float:
    """Student's t at 97.5 %."""
    from scipy import stats

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees))


def better_variant(problem: Problem, variant: Trial, base: Trial, seats: float = 1.0) -> bool:
    """Whether a knob's other value is taken: it keeps the constraints, and its gain is worth it."""
    if breaks_more(problem, variant, base):
        return False
    gain = gain_of(problem, [base], [variant], seats)
    return gain is not None and gain.is_taken


def breaks_more(problem: Problem, variant: Trial, base: Trial) -> bool:
    """Whether a variant breaks a constraint that the base keeps."""
    target = problem.target_concurrency
    new, old = variant.results("target", target), base.results("target", target)
    return bool(violations(problem.constraints, new)) and not violations(problem.constraints, old)


def violations(
    constraints: Constraints, loads: Sequence[LoadResult], *, besides_memory: bool = False
) -> list[str]:
    """What a load breaks, in words. An unknown figure breaks its constraint: nothing shows that it holds.

    Args:
        constraints: the limits.
        loads: repeats of one load.
        besides_memory: leave out what a larger KV cache would cure.
    """
    if not loads:
        return ["the load was not measured"]
    found = [f"{load.failed} requests failed" for load in loads if load.failed]
    found += ["no request was answered" for load in loads if not load.completed]
    if not besides_memory and any(load.waited_for_memory for load in loads):
        found.append("requests waited for KV cache")
    limits = (
        ("p99 TTFT", constraints.ttft_p99_ms, [load.p99_ttft_ms for load in loads], "ms"),
        ("p99 TPOT", constraints.tpot_p99_ms, [load.p99_tpot_ms for load in loads], "ms"),
        ("p99 end-to-end", constraints.e2e_p99_ms, [load.p99_e2el_ms for load in loads], "ms"),
        (
            "preemptions",
            None if besides_memory else constraints.max_preemptions,
            [load.preemptions for load in loads],
            "",
        ),
    )
    for name, limit, values, unit in limits:
        if limit is None:
            continue
        if any(value is None for value in values):
            found.append(f"{name} is unknown")
            continue
        middle = sorted(value for value in values if value is not None)[len(values) // 2]
        if middle > limit:
            found.append(f"{name} {middle:,.0f} {unit}".rstrip() + f" is above {limit:g}")
    return found


def seat_speeds(problem: Problem, probe: Trial) -> dict[int, float]:
    """Output tokens per second by the number of requests that run at once, from the target up.

    The sweep of one server stands for relaunching it with other values of max_num_seqs: a closed load of N
    users keeps N requests running, as max_num_seqs = N would under a longer queue. Loads that break a
    constraint are left out (the target's never is); one that only the probe's smaller KV cache could not hold
    is not: its speed, with preemptions, is the least that it will be.
    """
    target = problem.target_concurrency
    speeds: dict[int, float] = {}
    for load in problem.loads:
        results = probe.results("target" if load == target else "sweep", load)
        speed = mean(throughputs(results))
        if load < target or speed is None:
            continue
        if load == target or not violations(problem.constraints, results, besides_memory=True):
            speeds[load] = speed
    return speeds


def best_seats(problem: Problem, speeds: Mapping[int, float], holds: int) -> int:
    """How many requests may run at once: at least the target, more only if that is faster.

    Within `SWEEP_NOISE` of the fastest the smallest wins: every seat more is latency for all.

    Args:
        problem: the target and the objective.
        speeds: from `seat_speeds`.
        holds: requests of the longest length that the KV cache will hold; no load above it is recommended.
    """
    target = problem.target_concurrency
    if problem.objective == "latency":
        return target
    fitting = {load: speed for load, speed in speeds.items() if load == target or load <= holds}
    fastest = max(fitting.values(), default=0.0)
    return min((n for n, speed in fitting.items() if speed >= fastest * (1 - SWEEP_NOISE)), default=target)
