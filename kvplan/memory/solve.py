"""The other direction: from a target to the longest request, or the most requests, that fit.

Every candidate is an estimate with exactly the flags that the answer would name, so that an answer holds when
it is asked back: a longer max_model_len or a larger max_num_seqs costs memory itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvplan.errors import KvplanError
from kvplan.memory.interval import Interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.config.serving import ServingConfig
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.planner import Planner


@dataclass(frozen=True, slots=True)
class Solved:
    """The largest number that holds, and what it was verified with."""

    value: Interval
    """Each end by itself: the largest whose own estimate holds at that end; 0 where nothing does."""
    flags: dict[str, int] = field(default_factory=dict)
    """Flags to set for `value.mid`, beside those that were given."""
    answer: Estimate | None = None
    """The estimate of `value.mid` with these flags; None where it is 0."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One number, asked back."""

    flags: dict[str, int]
    answer: Estimate
    holds: Interval
    """Requests that run at once with the flags."""
    needed: int


def longest_request(planner: Planner, serving: ServingConfig, concurrency: int) -> Solved:
    """Tokens of the longest request of which `concurrency` run at once, at most what the model takes.

    Verified with max_model_len at that length, and max_num_seqs at the target where it is below.
    """
    base = planner.estimate(serving)

    def ask(length: int) -> _Candidate | None:
        return _ask(planner, serving, {"max_model_len": length}, concurrency=concurrency, num_tokens=length)

    limit = max(base.shape.max_model_len, base.max_model_len)
    return _largest(ask, Interval.exactly(limit))


def most_requests(planner: Planner, serving: ServingConfig, num_tokens: int) -> Solved:
    """Requests of that many tokens that run at once.

    Verified with max_num_seqs at that number, and max_model_len at `num_tokens`, where they are below; 0
    where the model does not take such requests.
    """
    base = planner.estimate(serving)
    length = {"max_model_len": num_tokens} if num_tokens > base.max_model_len else {}

    def ask(count: int) -> _Candidate | None:
        return _ask(planner, serving, length, concurrency=count, num_tokens=num_tokens)

    # Larger flags leave less for the KV cache, never more.
    return _largest(ask, base.capacity.requests(num_tokens))


def _ask(
    planner: Planner, serving: ServingConfig, flags: dict[str, int], *, concurrency: int, num_tokens: int
) -> _Candidate | None:
    """The estimate with these flags, and max_num_seqs at the target where it is below; None: refused."""
    try:
        answer = planner.estimate(serving.with_flags(**flags))
        if answer.settings.max_num_seqs < concurrency:
            flags = flags | {"max_num_seqs": concurrency}
            answer = planner.estimate(serving.with_flags(**flags))
    except KvplanError:
        return None
    return _Candidate(flags, answer, answer.capacity.requests(num_tokens), concurrency)


def _largest(ask: Callable[[int], _Candidate | None], limit: Interval) -> Solved:
    """The largest number up to the limit that holds, at each end of the prediction."""
    asked: dict[int, _Candidate | None] = {}

    def candidate(number: int) -> _Candidate | None:
        if number not in asked:
            asked[number] = ask(number)
        return asked[number]

    def search(end: str) -> int:
        low, high = 0, getattr(limit, end)
        while low < high:
            middle = (low + high + 1) // 2
            found = candidate(middle)
            if found is not None and getattr(found.holds, end) >= found.needed:
                low = middle
            else:
                high = middle - 1
        return low

    mid = search("mid")
    value = Interval(min(mid, search("low")), mid, max(mid, search("high")))
    found = candidate(mid) if mid else None
    return Solved(value) if found is None else Solved(value, found.flags, found.answer)
