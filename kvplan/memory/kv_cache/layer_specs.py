"""Every layer's cache on one rank, in vLLM's order of registration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvplan.architecture.layers import (
    ChunkedLocal,
    CrossAttention,
    DeepseekV4Attention,
    IndexKeys,
    KdaState,
    Mamba2State,
    Mla,
    MlaIndexer,
    RecurrentState,
    SlidingWindow,
)
from kvplan.memory.kv_cache.block_size import align, recurrent_dtypes
from kvplan.memory.kv_cache.deepseek_v4 import deepseek_v4_specs
from kvplan.memory.kv_cache.dtypes import MODEL_DTYPE_BYTES, head_token_bytes, latent_token_bytes, packs
from kvplan.memory.kv_cache.layer_backends import LayerBackend, layer_backend
from kvplan.memory.kv_cache.spec import CacheSpec
from kvplan.memory.kv_cache.states import state_bytes
from kvplan.record import FrozenRecord
from kvplan.units import round_up

if TYPE_CHECKING:
    from kvplan.architecture.layers import KvHeadsCache, Layer, LayerCache
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.memory.kv_cache.block_size import Alignment
    from kvplan.memory.kv_cache.rank import Rank
    from kvplan.memory.kv_cache.spec import Kind


class LayerSpec(NamedTuple):
    """One cache of one decoder layer."""

    layer: int
    """Index of the decoder layer: pipeline stages are cut by it."""
    spec: CacheSpec


class RankLayers(FrozenRecord):
    """All caches of the model on one rank of tensor parallelism."""

    layers: tuple[LayerSpec, ...]
    block_size: int
    backends: tuple[str, ...]
    blocks_outermost: bool
    """Pages of different sizes lie side by side within a block (DeepSeek-V4)."""
    warnings: tuple[str, ...]


def rank_layers(shape: ModelShape, rank: Rank) -> RankLayers:
    """The caches that one rank allocates.

    Raises:
        InputError: vLLM refuses the combination.
    """
    caches = [
        (index, cache) for index, layer in enumerate(shape.layers) for cache in _caches(shape, rank, layer)
    ]
    backends: dict[tuple[LayerCache, str], LayerBackend] = {}
    for index, cache in caches:
        dtype = _layer_dtype(rank, index, cache)
        if not isinstance(cache, RecurrentState) and (cache, dtype) not in backends:
            backends[cache, dtype] = layer_backend(shape, rank, cache, dtype)
    by_name = {backend.name: backend for backend in backends.values()}
    alignment = align(shape, rank, tuple(by_name.values()))
    builder = _SpecBuilder(shape, rank, backends, alignment)
    warnings = dict.fromkeys(note for backend in backends.values() for note in backend.warnings)
    return RankLayers(
        layers=tuple(
            LayerSpec(index, spec) for index, cache in caches for spec in builder.specs(index, cache)
        ),
        block_size=alignment.block_size,
        backends=tuple(sorted({name for backend in backends.values() for name in backend.all_names})),
        blocks_outermost=any(isinstance(cache, DeepseekV4Attention) for _, cache in caches),
        warnings=(*warnings, *alignment.warnings, *_skips_nothing(shape, rank)),
    )


def _skips_nothing(shape: ModelShape, rank: Rank) -> tuple[str, ...]:
    """A line on entries of --kv-cache-dtype-skip-layers that no layer answers to.

    Source: vLLM 0.32.0 model_executor/layers/attention/attention.py::Attention.__init__ compares each layer's
    index, as text, with the entries, and takes any other entry without a word; blocks are aligned even so.
    """
    kept = {
        str(index): cache
        for index, layer in enumerate(shape.layers)
        for cache in layer
        if not isinstance(cache, RecurrentState)
    }
    slides = {"sliding_window"} if any(isinstance(c, SlidingWindow) for c in kept.values()) else set()
    unknown = sorted(rank.skip_layers - kept.keys() - slides)
    if not unknown:
        return ()
    known = f"layers that cache keys and values: 0 to {shape.num_layers - 1}" if kept else "it caches nothing"
    if 0 < len(kept) < shape.num_layers:
        known = f"layers that cache keys and values: {', '.join(kept)}"
    said = (
        f"--kv-cache-dtype-skip-layers {' '.join(unknown)} names no layer of this model ({known}"
        f"{', or sliding_window' if slides else ''}); vLLM takes it without a word and skips nothing for it"
    )
    return (said,)


def _caches(shape: ModelShape, rank: Rank, layer: Layer) -> Layer:
    """Up to 0.23 a layer that shares another's choice of tokens had an indexer all the same.

    Source: vLLM model_executor/models/deepseek_v2.py::DeepseekV2MLAAttention of 0.22.1 and 0.24.0.
    """
    if not rank.era.indexes_every_layer or not any(isinstance(c, Mla) and c.sparse for c in layer):
        return layer
    indexer = next(c for other in shape.layers for c in other if isinstance(c, MlaIndexer))
    return layer if indexer in layer else (indexer, *layer)


def _layer_dtype(rank: Rank, index: int, cache: LayerCache) -> str:
    """The layer's own kv_cache_dtype: `auto` where it is skipped."""
    slides = isinstance(cache, SlidingWindow) and "sliding_window" in rank.skip_layers
    return "auto" if slides or str(index) in rank.skip_layers else rank.kv_cache_dtype


