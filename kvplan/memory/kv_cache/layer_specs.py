"""Every layer's cache on one rank, in vLLM's order of registration, and the block size they end with."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvplan.architecture.layers import (
    BlockSparseAttention,
    ChunkedLocal,
    CrossAttention,
    DeepseekV4Attention,
    FullAttention,
    GatedDeltaNetState,
    IndexKeys,
    KdaState,
    LayerCache,
    Mamba1State,
    Mamba2State,
    Mla,
    MlaIndexer,
    ShortConvState,
    SlidingWindow,
)
from kvplan.errors import InputError
from kvplan.memory.kv_cache.dtypes import head_token_bytes, latent_token_bytes
from kvplan.memory.kv_cache.layer_backends import LayerBackend, layer_backend
from kvplan.memory.kv_cache.sizes import common_block_size
from kvplan.memory.kv_cache.spec import CacheSpec, Kind
from kvplan.memory.kv_cache.states import StateDtypes, state_bytes, state_dtypes
from kvplan.units import cdiv, round_up

if TYPE_CHECKING:
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.memory.kv_cache.rank import Rank

_DEFAULT_BLOCK_SIZE: Final = 16
_CPU_BLOCK_SIZE: Final = 128
_STATES: Final = (Mamba1State, Mamba2State, GatedDeltaNetState, KdaState, ShortConvState)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One cache of one decoder layer."""

    layer: int
    """Index of the decoder layer: pipeline stages are cut by it."""
    spec: CacheSpec


@dataclass(frozen=True, slots=True)
class RankLayers:
    """All caches of the model on one rank of tensor parallelism."""

    layers: tuple[LayerSpec, ...]
    block_size: int
    kv_cache_dtype: str
    backends: tuple[str, ...]
    blocks_outermost: bool
    """Pages of different sizes lie side by side within a block (DeepSeek-V4)."""
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Alignment:
    """Block and page sizes as vLLM's start-up changes them."""

    block_size: int
    mamba_page: int | None = None
    skip_page: int | None = None
    warnings: list[str] = field(default_factory=list)


def rank_layers(shape: ModelShape, rank: Rank) -> RankLayers:
    """The caches that one rank allocates.

    Raises:
        InputError: vLLM refuses the combination.
        UnsupportedModelError: no exact rule covers it.
    """
    dtype = resolved_kv_cache_dtype(shape, rank)
    skip = _skip_layers(shape, rank, dtype)
    backends = _Backends(shape, rank, dtype, skip)
    alignment = _align(shape, rank, dtype, skip, backends)
    builder = _SpecBuilder(shape, rank, dtype, skip, backends, alignment)
    layers = tuple(
        LayerSpec(index, spec)
        for index, caches in enumerate(shape.layers)
        for cache in caches
        for spec in builder.specs(index, cache)
    )
    return RankLayers(
        layers=layers,
        block_size=alignment.block_size,
        kv_cache_dtype=dtype,
        backends=tuple(sorted(backends.names())),
        blocks_outermost=any(
            isinstance(cache, DeepseekV4Attention) for caches in shape.layers for cache in caches
        ),
        warnings=(*backends.warnings, *alignment.warnings),
    )


def resolved_kv_cache_dtype(shape: ModelShape, rank: Rank) -> str:
    """What the cache is stored in: the flag, or what model, checkpoint and card make of `auto`.

    Source: vLLM 0.32.0 utils/torch_utils.py::resolve_kv_cache_dtype_string and
    model_executor/models/config.py (DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM).
    """
    dtype = rank.kv_cache_dtype
    if dtype == "auto" and shape.checkpoint_kv_cache_dtype is not None:
        dtype = shape.checkpoint_kv_cache_dtype
    if shape.architecture == "DeepseekV32ForCausalLM" and dtype == "bfloat16":
        return "auto"
    blackwell = rank.capability is not None and rank.capability[0] == 10
    if shape.architecture == "GlmMoeDsaForCausalLM" and dtype == "auto" and blackwell:
        return "fp8_e4m3"
    return dtype


