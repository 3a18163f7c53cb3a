"""How many requests of which length the KV cache serves at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.memory.interval import Interval
    from kvplan.memory.kv_cache.plan import KvCachePlan


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """One quantity of a workload's lengths, in tokens, rounded up."""

    mean: int
    p95: int
    p99: int


@dataclass(frozen=True, slots=True)
class RequestLengths:
    """What the memory model needs to know of a workload."""

    concurrency: int | None
    """Requests that shall be served at once; None if nobody said."""
    input_len: LengthSummary
    output_len: LengthSummary
    total_len: LengthSummary
    """Quantiles of input + output of one request: not the sum of their quantiles."""
    longest_total_len: int
    total_lens: tuple[tuple[int, int], ...] = ()
    """(total length, how many requests have it), ascending: the distribution itself."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits at once. Requests are bounded by memory alone, not by max_num_seqs."""

    num_blocks: Interval
    tokens: Interval
    """What vLLM prints as "GPU KV cache size"."""
    max_concurrency: tuple[float, float, float]
    """What vLLM prints as "Maximum concurrency": low, mid, high."""
    worst_case: Interval
    """Requests of max_model_len tokens each."""
    mean: Interval | None
    """Requests of the workload's mean total length; None without a workload."""
    p95: Interval | None
    p99: Interval | None


def capacity(
    plan: KvCachePlan, num_blocks: Interval, max_model_len: int, lengths: RequestLengths | None
) -> Capacity:
    """Capacity of a pool of that many blocks (the null block included, as vLLM counts them)."""

    def requests(num_tokens: int) -> Interval:
        length = min(num_tokens, max_model_len)
        return num_blocks.map(lambda blocks: plan.concurrent_requests(blocks, length))

    def printed_concurrency(blocks: int) -> float:
        return plan.max_concurrency(blocks, max_model_len)

    return Capacity(
        num_blocks=num_blocks,
        tokens=num_blocks.map(lambda blocks: plan.kv_cache_tokens(blocks, max_model_len)),
        max_concurrency=(
            printed_concurrency(num_blocks.low),
            printed_concurrency(num_blocks.mid),
            printed_concurrency(num_blocks.high),
        ),
        worst_case=requests(max_model_len),
        mean=requests(lengths.total_len.mean) if lengths else None,
        p95=requests(lengths.total_len.p95) if lengths else None,
        p99=requests(lengths.total_len.p99) if lengths else None,
    )
