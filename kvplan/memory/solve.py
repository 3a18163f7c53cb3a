"""The other direction: from a target to the longest request, or the most requests, that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.interval import Interval


def longest_request(answer: Estimate, concurrency: int) -> Interval:
    """Tokens of the longest request of which `concurrency` run at once, at most what the model takes.

    0 where not even requests of one token do. The pool is the estimate's own: its length plays no part in it.
    """
    plan, longest = answer.plan, answer.shape.max_model_len

    def solve(num_blocks: int) -> int:
        low, high = 0, longest
        while low < high:
            middle = (low + high + 1) // 2
            if plan.concurrent_requests(num_blocks, middle) >= concurrency:
                low = middle
            else:
                high = middle - 1
        return low

    return answer.capacity.num_blocks.map(solve)


def most_requests(answer: Estimate, num_tokens: int) -> Interval:
    """Requests of that many tokens that run at once."""
    return answer.capacity.num_blocks.map(lambda blocks: answer.plan.concurrent_requests(blocks, num_tokens))
