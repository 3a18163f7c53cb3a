"""DeepSeek-V4's caches: a window of latents, compressed latents, an indexer and the compressors' states.

Source: vLLM 0.32.0 models/deepseek_v4/{attention,compressor}.py and v1/attention/backends/mla/sparse_swa.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kvplan.memory.kv_cache.spec import CacheSpec
from kvplan.units import round_up

if TYPE_CHECKING:
    from kvplan.architecture.layers import DeepseekV4Attention

_LATENT_BYTES: Final = 584
"""448 of fp8 values, 64 bfloat16 of the rotary key, 8 of scales."""
_WINDOW_BLOCK: Final = 64
_KERNEL_BLOCK: Final = 256
_ALIGNMENT: Final = 576
"""Bytes that a page is rounded to: the stride of FlashMLA's decode kernel."""


def deepseek_v4_specs(cache: DeepseekV4Attention, block_size: int) -> tuple[CacheSpec, ...]:
    """The specs of one layer in vLLM's order of registration."""
    window = _window(_WINDOW_BLOCK, _LATENT_BYTES, cache.window, "latents")
    ratio = cache.compress_ratio
    if ratio <= 1:
        return (window,)
    # Density 4 compresses overlapping pairs of groups, density 128 each group alone.
    overlap = 2 if ratio == 4 else 1
    state_block = 4 if ratio == 4 else 8

    def state(width: int, what: str) -> CacheSpec:
        return _window(state_block, 2 * overlap * width * 4, overlap * ratio, what)

    latents = _compressed(block_size, ratio, _LATENT_BYTES, "latents")
    if ratio != 4:
        return window, latents, state(cache.head_dim, "state")
    index_bytes = cache.index_head_dim + cache.index_head_dim // 128 * 4
    return (
        _compressed(block_size, ratio, index_bytes, "indexer"),
        state(cache.index_head_dim, "indexer state"),
        window,
        latents,
        state(cache.head_dim, "state"),
    )


def _window(block_size: int, token_bytes: int, span: int, what: str) -> CacheSpec:
    content = block_size * token_bytes
    return CacheSpec(
        "mla_window", block_size, round_up(content, _ALIGNMENT), content, (what, token_bytes), span=span
    )


def _compressed(block_size: int, ratio: int, entry_bytes: int, what: str) -> CacheSpec:
    content = block_size // ratio * entry_bytes
    kernel = math.gcd(_KERNEL_BLOCK, block_size)
    # Blocks longer than a kernel block are read as several, which must not be torn by the next layer.
    stride = 1 if kernel == block_size else round_up(kernel // ratio * entry_bytes, _ALIGNMENT)
    return CacheSpec(
        "mla",
        block_size,
        round_up(content, _ALIGNMENT),
        content,
        (what, entry_bytes, ratio),
        stride_alignment=stride,
    )
