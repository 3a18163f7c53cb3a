"""Settings that were measured and may win, and what each is worth with the seats its memory leaves. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.tune.choose import SWEEP_NOISE, best_seats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvplan.config.serving import ServingConfig
    from kvplan.tune.problem import Problem
    from kvplan.tune.trial import Trial

    Holds = Callable[["Contender"], int]
    """Requests of the longest length that a contender's KV cache will hold."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One combination of knobs, as launched."""

    settings: ServingConfig
    """The knobs; utilisation, KV bytes and seats are set per launch."""
    launches: tuple[Trial, ...]
    """Of these knobs at the target's load, the first one beside its base."""
    speed: float = 1.0
    """Expected throughput at the target's load against the base settings (1.0)."""
    found: str = ""
    """The value that made it: `block_size=32`; empty for the base."""

    @property
    def non_kv_bytes(self) -> int | None:
        """What vLLM counted before the KV cache in the first launch."""
        return self.launches[0].non_kv_bytes

    def with_launch(self, trial: Trial) -> Contender:
        """Launched once more."""
        return dataclasses.replace(self, launches=(*self.launches, trial))


@dataclass(frozen=True, slots=True)
class Seats:
    """How many requests may run at once, from the sweep of one server."""

    problem: Problem
    speeds: Mapping[int, float]
    """Output tokens per second by requests at once (choose.py::seat_speeds)."""

    def within(self, holds: int) -> int:
        """The best number of seats where the KV cache holds so many requests of the longest length.

        Between two loads of the sweep every seat more is taken (in eights), unless the user named them.
        """
        seats, wanted = (
            best_seats(self.problem, self.speeds, holds),
            best_seats(self.problem, self.speeds, 1 << 62),
        )
        between = holds // 8 * 8
        if self.problem.space.max_num_seqs or not seats < between < wanted:
            return seats
        return between

    def factor(self, holds: int) -> float:
        """Throughput with the best seats that fit, against the target's own number."""
        if self.problem.objective in {"latency", "capacity"}:
            return 1.0
        base = self.speeds.get(self.problem.target_concurrency)
        if base is None or base <= 0:
            return 1.0
        seats = best_seats(self.problem, self.speeds, holds)
        return self.speeds.get(seats, base) / base


def ranked(contenders: Sequence[Contender], seats: Seats, holds: Holds) -> list[Contender]:
    """The best first, by expected throughput with the seats that fit; of equals the one found first."""
    return sorted(contenders, key=lambda c: -c.speed * seats.factor(holds(c)))


def best_with_seats(
    contenders: Sequence[Contender], winner: Contender, seats: Seats, holds: Holds
) -> Contender:
    """The winner, unless its memory leaves it so few seats that another is clearly better with more."""
    own = seats.within(holds(winner))
    with_more = [c for c in contenders if seats.within(holds(c)) > own]
    if not with_more:
        return winner
    first = ranked(with_more, seats, holds)[0]
    least = winner.speed * seats.factor(holds(winner)) * (1 + SWEEP_NOISE)
    return first if first.speed * seats.factor(holds(first)) >= least else winner
