"""How many requests of which length the KV cache serves at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from kvplan.memory.interval import Interval
    from kvplan.memory.kv_cache.plan import KvCachePlan


class LengthSummary(NamedTuple):
    """One quantity of a workload's lengths, in tokens, rounded up."""

    mean: int
    p95: int
    p99: int


class RequestLengths(NamedTuple):
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


class Capacity(FrozenRecord):
    """What fits at once, worked out when it is asked. Requests are bounded by memory, not by max_num_seqs."""

    plan: KvCachePlan
    num_blocks: Interval
    """Of the pool, the null block included, as vLLM counts them."""
    max_model_len: int
    lengths: RequestLengths | None

    @property
    def tokens(self) -> Interval:
        """What vLLM prints as "GPU KV cache size"."""
        return self.num_blocks.map(lambda blocks: self.plan.kv_cache_tokens(blocks, self.max_model_len))

    @property
    def max_concurrency(self) -> tuple[float, float, float]:
        """What vLLM prints as "Maximum concurrency": low, mid, high."""
        low, mid, high = (
            self.plan.max_concurrency(blocks, self.max_model_len)
            for blocks in (self.num_blocks.low, self.num_blocks.mid, self.num_blocks.high)
        )
        return low, mid, high

    def requests(self, num_tokens: int) -> Interval:
        """Requests of that total length that run at once, with nobody waiting for memory."""
        return self.num_blocks.map(lambda blocks: self.plan.concurrent_requests(blocks, num_tokens))

    @property
    def worst_case(self) -> Interval:
        """Requests of max_model_len tokens each."""
        return self.requests(self.max_model_len)

    @property
    def mean(self) -> Interval | None:
        """Requests of the workload's mean total length; None without a workload."""
        return None if self.lengths is None else self.requests(self.lengths.total_len.mean)

    @property
    def p95(self) -> Interval | None:
        """Requests of its P95 total length; None without a workload."""
        return None if self.lengths is None else self.requests(self.lengths.total_len.p95)

    @property
    def p99(self) -> Interval | None:
        """Requests of its P99 total length; None without a workload."""
        return None if self.lengths is None else self.requests(self.lengths.total_len.p99)
