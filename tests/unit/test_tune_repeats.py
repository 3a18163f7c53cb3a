"""Which load comes next on a running server, and when its mean is known: worked out by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from kvplan.tune.repeats import interval_of, next_load
from kvplan.tune.trial import LoadLevel, LoadResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOAK = LoadLevel("soak", 32)
TARGET = LoadLevel("target", 8, repeats=3, most_repeats=6)
SWEEP = LoadLevel("sweep", 16, repeats=2, most_repeats=6)


def measured(
    levels: Sequence[LoadLevel],
    speed: Callable[[LoadLevel, int], float | None],
    seconds: float = 1.0,
    patience_s: float = math.inf,
    seed: int = 0,
) -> list[LoadResult]:
    loads: list[LoadResult] = []
    while (asked := next_load(levels, loads, seed, patience_s)) is not None:
        level, repeat = asked
        loads.append(
            LoadResult(level, repeat, 8, 0, output_throughput=speed(level, repeat), duration_s=seconds)
        )
    return loads


def counts(loads: list[LoadResult]) -> dict[str, int]:
    kinds = [load.level.kind for load in loads]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def steady(_level: LoadLevel, _repeat: int) -> float:
    return 100.0


def unknown(_level: LoadLevel, _repeat: int) -> None:
    return None


def restless(level: LoadLevel, repeat: int) -> float:
    """Plus and minus 10 %: no six of these make a mean known to 1 %."""
    return 100 * level.concurrency * (1.1 if repeat % 2 else 0.9)


def test_the_worst_case_comes_first_and_each_round_asks_every_load_once() -> None:
    loads = measured([SOAK, SWEEP, TARGET], steady)
    assert loads[0].level == SOAK
    assert [load.repeat for load in loads[1:5]] == [0, 0, 1, 1]
    assert {load.level for load in loads[1:3]} == {SWEEP, TARGET}


def test_the_order_is_drawn_and_the_same_for_the_same_seed() -> None:
    orders = {
        seed: [load.level.kind for load in measured([SWEEP, TARGET], restless, seed=seed)]
        for seed in range(8)
    }
    assert orders[3] == [load.level.kind for load in measured([SWEEP, TARGET], restless, seed=3)]
    assert len({tuple(order) for order in orders.values()}) > 1


def test_equal_repeats_end_at_the_least_that_shows_a_spread() -> None:
    # Three equal values: an interval of no width. Of the sweep's two no spread is known: a third is made.
    assert counts(measured([SWEEP, TARGET], steady)) == {"sweep": 3, "target": 3}


def test_a_mean_that_is_not_known_to_a_percent_is_asked_again_up_to_the_most() -> None:
    assert counts(measured([TARGET], restless)) == {"target": 6}
    assert counts(measured([LoadLevel("target", 8, repeats=3)], restless)) == {"target": 3}


def test_a_load_that_is_slower_for_certain_is_not_asked_again_and_the_target_always_is() -> None:
    # 16 users: 1,440 to 1,760; 64 users: 5,760 to 7,040. After three repeats the interval of 16 users ends at
    # 1,547 + 4.303 x 185 / 1.732 = 2,006, that of 64 begins at 6,187 - 4.303 x 739 / 1.732 = 4,351.
    fast = LoadLevel("sweep", 64, repeats=2, most_repeats=6)
    found = measured([SWEEP, fast, TARGET], restless)
    repeats = {level: sum(load.level == level for load in found) for level in (SWEEP, fast, TARGET)}
    assert repeats == {SWEEP: 3, fast: 6, TARGET: 6}


def test_what_is_not_measured_is_not_asked_again() -> None:
    assert counts(measured([SWEEP, TARGET], unknown)) == {"sweep": 2, "target": 3}


def test_repeats_beyond_the_least_end_with_the_patience() -> None:
    # Two seconds a repeat, five of patience: the least of three, then three more (0, 2 and 4 seconds so far).
    long = LoadLevel("target", 8, repeats=3, most_repeats=24)
    assert counts(measured([long], restless, seconds=2.0, patience_s=5.0)) == {"target": 6}


def test_the_interval_is_students() -> None:
    # 90, 100, 110: s = 10, t(2) at 97.5 % = 4.3027 (a table): 4.3027 x 10 / sqrt(3) = 24.842.
    interval = interval_of([90, 100, 110])
    assert interval is not None
    assert interval == pytest.approx((100 - 24.842, 100 + 24.842), rel=1e-4)
    assert interval_of([90, 100]) is None
