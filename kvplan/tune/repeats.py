"""Which load a running server is measured under next: rounds in random order until the means are known. Pure.

A repeat costs seconds and a launch minutes, so a server that is there is asked until its answer is good
enough. Each round asks every load once, in an order drawn anew: a machine that warms up or slows down over
the minutes then weighs on all loads alike. The order follows from the seed.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.tune.trial import LoadLevel, LoadResult

PRECISION: Final = 0.01
"""A mean output throughput is known well enough when its 95 % interval is this far on each side (relative).

Stopping at a width looks only at the spread, which for normal noise says nothing of the mean: the mean stays
unbiased, its interval is a little too narrow (Chow and Robbins 1965)."""
CONFIDENCE: Final = 0.95
_FEWEST: Final = 3
"""Repeats below which a spread says nothing worth stopping on."""


def next_load(
    levels: Sequence[LoadLevel], loads: Sequence[LoadResult], seed: int, patience_s: float = math.inf
) -> tuple[LoadLevel, int] | None:
    """The load to measure next and the number of its repeat; None when all is known well enough.

    The worst case comes first: what it does to memory is part of every later peak.

    Args:
        levels: what the trial is to measure.
        loads: what was measured so far.
        seed: of the order.
        patience_s: seconds that the repeats beyond the least may take together: about what a launch costs.
    """
    taken = {level: [load for load in loads if load.level == level] for level in levels}
    for level in levels:
        if level.kind == "soak" and len(taken[level]) < level.repeats:
            return level, len(taken[level])
    extra_s = sum(load.duration_s or 0.0 for load in loads if load.repeat >= load.level.repeats)
    wanting = [
        level
        for level in taken
        if level.kind != "soak"
        if len(taken[level]) < level.repeats or (extra_s < patience_s and _wants_more(level, taken))
    ]
    if not wanting:
        return None
    turn = min(len(taken[level]) for level in wanting)
    order = sorted(taken, key=lambda level: (level.kind, level.concurrency))
    random.Random(f"{seed}/{turn}").shuffle(order)
    return next((level, turn) for level in order if level in wanting and len(taken[level]) == turn)


def _wants_more(level: LoadLevel, taken: dict[LoadLevel, list[LoadResult]]) -> bool:
    """Whether repeats beyond the least would tell something."""
    count = len(taken[level])
    if level.most_repeats is None or count >= level.most_repeats:
        return False
    speeds = _speeds(taken[level])
    if len(speeds) < count:
        return False  # more of what failed, or of what is not measured, makes nothing known
    own = interval_of(speeds)
    if own is None:
        return True
    if own[1] - own[0] <= PRECISION * (own[0] + own[1]):
        return False
    if level.kind == "target":
        return True
    # A load that is slower than another for certain is not in question any more.
    others = (interval_of(_speeds(results)) for other, results in taken.items() if other != level)
    return not any(other is not None and other[0] > own[1] for other in others)


def _speeds(loads: Sequence[LoadResult]) -> list[float]:
    return [load.output_throughput for load in loads if load.is_usable and load.output_throughput is not None]


def interval_of(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean, by Student's t; None below three values."""
    count = len(values)
    if count < _FEWEST:
        return None
    from scipy import stats

    middle = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (count - 1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * spread / math.sqrt(count)
    return middle - half, middle + half
