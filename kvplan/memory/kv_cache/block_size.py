"""The block size that vLLM ends with: the backends' choice, raised for states and skipped layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from kvplan.architecture.layers import (
    DeepseekV4Attention,
    GatedDeltaNetState,
    Mamba2State,
    Mla,
    RecurrentState,
)
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.memory.kv_cache.dtypes import element_bytes, head_token_bytes, packs
from kvplan.memory.kv_cache.sizes import common_block_size
from kvplan.memory.kv_cache.states import StateDtypes, state_bytes, state_dtypes
from kvplan.record import FrozenRecord
from kvplan.units import cdiv, round_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.architecture.model_shape import ModelShape
    from kvplan.memory.kv_cache.layer_backends import LayerBackend
    from kvplan.memory.kv_cache.rank import Rank

_DEFAULT: Final = 16
_CPU_DEFAULT: Final = 128
_CPU_MLA: Final = 16
_DEEPSEEK_V4: Final = 256


class Alignment(FrozenRecord):
    """Block and page sizes after vLLM's start-up has fitted them."""

    block_size: int
    state_block: int | None = None
    """Tokens between two kept states, where every one is kept."""
    state_page: int | None = None
    """What a recurrent state is padded to."""
    skip_page: int | None = None
    """What the page of a layer kept in the model's dtype is padded to."""
    warnings: tuple[str, ...] = ()


def align(shape: ModelShape, rank: Rank, backends: Sequence[LayerBackend]) -> Alignment:
    """The sizes for a model whose layers use those backends, in the order of the layers.

    Raises:
        InputError: no block size suits all backends.

    Source: vLLM 0.32.0 platforms/interface.py::update_block_size_for_backend; platforms/cpu.py.
    """
    found = Alignment(_first(shape, rank, backends))
    if not backends:
        return found
    era = rank.era
    if shape.is_hybrid:
        found = _fit_states(shape, rank, backends, found)
    elif shape.uses_mla and rank.is_cuda and era.forces_latent_blocks:
        found = _force_latent(shape, rank, found)
    if rank.skip_layers and rank.is_cuda and era.aligns_skipped_layers:
        found = _fit_skipped(shape, rank, backends[0], found)
    return found


def _first(shape: ModelShape, rank: Rank, backends: Sequence[LayerBackend]) -> int:
    if rank.platform == "cpu":
        return _on_cpu(shape, rank)
    if rank.block_size is not None or not backends:
        return rank.block_size or _DEFAULT
    size = common_block_size([backend.sizes for backend in backends], _DEFAULT)
    if size is None:
        names = "; ".join(f"{backend.name}: {list(backend.sizes.all)}" for backend in backends)
        raise InputError(
            f"The attention backends share no supported KV cache block size ({names}).",
            "leave --attention-backend and --block-size to vLLM",
        )
    return size


def _on_cpu(shape: ModelShape, rank: Rank) -> int:
    """Source: vLLM 0.32.0 platforms/cpu.py::CpuPlatform.check_and_update_config."""
    if any(isinstance(cache, DeepseekV4Attention) for caches in shape.layers for cache in caches):
        return _DEEPSEEK_V4
    if shape.uses_mla and not rank.has_cpu_feature("amx"):
        return _CPU_MLA
    return rank.block_size or _CPU_DEFAULT


def _fit_states(
    shape: ModelShape, rank: Rank, backends: Sequence[LayerBackend], found: Alignment
) -> Alignment:
    """Attention blocks long enough for a recurrent state, the state padded to the block.

    Source: vLLM 0.32.0 platforms/interface.py::_align_hybrid_block_size.
    """
    state = _largest_state(shape, rank)
    token = _attention_token_bytes(shape, rank, backends[0])
    era = rank.era
    unit = max(backends[0].sizes.smallest, found.block_size) if era.aligns_to_backend else _DEFAULT
    if shape.uses_mla:
        unit = max(unit, era.latent_hybrid_unit)
    if rank.state_mode == "all":
        chunk = math.lcm(_chunk_size(shape), unit)
        wanted = chunk * cdiv(cdiv(state, token), chunk)
    else:
        wanted = unit * cdiv(state, unit * token)
        if era.aligns_to_backend:
            wanted = round_up(wanted, math.lcm(*(backend.sizes.smallest for backend in backends)))
    block_size = max(found.block_size, wanted)
    fits = block_size <= rank.max_num_batched_tokens
    if rank.state_mode == "align" and era.aligned_block_fits_batch and not fits:
        raise InputError(
            f"In Mamba cache align mode, block_size ({block_size}) must be <= max_num_batched_tokens "
            f"({rank.max_num_batched_tokens}).",
            "vLLM 0.17 to 0.26 asserts it: raise --max-num-batched-tokens, or leave prefix caching out",
        )
    page = block_size * token
    return Alignment(
        block_size,
        state_block=wanted,
        state_page=page if page != state else None,
        warnings=_overridden(rank, block_size, "a block must hold a recurrent state"),
    )


def _largest_state(shape: ModelShape, rank: Rank) -> int:
    """Bytes of the largest recurrent state of one layer."""
    dtypes = recurrent_dtypes(shape, rank)
    states = {c for caches in shape.layers for c in caches if isinstance(c, RecurrentState)}
    return max(state_bytes(c, dtypes, rank.tensor_parallel_size, rank.num_speculative_tokens) for c in states)


