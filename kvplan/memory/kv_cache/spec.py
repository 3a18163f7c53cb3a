"""CacheSpec: one layer's cache on one rank, and how many blocks a request takes of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvplan.record import FrozenRecord
from kvplan.units import cdiv

Kind = Literal[
    "full", "sliding_window", "chunked_local", "mla", "mla_window", "mamba", "mamba_blocks", "cross"
]
GROWING: frozenset[Kind] = frozenset({"full", "mla"})
"""Kinds whose blocks hold tokens, and more of them with every token of a request."""
STATES: frozenset[Kind] = frozenset({"mamba", "mamba_blocks"})
"""Recurrent states: a fixed number of them, or one for each block of the request."""


class Demand(FrozenRecord):
    """What a request may hold at worst: the terms of vLLM's `max_memory_usage_bytes`."""

    in_flight_tokens: int
    """Tokens scheduled and not yet settled; windows keep their blocks for them."""
    decode_context_parallel_size: int = 1
    encoder_tokens: int = 0
    """What vLLM budgets for one request's encoder: a whole batch (config/scheduler.py)."""


class CacheSpec(NamedTuple):
    """One layer's cache. Two layers may share a block table when their specs are equal.

    Source: vLLM 0.32.0 v1/kv_cache_interface.py, the KVCacheSpec classes.
    """

    kind: Kind
    block_size: int
    """Tokens of one block."""
    page_bytes: int
    """One block, padding included."""
    content_bytes: int
    """One block without its padding."""
    identity: tuple[object, ...]
    """What else vLLM compares before it merges layers: heads, sizes, dtype, quantisation."""
    span: int = 0
    """Window or chunk in tokens, encoder tokens of cross attention, or resident blocks of a state."""
    stride_alignment: int = 1
    """Bytes that the distance between blocks must be a multiple of, where layers lie side by side."""

    def request_blocks(self, num_tokens: int, demand: Demand) -> int:
        """Blocks that one request of that many tokens may hold at worst.

        Source: vLLM 0.32.0 v1/kv_cache_interface.py, `max_memory_usage_bytes` of each class; the extra
        block of a window is for its first block being only partly inside.
        """
        match self.kind:
            case "full" | "mla":
                return cdiv(cdiv(num_tokens, demand.decode_context_parallel_size), self.block_size)
            case "sliding_window" | "mla_window":
                held = min(self.span - 1 + demand.in_flight_tokens, num_tokens)
                return cdiv(held, self.block_size) + 1
            case "chunked_local":
                return cdiv(min(self.span + demand.in_flight_tokens, num_tokens), self.block_size)
            case "cross":
                return cdiv(demand.encoder_tokens, self.block_size)
            case "mamba":
                return self.span
            case "mamba_blocks":
                return cdiv(num_tokens, self.block_size) + self.span

    def steady_blocks(self, num_tokens: int, demand: Demand) -> int:
        """Blocks held between steps while that request decodes: windows keep two tokens in flight."""
        if self.kind in {"sliding_window", "mla_window"}:
            held = min(self.span - 1 + 2, num_tokens)
            return min(cdiv(held, self.block_size) + 1, cdiv(num_tokens, self.block_size))
        if self.kind == "chunked_local":
            return cdiv(min(self.span, num_tokens), self.block_size)
        if self.kind == "cross":
            return cdiv(self.span, self.block_size)
        return self.request_blocks(num_tokens, demand)

    def with_blocks_of(self, ratio: int) -> CacheSpec:
        """The same cache in blocks `ratio` times as long."""
        return self._replace(
            block_size=self.block_size * ratio,
            page_bytes=self.page_bytes * ratio,
            content_bytes=self.content_bytes * ratio,
        )

    def padded_to(self, page_bytes: int) -> CacheSpec:
        """The same cache with its page padded."""
        return self._replace(page_bytes=page_bytes)
