"""Which load to put on a running server next: doubling up to the knee, then closing in on the limit. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvplan.tune.load_point import LoadPoint
    from kvplan.tune.problem import Constraints

GROWTH: Final = 0.05
"""More throughput than this from a larger load is growth; less is what repeats of one load differ by."""
FLAT_STEPS: Final = 2
"""Larger loads in a row without growth that make a knee: one may be noise."""
MOST_USERS: Final = 1024
MOST_REFINEMENTS: Final = 3
_CLOSE: Final = 1.1
"""Limit and kept load this near each other end the search between them."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a load must keep."""

    constraints: Constraints
    target_users: int | None = None

    def broken_by(self, point: LoadPoint) -> tuple[str, ...]:
        """What this load does not keep, in words; empty when it keeps everything."""
        return tuple(self._broken(point))

    def _broken(self, point: LoadPoint) -> Iterator[str]:
        if point.stopped is not None:
            yield f"stopped: {point.stopped}"
        elif point.failed or not point.completed:
            yield f"{point.failed} of {point.failed + point.completed} requests failed"
        if point.miscounted:
            yield f"the server's count of tokens cannot be true in {point.miscounted} answers"
        limits = self.constraints
        for name, measured, limit in (
            ("TTFT p99", point.p99_ttft_ms, limits.ttft_p99_ms),
            ("TPOT p99", point.p99_tpot_ms, limits.tpot_p99_ms),
            ("end-to-end p99", point.p99_e2el_ms, limits.e2e_p99_ms),
        ):
            if limit is not None and measured is None:
                yield f"{name} unknown"
            elif limit is not None and measured is not None and measured > limit:
                yield f"{name} {measured:,.1f} ms > {limit:g} ms"
        if limits.max_preemptions is not None:
            if point.preemptions is None:
                yield "preemptions unknown"
            elif point.preemptions > limits.max_preemptions:
                yield f"{point.preemptions} preemptions > {limits.max_preemptions}"
        if point.waited_for_memory:
            yield "waited for memory"


@dataclass(frozen=True, slots=True)
class Step:
    """The next load, or why there is none."""

    users: int | None
    why: str


def next_load(goal: Goal, points: Sequence[LoadPoint]) -> Step:
    """The load to measure after these; a function of the answers, so that a run that goes on asks the same.

    Args:
        goal: target and constraints.
        points: measured so far, in any order.
    """
    if not points:
        return Step(1, "one user alone: the shortest latencies that this server has")
    known = sorted(points, key=lambda point: point.users)
    failed = next((p for p in known if not p.is_usable), None)
    if failed is not None:
        reason = failed.stopped or failed.error or "no reason given"
        return Step(None, f"the load of {failed.users} users was not answered whole: {reason}")
    first_broken = next((p.users for p in known if goal.broken_by(p)), None)
    ended = _rising_ended(goal, known, first_broken)
    target = goal.target_users
    is_open = target is not None and all(p.users != target for p in known)
    if target is not None and is_open and (ended is not None or _larger(known) >= target):
        return Step(target, "the target")
    if ended is None:
        return Step(_larger(known), "throughput still grows")
    between = _between(goal, known)
    return Step(between, "between the last load that is kept and the first that is not") if between else ended


def _larger(known: Sequence[LoadPoint]) -> int:
    """The next power of two."""
    return 1 << known[-1].users.bit_length()


def _rising_ended(goal: Goal, known: Sequence[LoadPoint], first_broken: int | None) -> Step | None:
    if first_broken is not None:
        broken = next(p for p in known if p.users == first_broken)
        return Step(None, f"the load of {first_broken} users: {', '.join(goal.broken_by(broken))}")
    if flat_steps(known) >= FLAT_STEPS:
        return Step(None, f"throughput no longer grows: the knee is at {knee_of(known)} users")
    if _larger(known) > MOST_USERS:
        return Step(None, f"{MOST_USERS} users are as many as kvplan tries")
    return None


def _between(goal: Goal, known: Sequence[LoadPoint]) -> int | None:
    """A load that halves the gap (in ratio) between the last kept and the first broken one."""
    broken = next((p.users for p in known if goal.broken_by(p)), None)
    if broken is None:
        return None
    kept = max((p.users for p in known if p.users < broken), default=0)
    refined = sum(1 for p in known if p.users & (p.users - 1) and p.users != goal.target_users)
    if not kept or broken - kept < 2 or broken / kept <= _CLOSE or refined >= MOST_REFINEMENTS:
        return None
    return min(max(round(math.sqrt(kept * broken)), kept + 1), broken - 1)


def rates(points: Sequence[LoadPoint]) -> list[float | None]:
    """Throughput of each: output tokens a second, or requests where a server did not count tokens."""
    if all(point.output_throughput is not None for point in points):
        return [point.output_throughput for point in points]
    return [point.request_throughput for point in points]


def flat_steps(points: Sequence[LoadPoint]) -> int:
    """Loads at the end of this rising row that brought no growth over the best before them."""
    best, flat = 0.0, 0
    for rate in rates(points):
        grown = rate is not None and rate > best * (1 + GROWTH)
        flat = 0 if grown else flat + 1
        best = max(best, rate or 0.0)
    return flat


def knee_of(points: Sequence[LoadPoint]) -> int | None:
    """The smallest load within 5 % of the highest throughput; more users only wait longer."""
    usable = sorted((p for p in points if p.is_usable), key=lambda point: point.users)
    known = [(p.users, rate) for p, rate in zip(usable, rates(usable), strict=True) if rate is not None]
    if not known:
        return None
    best = max(rate for _, rate in known)
    return next(users for users, rate in known if rate * (1 + GROWTH) >= best)


def highest_kept(goal: Goal, points: Sequence[LoadPoint]) -> LoadPoint | None:
    """The largest load below the first that breaks something; above a broken one nothing counts."""
    best: LoadPoint | None = None
    for point in sorted(points, key=lambda p: p.users):
        if goal.broken_by(point):
            break
        best = point
    return best
