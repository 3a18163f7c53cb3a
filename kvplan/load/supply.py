"""The requests of a load in their order, one conversation at a time, and when they arrive."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from kvplan.load.workload import Poisson, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.load.lengths import LengthSample
    from kvplan.load.prompts import PromptSource
    from kvplan.load.workload import Workload


@dataclass(frozen=True, slots=True)
class Conversation:
    """Requests that one user sends one after the other, each repeating what was said before."""

    number: int
    """The first request's place in the workload's order; the others follow."""
    turns: list[LengthSample]
    opening: list[int]
    """The first prompt, made before its time comes."""


class Supply:
    """Hands out conversations until the requests, or the time, are used up."""

    def __init__(
        self,
        workload: Workload,
        prompts: PromptSource,
        seed: int,
        num_requests: int | None = None,
        duration_s: float | None = None,
    ) -> None:
        self.turns = workload.turns
        self._prompts = prompts
        self._until_s = duration_s
        self._number = 0
        self._lengths: Iterator[LengthSample] = (
            workload.draw_endless(seed) if num_requests is None else iter(workload.draw(num_requests, seed))
        )

    def next(self, elapsed_s: float) -> Conversation | None:
        """The next conversation; None when there are no more."""
        if self._until_s is not None and elapsed_s >= self._until_s:
            return None
        # range first: zip must not take a request that it then drops.
        turns = [lengths for _, lengths in zip(range(self.turns), self._lengths, strict=False)]
        if not turns:
            return None
        number = self._number
        self._number += len(turns)
        return Conversation(number, turns, self._prompts.fresh(number, turns[0].input_len))


def arrival_times(arrivals: Poisson | Trace, seed: int) -> Iterator[float]:
    """Seconds from the start at which requests arrive, without end; a trace begins again after its end."""
    if isinstance(arrivals, Poisson):
        rng, now = random.Random(f"{seed} arrivals"), 0.0
        while True:
            yield now
            now += rng.expovariate(arrivals.requests_per_s)
    times = arrivals.times_s
    # One more gap, as long as the mean one, between the last arrival and the first of the next round.
    period = times[-1] + (times[-1] / (len(times) - 1) if len(times) > 1 and times[-1] else 1.0)
    for lap in count():
        for time_s in times:
            yield lap * period + time_s
