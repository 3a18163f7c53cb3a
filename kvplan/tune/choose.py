"""Which of two measured settings is better, and whether the measurements decide it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.tune.problem import Constraints, Problem
    from kvplan.tune.trial import LoadResult, Trial

CONFIDENCE: Final = 0.95
SWEEP_NOISE: Final = 0.02
"""Loads on one server whose output throughput is this close are taken for equally fast."""
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

    def is_decided(self, launch_noise: float) -> bool:
        """The interval excludes 0 and the change is more than launches differ by themselves."""
        if self.low is None or self.high is None:
            return False
        return (self.low > 0 or self.high < 0) and abs(self.change) > launch_noise


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
    loads = [load for load in trial.results("target", problem.target_concurrency) if load.is_usable]
    if problem.objective == "latency":
        return [1000 / load.p99_e2el_ms for load in loads if load.p99_e2el_ms]
    if problem.objective == "capacity":
        tokens = None if trial.launch is None else trial.launch.facts.kv_cache_tokens
        return [] if tokens is None or not loads else [float(tokens)] * 2
    return throughputs(loads)


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


def better_variant(problem: Problem, variant: Trial, base: Trial) -> bool:
    """Whether a knob's other value is taken: it keeps the constraints, and its mean is better by 2 % or more.

    The better mean is the better bet even where the measurements do not decide it (the report says which);
    below that the base stays, because its value is the one that everybody else runs.
    """
    target = problem.target_concurrency
    new, old = variant.results("target", target), base.results("target", target)
    if violations(problem.constraints, new) and not violations(problem.constraints, old):
        return False
    difference = compare(objective_values(problem, base), objective_values(problem, variant))
    return difference is not None and difference.change >= SWEEP_NOISE


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


def choose_max_num_seqs(problem: Problem, probe: Trial, holds: int) -> int:
    """How many requests may run at once: at least the target, more only if that is faster.

    The sweep of one server stands for relaunching it with other values: a closed load of N users keeps N
    requests running, as max_num_seqs = N would under a longer queue. Within `SWEEP_NOISE` of the fastest the
    smallest wins.

    Args:
        problem: the target, the constraints and the loads.
        probe: the server that was swept.
        holds: requests of the longest length that the KV cache will hold at the utilisation to come; a load
            above it is not recommended, a load that only the probe's smaller cache could not hold is (its
            speed, with preemptions, is the least that it will be).
    """
    target = problem.target_concurrency
    if problem.objective == "latency":
        return target
    speeds: dict[int, float] = {}
    for load in problem.loads:
        results = probe.results("target" if load == target else "sweep", load)
        speed = mean(throughputs(results))
        if load < target or speed is None or (load > target and load > holds):
            continue
        if load == target or not violations(problem.constraints, results, besides_memory=True):
            speeds[load] = speed
    fastest = max(speeds.values(), default=0.0)
    return min(
        (load for load, speed in speeds.items() if speed >= fastest * (1 - SWEEP_NOISE)), default=target
    )