def _attention_token_bytes(shape: ModelShape, rank: Rank, first: LayerBackend) -> int:
    """One token of one attention layer, to the common multiple of what skipped and other layers take."""
    dtype = rank.kv_cache_dtype
    if shape.uses_mla:
        return shape.head_dim * element_bytes(dtype, rank.dtype)
    turboquant = dtype.startswith("turboquant_")
    token = _token_bytes(shape, rank, dtype, packed=turboquant or packs(first.name, dtype))
    if turboquant and rank.skip_layers:
        return math.lcm(token, _token_bytes(shape, rank, "auto", packed=False))
    return token


def _chunk_size(shape: ModelShape) -> int:
    """Source: vLLM 0.26.0 config/model.py::get_mamba_chunk_size; Mamba-1 has no chunks of its own."""
    if shape.mamba_chunk_size is not None:
        return shape.mamba_chunk_size
    if any(isinstance(cache, Mamba2State) for caches in shape.layers for cache in caches):
        raise UnsupportedModelError(
            f"config.json of {shape.architecture} has neither `mamba_chunk_size` nor `chunk_size`, which the "
            "prefix cache of its states needs in vLLM 0.15 to 0.27",
            "add the value that the model's own configuration class uses",
        )
    return 2048


def _force_latent(shape: ModelShape, rank: Rank, found: Alignment) -> Alignment:
    """The block size that an MLA backend dictated up to 0.17.

    Hopper has FlashMLA's 64; Blackwell CUTLASS's 128 from 0.10, FlashInfer's 64 from 0.15 for a NoPE width of
    128; the sparse backends 64.

    Source: vLLM platforms/cuda.py::check_and_update_config of 0.8.5, 0.9.2, 0.10.2, 0.12.0 and 0.15.1.
    """
    latent = next(c for layer in shape.layers for c in layer if isinstance(c, Mla | DeepseekV4Attention))
    version, major = rank.vllm_version, (rank.capability or (0, 0))[0]
    flashinfer = version >= (0, 15, 0) and isinstance(latent, Mla) and latent.qk_nope_head_dim == 128
    if isinstance(latent, Mla) and latent.sparse:
        size = 64
    elif major == 10 and version >= (0, 10, 0):
        size = 64 if flashinfer else 128
    else:
        size = 64 if major == 9 else _DEFAULT
    asked = rank.block_size
    if asked is not None and (asked % size == 0 if version >= (0, 11, 0) else asked == size):
        return found
    if asked is not None and size == _DEFAULT:
        return found
    return Alignment(size, warnings=_overridden(rank, size, "the attention backend dictates it up to 0.17"))


def _fit_skipped(shape: ModelShape, rank: Rank, first: LayerBackend, found: Alignment) -> Alignment:
    """Quantised blocks long enough for the page of a layer that is kept in the model's dtype.

    Both sizes are taken with the packing of the first layer's backend, whether or not that layer is
    quantised: TurboQuant's blocks are measured unpacked, because its first layers are skipped.

    Source: vLLM 0.32.0 platforms/interface.py::_align_heterogeneous_kv_block_size.
    """
    dtype, smallest = rank.kv_cache_dtype, first.sizes.smallest
    primary = _token_bytes(shape, rank, dtype, packed=packs(first.name, dtype))
    padded = _token_bytes(shape, rank, "auto", packed=False)
    if padded == primary:
        return found
    unit = max(smallest, found.block_size)
    required = max(padded * smallest, found.state_page or 0)
    block_size = max(found.block_size, unit * cdiv(required, unit * primary))
    page = block_size * primary
    reason = "a quantised page must cover that of a skipped layer"
    return Alignment(
        block_size,
        state_page=None if found.state_page is None else page,
        skip_page=page,
        warnings=(*found.warnings, *_overridden(rank, block_size, reason)),
    )


def _overridden(rank: Rank, block_size: int, reason: str) -> tuple[str, ...]:
    if rank.block_size in {None, block_size}:
        return ()
    return (f"vLLM makes blocks of {block_size} tokens instead of {rank.block_size}: {reason}",)


def _token_bytes(shape: ModelShape, rank: Rank, dtype: str, *, packed: bool) -> int:
    """One token in one attention layer, from the model's own number and size of heads."""
    heads = max(1, shape.num_key_value_heads // rank.tensor_parallel_size)
    return heads * head_token_bytes(dtype, rank.dtype, shape.head_dim, shape.head_dim, packed=packed)


def recurrent_dtypes(shape: ModelShape, rank: Rank) -> StateDtypes:
    """Element sizes of recurrent states: the flags, the model's own choice, and what the CPU backend resets.

    Source: vLLM 0.32.0 model_executor/models/config.py; platforms/cpu.py (AVX-512 BF16 keeps only an
    explicit half precision of a delta net).
    """
    ssm = rank.mamba_ssm_cache_dtype
    if ssm == "auto":
        ssm = _own_state_dtype(shape, rank)
    if rank.platform == "cpu" and rank.has_cpu_feature("avx512_bf16") and ssm != "float32":
        delta_net = any(isinstance(c, GatedDeltaNetState) for caches in shape.layers for c in caches)
        if not (ssm in {"float16", "bfloat16"} and delta_net):
            ssm = "float32"
    return state_dtypes(rank.dtype, rank.mamba_cache_dtype, ssm)


def _own_state_dtype(shape: ModelShape, rank: Rank) -> str:
    """What the model makes of `auto`: Nemotron-H asks its config from 0.13, and has a default of its own.

    Source: vLLM model_executor/models/config.py::NemotronHForCausalLMConfig of 0.13.0, 0.19.1 and 0.20.0.
    """
    named = shape.mamba_ssm_dtype
    if shape.architecture == "NemotronHForCausalLM":
        if rank.vllm_version < (0, 13, 0):
            return "auto"
        return named or ("float16" if rank.era.half_precision_nemotron else "float32")
    return named or "auto"