def _skip_layers(shape: ModelShape, rank: Rank, dtype: str) -> frozenset[str]:
    """Layers kept in the model's dtype: those asked for, and TurboQuant's two at either end.

    Source: vLLM 0.32.0 engine/arg_utils.py::create_engine_config and
    quantization/turboquant/config.py::get_boundary_skip_layers.
    """
    skip = set(rank.skip_layers)
    if dtype.startswith("turboquant_") and not shape.is_hybrid:
        edge = min(2, shape.num_layers // 2)
        indices = (*range(edge), *range(shape.num_layers - edge, shape.num_layers))
        skip.update(map(str, indices))
    return frozenset(skip)


class _Backends:
    """The backend of each layer, asked once for each distinct kind of layer."""

    def __init__(self, shape: ModelShape, rank: Rank, dtype: str, skip: frozenset[str]) -> None:
        self._shape, self._rank, self._dtype, self._skip = shape, rank, dtype, skip
        self._known: dict[tuple[LayerCache, str], LayerBackend] = {}
        self.warnings: list[str] = []
        for index, caches in enumerate(shape.layers):
            for cache in caches:
                if not isinstance(cache, _STATES):
                    self.of(index, cache)

    def layer_dtype(self, index: int, cache: LayerCache) -> str:
        """The layer's own kv_cache_dtype: `auto` where it is skipped."""
        slides = isinstance(cache, SlidingWindow) and "sliding_window" in self._skip
        return "auto" if slides or str(index) in self._skip else self._dtype

    def of(self, index: int, cache: LayerCache) -> LayerBackend:
        """The backend of one layer's cache."""
        key = cache, self.layer_dtype(index, cache)
        if key not in self._known:
            found = layer_backend(self._shape, self._rank, cache, key[1])
            self._known[key] = found
            self.warnings.extend(w for w in found.warnings if w not in self.warnings)
        return self._known[key]

    def distinct(self) -> tuple[LayerBackend, ...]:
        """One of each name, in the order of the layers."""
        first: dict[str, LayerBackend] = {}
        for backend in self._known.values():
            first.setdefault(backend.name, backend)
        return tuple(first.values())

    def names(self) -> set[str]:
        """Names of all backends."""
        return {backend.name for backend in self._known.values()}


def _align(
    shape: ModelShape, rank: Rank, dtype: str, skip: frozenset[str], backends: _Backends
) -> _Alignment:
    """The block size that vLLM ends with.

    Source: vLLM 0.32.0 platforms/interface.py::update_block_size_for_backend, platforms/cpu.py.
    """
    distinct = backends.distinct()
    alignment = _Alignment(_first_block_size(shape, rank, distinct))
    if not distinct:
        return alignment
    if shape.is_hybrid:
        _align_hybrid(shape, rank, dtype, skip, distinct, alignment)
    if skip and rank.is_cuda:
        _align_skipped(shape, rank, dtype, distinct[0], alignment)
    return alignment


def _first_block_size(shape: ModelShape, rank: Rank, distinct: tuple[LayerBackend, ...]) -> int:
    if rank.platform == "cpu":
        return _cpu_block_size(shape, rank)
    if rank.block_size is not None or not distinct:
        return rank.block_size or _DEFAULT_BLOCK_SIZE
    size = common_block_size([backend.sizes for backend in distinct], _DEFAULT_BLOCK_SIZE)
    if size is None:
        names = "; ".join(f"{backend.name}: {list(backend.sizes.all)}" for backend in distinct)
        raise InputError(f"The attention backends share no supported KV cache block size ({names}).")
    return size


def _cpu_block_size(shape: ModelShape, rank: Rank) -> int:
    """Source: vLLM 0.32.0 platforms/cpu.py::CpuPlatform.check_and_update_config."""
    if any(isinstance(cache, DeepseekV4Attention) for caches in shape.layers for cache in caches):
        return 256
    if shape.uses_mla and not rank.has_cpu_feature("amx"):
        return 16
    return rank.block_size or _CPU_BLOCK_SIZE


def _align_hybrid(
    shape: ModelShape,
    rank: Rank,
    dtype: str,
    skip: frozenset[str],
    distinct: tuple[LayerBackend, ...],
    alignment: _Alignment,
) -> None:
    """Attention blocks as long as a recurrent state is big; the state padded to the block.

    Source: vLLM 0.32.0 platforms/interface.py::_align_hybrid_block_size.
    """
    dtypes = _state_dtypes(shape, rank)
    states = [
        state_bytes(cache, dtypes, rank.tensor_parallel_size, rank.num_speculative_tokens)
        for caches in shape.layers
        for cache in caches
        if isinstance(cache, _STATES)
    ]
    mamba_page = max(states)
    token_bytes = _model_token_bytes(shape, rank, dtype)
    if dtype.startswith("turboquant_") and skip:
        token_bytes = math.lcm(token_bytes, _model_token_bytes(shape, rank, "auto"))
    unit = max(distinct[0].sizes.smallest, alignment.block_size)
    if shape.uses_mla:
        unit = max(unit, 128)
    block_size = unit * cdiv(mamba_page, unit * token_bytes)
    block_size = round_up(block_size, math.lcm(*(backend.sizes.smallest for backend in distinct)))
    if alignment.block_size < block_size:
        if rank.block_size is not None:
            alignment.warnings.append(
                f"vLLM sets the attention block size to {block_size} tokens instead of {rank.block_size}: "
                "a block must hold a recurrent state"
            )
        alignment.block_size = block_size
    page = alignment.block_size * token_bytes
    if page != mamba_page:
        alignment.mamba_page = page


def _align_skipped(
    shape: ModelShape, rank: Rank, dtype: str, first: LayerBackend, alignment: _Alignment
) -> None:
    """Quantised blocks long enough for the page of a layer that is kept in the model's dtype.

    Source: vLLM 0.32.0 platforms/interface.py::_align_heterogeneous_kv_block_size.
    """
    primary = _model_token_bytes(shape, rank, dtype)
    padded = _model_token_bytes(shape, rank, "auto")
    if padded == primary:
        return
    smallest = first.sizes.smallest
    unit = max(smallest, alignment.block_size)
    required = max(padded * smallest, alignment.mamba_page or 0)
    block_size = unit * cdiv(required, unit * primary)
    if alignment.block_size < block_size:
        if rank.block_size is not None:
            alignment.warnings.append(
                f"vLLM sets the attention block size to {block_size} tokens instead of {rank.block_size}: "
                "a quantised page must cover that of a skipped layer"
            )
        alignment.block_size = block_size
    alignment.skip_page = alignment.block_size * primary
    if alignment.mamba_page is not None:
        alignment.mamba_page = alignment.skip_page


def _model_token_bytes(shape: ModelShape, rank: Rank, dtype: str) -> int:
    """One token in one attention layer, from the model's own head count and size."""
    if shape.uses_mla:
        return latent_token_bytes(dtype, rank.dtype, shape.head_dim)
    heads = max(1, shape.num_key_value_heads // rank.tensor_parallel_size)
    packed = rank.platform != "cpu"
    return heads * head_token_bytes(dtype, rank.dtype, shape.head_dim, shape.head_dim, packed=packed)


def _state_dtypes(shape: ModelShape, rank: Rank) -> StateDtypes:
    ssm = rank.mamba_ssm_cache_dtype
    if ssm == "auto" and shape.mamba_ssm_dtype is not None:
        ssm = shape.mamba_ssm_dtype
    if rank.platform == "cpu" and rank.has_cpu_feature("avx512_bf16") and ssm != "float32":
        # vLLM 0.32.0 platforms/cpu.py: only an explicit half precision of a delta net is kept.
        delta_net = any(isinstance(c, GatedDeltaNetState) for caches in shape.layers for c in caches)
        if not (ssm in {"float16", "bfloat16"} and delta_net):
            ssm = "float32"
    return state_dtypes(rank.dtype, rank.mamba_cache_dtype, ssm)


def mamba_mode(shape: ModelShape, rank: Rank) -> str:
    """`align` (states are kept at block ends for the prefix cache) or `none`.

    Hybrids had prefix caching off by default up to 0.25; models without attention never have it.

    Source: vLLM 0.32.0 model_executor/models/config.py::MambaModelConfig, config/model.py.
    """
    if shape.is_attention_free or not rank.enable_prefix_caching:
        return "none"
    if rank.vllm_version < (0, 26, 0) and rank.prefix_caching_defaulted:
        return "none"
    return "align"


class _SpecBuilder:
    """Caches to specs, for one rank and its final block size."""

    def __init__(
        self,
        shape: ModelShape,
        rank: Rank,
        dtype: str,
        skip: frozenset[str],
        backends: _Backends,
        alignment: _Alignment,
    ) -> None:
        self._shape, self._rank, self._dtype, self._skip = shape, rank, dtype, skip
        self._backends, self._alignment = backends, alignment
        self._mode = mamba_mode(shape, rank)
        self._state_dtypes = _state_dtypes(shape, rank)

    def specs(self, index: int, cache: LayerCache) -> tuple[CacheSpec, ...]:
        """The specs of one cache (several for DeepSeek-V4)."""
        match cache:
            case FullAttention() | BlockSparseAttention():
                return (self._heads(index, cache, "full"),)
            case CrossAttention():
                spec = self._heads(index, cache, "cross")
                return (dataclasses.replace(spec, span=cache.max_encoder_tokens),)
            case ChunkedLocal():
                spec = self._heads(index, cache, "chunked_local")
                return (dataclasses.replace(spec, span=cache.chunk),)
            case SlidingWindow():
                return (self._window(index, cache),)
            case Mla():
                return (self._latent(index, cache),)
            case MlaIndexer():
                # 128 fp8 values and a 4-byte scale.
                width = cache.head_dim + cache.head_dim // 128 * 4
                return (self._page("mla", self._alignment.block_size, width, ("indexer", width)),)
            case IndexKeys():
                return (
                    self._page(
                        "mla", self._alignment.block_size, cache.head_dim * 2, ("index", cache.head_dim)
                    ),
                )
            case DeepseekV4Attention():
                return self._deepseek_v4(cache)
            case Mamba1State() | Mamba2State() | GatedDeltaNetState() | KdaState() | ShortConvState():
                return (self._state(cache),)

    def _page(self, kind: Kind, block_size: int, token_bytes: int, identity: tuple[object, ...]) -> CacheSpec:
        page = block_size * token_bytes
        return CacheSpec(kind, block_size, page, page, identity)

    def _token_bytes(self, index: int, cache: LayerCache) -> tuple[int, str]:
        assert isinstance(
            cache, FullAttention | SlidingWindow | ChunkedLocal | CrossAttention | BlockSparseAttention
        )
        dtype = self._backends.layer_dtype(index, cache)
        heads = max(1, cache.num_kv_heads // self._rank.tensor_parallel_size)
        packed = self._rank.platform != "cpu"
        each = head_token_bytes(dtype, self._rank.dtype, cache.head_dim, cache.head_dim_v, packed=packed)
        return heads * each, dtype

    def _heads(self, index: int, cache: LayerCache, kind: Kind) -> CacheSpec:
        token_bytes, dtype = self._token_bytes(index, cache)
        identity = (cache_identity(cache), dtype)
        return self._page(kind, self._alignment.block_size, token_bytes, identity)

    def _window(self, index: int, cache: SlidingWindow) -> CacheSpec:
        """Windows choose their own block size: the longest kernel block within the shared page.

        Source: vLLM 0.32.0 attention.py::Attention.get_kv_cache_spec.
        """
        token_bytes, dtype = self._token_bytes(index, cache)
        budget = self._alignment.skip_page or token_bytes * self._alignment.block_size
        sizes = self._backends.of(index, cache).sizes
        block_size = sizes.largest_within(token_bytes, budget)
        spec = self._page("sliding_window", block_size, token_bytes, (cache_identity(cache), dtype))
        spec = dataclasses.replace(spec, span=cache.window)
        return spec if self._alignment.skip_page is None else spec.padded_to(self._alignment.skip_page)

    def _latent(self, index: int, cache: Mla) -> CacheSpec:
        stored = self._backends.of(index, cache).stored_dtype
        width = cache.kv_lora_rank + cache.qk_rope_head_dim
        token_bytes = latent_token_bytes(stored, self._rank.dtype, width)
        return self._page("mla", self._alignment.block_size, token_bytes, ("latent", width, stored))

    def _state(self, cache: LayerCache) -> CacheSpec:
        assert isinstance(cache, _STATES)
        rank = self._rank
        content = state_bytes(
            cache, self._state_dtypes, rank.tensor_parallel_size, rank.num_speculative_tokens
        )
        page = max(self._alignment.mamba_page or content, content)
        resident = 1 + rank.num_speculative_tokens
        block_size = self._alignment.block_size
        if self._mode == "align":
            resident = 2 + rank.num_speculative_tokens + _checkpoint_blocks(cache, self._state_dtypes, rank)
        else:
            block_size = max(rank.max_model_len, 1)
        return CacheSpec("mamba", block_size, page, content, (cache,), span=resident)

    def _deepseek_v4(self, cache: DeepseekV4Attention) -> tuple[CacheSpec, ...]:
        """Source: vLLM 0.32.0 models/deepseek_v4/{attention,compressor}.py, mla/sparse_swa.py."""
        block_size = self._alignment.block_size
        window = _v4_window(64, 584, cache.window, "latents")
        if cache.compress_ratio <= 1:
            return (window,)
        latents = _v4_compressed(block_size, cache.compress_ratio, 584, "latents")
        overlap = 2 if cache.compress_ratio == 4 else 1
        span = overlap * cache.compress_ratio
        state_block = 4 if cache.compress_ratio == 4 else 8
        state = _v4_window(state_block, 2 * overlap * cache.head_dim * 4, span, "state")
        if cache.compress_ratio != 4:
            return window, latents, state
        index_width = cache.index_head_dim + cache.index_head_dim // 128 * 4
        return (
            _v4_compressed(block_size, cache.compress_ratio, index_width, "indexer"),
            _v4_window(state_block, 2 * overlap * cache.index_head_dim * 4, span, "index state"),
            window,
            latents,
            state,
        )


_V4_ALIGNMENT: Final = 576
"""Bytes that a DeepSeek-V4 page is rounded to: the stride of FlashMLA's decode kernel."""


def _v4_window(block_size: int, token_bytes: int, span: int, what: str) -> CacheSpec:
    content = block_size * token_bytes
    page = round_up(content, _V4_ALIGNMENT)
    return CacheSpec("mla_window", block_size, page, content, (what, token_bytes), span=span)


def _v4_compressed(block_size: int, ratio: int, state_bytes_each: int, what: str) -> CacheSpec:
    content = block_size // ratio * state_bytes_each
    page = round_up(content, _V4_ALIGNMENT)
    kernel = math.gcd(256, block_size)
    stride = 1 if kernel == block_size else round_up(kernel // ratio * state_bytes_each, _V4_ALIGNMENT)
    return CacheSpec(
        "mla",
        block_size,
        page,
        content,
        (what, state_bytes_each, ratio),
        tokens_per_state=ratio,
        stride_alignment=stride,
    )


def _checkpoint_blocks(cache: LayerCache, dtypes: StateDtypes, rank: Rank) -> int:
    """A state exported from inside a prefill: Mamba-2 from 0.32's kernels, KDA with FlashKDA.

    Source: vLLM 0.32.0 mamba_mixer2.py::get_kv_cache_spec, models/kimi_k3/nvidia/kda.py.
    """
    if isinstance(cache, Mamba2State):
        return 1
    if isinstance(cache, KdaState):
        fast = (
            rank.is_cuda
            and rank.capability is not None
            and rank.capability[0] in {9, 10, 12}
            and cache.head_dim == 128
            and cache.bounded_gate
            and rank.dtype == "bfloat16"
            and dtypes.kda_recurrent_bytes in {2, 4}
        )
        return int(fast)
    return 0


def cache_identity(cache: LayerCache) -> tuple[object, ...]:
    """What vLLM compares of a cache with heads, besides its block size and dtype."""
    assert isinstance(
        cache, FullAttention | SlidingWindow | ChunkedLocal | CrossAttention | BlockSparseAttention
    )
    return cache.num_kv_heads, cache.head_dim, cache.head_dim_v