class _SpecBuilder:
    """Caches to specs, for one rank and its final block size."""

    def __init__(
        self,
        shape: ModelShape,
        rank: Rank,
        backends: dict[tuple[LayerCache, str], LayerBackend],
        alignment: Alignment,
    ) -> None:
        self._rank, self._backends = rank, backends
        self._state_dtypes = recurrent_dtypes(shape, rank)
        self._block_size = alignment.block_size
        self._state_block = alignment.state_block or alignment.block_size
        self._skip_page, self._state_page = alignment.skip_page, alignment.state_page

    def specs(self, index: int, cache: LayerCache) -> tuple[CacheSpec, ...]:
        """The specs of one cache (several for DeepSeek-V4)."""
        match cache:
            case DeepseekV4Attention():
                return deepseek_v4_specs(cache, self._block_size)
            case Mla():
                spec = self._latent(index, cache)
            case MlaIndexer():
                # One fp8 value an element and one 4-byte scale for 128 of them.
                spec = self._per_token("mla", cache.head_dim + cache.head_dim // 128 * 4, ("indexer",))
            case IndexKeys():
                spec = self._per_token("mla", 2 * cache.head_dim, ("index keys",))
            case SlidingWindow():
                spec = self._window(index, cache)
            case _ if isinstance(cache, RecurrentState):
                spec = self._state(cache)
            case _:
                spec = self._heads(index, cache)
        return (spec,)

    def _per_token(self, kind: Kind, token_bytes: int, identity: tuple[object, ...]) -> CacheSpec:
        page = self._block_size * token_bytes
        return CacheSpec(kind, self._block_size, page, page, (*identity, token_bytes))

    def _token_bytes(self, index: int, cache: KvHeadsCache) -> int:
        dtype = _layer_dtype(self._rank, index, cache)
        heads = max(1, cache.num_kv_heads // self._rank.tensor_parallel_size)
        packed = packs(self._backends[cache, dtype].name, dtype)
        return heads * head_token_bytes(
            dtype, self._rank.dtype, cache.head_dim, cache.head_dim_v, packed=packed
        )

    def _identity(self, index: int, cache: KvHeadsCache) -> tuple[object, ...]:
        dtype = _layer_dtype(self._rank, index, cache)
        return cache.num_kv_heads, cache.head_dim, cache.head_dim_v, dtype

    def _heads(self, index: int, cache: KvHeadsCache) -> CacheSpec:
        token_bytes, identity = self._token_bytes(index, cache), self._identity(index, cache)
        match cache:
            case ChunkedLocal():
                spec = self._per_token("chunked_local", token_bytes, identity)
                return spec._replace(span=cache.chunk)
            case CrossAttention():
                spec = self._per_token("cross", token_bytes, identity)
                return spec._replace(span=cache.max_encoder_tokens)
            case _:
                return self._per_token("full", token_bytes, identity)

    def _window(self, index: int, cache: SlidingWindow) -> CacheSpec:
        """Windows choose their own block size: the longest kernel block within the shared page.

        Source: vLLM 0.32.0 attention.py::Attention.get_kv_cache_spec.
        """
        token_bytes, identity = self._token_bytes(index, cache), self._identity(index, cache)
        budget = self._skip_page or token_bytes * self._block_size
        sizes = self._backends[cache, _layer_dtype(self._rank, index, cache)].sizes
        block_size = sizes.largest_within(token_bytes, budget)
        content = block_size * token_bytes
        page = content if self._skip_page is None else self._skip_page
        return CacheSpec("sliding_window", block_size, page, content, identity, span=cache.window)

    def _latent(self, index: int, cache: Mla) -> CacheSpec:
        stored = self._backends[cache, _layer_dtype(self._rank, index, cache)].stored_dtype
        width = cache.kv_lora_rank + cache.qk_rope_head_dim
        if self._rank.era.aligns_latents and self._rank.is_cuda:
            width = round_up(width, 256 // MODEL_DTYPE_BYTES[self._rank.dtype])
        return self._per_token(
            "mla", latent_token_bytes(stored, self._rank.dtype, width), ("latents", stored)
        )

    def _state(self, cache: RecurrentState) -> CacheSpec:
        rank = self._rank
        drafts = rank.num_speculative_tokens
        content = state_bytes(cache, self._state_dtypes, rank.tensor_parallel_size, drafts)
        kind: Kind = "mamba"
        if rank.state_mode == "all":
            kind, block_size, resident = "mamba_blocks", self._state_block, drafts
        elif rank.state_mode == "align":
            block_size, resident = self._block_size, 2 + drafts + self._checkpoints(cache)
        else:
            block_size, resident = rank.max_model_len, 1 + drafts
        return CacheSpec(kind, block_size, self._state_page or content, content, (cache,), span=resident)

    def _checkpoints(self, cache: RecurrentState) -> int:
        """A state exported from inside a prefill takes one block more: Mamba-2, and KDA with FlashKDA.

        Source: vLLM 0.32.0 mamba_mixer2.py::get_kv_cache_spec, models/kimi_k3/nvidia/kda.py.
        """
        if not self._rank.era.state_checkpoints:
            return 0
        if isinstance(cache, Mamba2State):
            return 1
        if not isinstance(cache, KdaState) or self._rank.capability is None:
            return 0
        fast = self._rank.capability[0] in {9, 10, 12} and self._rank.dtype == "bfloat16"
        return int(fast and cache.head_dim == 128 and cache.bounded_gate)
