"""The attention backend of one layer on one rank, and what it stores the cache in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvplan.architecture.layers import (
    BlockSparseAttention,
    CrossAttention,
    DeepseekV4Attention,
    IndexKeys,
    Mla,
    MlaIndexer,
    SlidingWindow,
)
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.memory.kv_cache.backend_table import select_backend
from kvplan.memory.kv_cache.backends import AttentionRequest, Backend
from kvplan.memory.kv_cache.sizes import KernelSizes, at_multiples, exactly

if TYPE_CHECKING:
    from kvplan.architecture.layers import AttendedCache, KvHeadsCache
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.memory.kv_cache.rank import Capability, Rank


class LayerBackend(NamedTuple):
    """The backend that one layer got."""

    name: str
    sizes: KernelSizes
    stored_dtype: str
    """The layer's kv_cache_dtype after the backend had its say (fp8 becomes fp8_ds_mla)."""
    warnings: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    """Backends of the caches beside it (DeepSeek-V4)."""

    @property
    def all_names(self) -> tuple[str, ...]:
        """Its own name and its companions'."""
        return self.name, *self.companions


def layer_backend(shape: ModelShape, rank: Rank, cache: AttendedCache, dtype: str) -> LayerBackend:
    """The backend of a layer whose kv_cache_dtype is `dtype`.

    Raises:
        InputError: vLLM refuses it, in its own words.
    """
    if rank.platform == "cpu":
        return _cpu_backend(rank, cache, dtype)
    capability = rank.capability
    if capability is None:
        raise UnsupportedModelError(
            f"the compute capability of {rank.gpu_name} is not known",
            "name the card by a profile (`kvplan profiles gpus`)",
        )
    match cache:
        case MlaIndexer():
            found = LayerBackend("DEEPSEEK_V32_INDEXER", exactly(64), "auto")
        case DeepseekV4Attention():
            found = _deepseek_v4_backend(rank, dtype, capability)
        case BlockSparseAttention():
            found = LayerBackend("MINIMAX_M3_SPARSE", exactly(128), dtype)
        case IndexKeys():
            found = LayerBackend("MINIMAX_M3_SPARSE_INDEXER", exactly(128), "auto")
        case Mla():
            found = _selected(shape, rank, _latent_request(shape, rank, cache, dtype, capability))
        case _:
            found = _selected(shape, rank, _heads_request(shape, rank, cache, dtype, capability))
    return found


def _selected(shape: ModelShape, rank: Rank, request: AttentionRequest) -> LayerBackend:
    asked = rank.attention_backend
    if asked is None and _forces_triton(shape, request.capability):
        asked = "TRITON_ATTN"
    backend, warning = select_backend(request, asked)
    _refuse_after_selection(backend, request, rank)
    warnings = [] if warning is None else [warning]
    major, minor = request.capability
    if backend.name == "FLASHINFER" and request.quantized and major in {8, 12}:
        stops = request.capability < (8, 9) or request.kv_cache_dtype.startswith("nvfp4")
        without = "does not start" if stops else "falls back to Triton"
        warnings.append(
            f"kv_cache_dtype {request.kv_cache_dtype} on compute capability {major}.{minor} runs through "
            f"FlashInfer only: without the flashinfer package vLLM {without}"
        )
    stored = _stored(backend, request)
    return LayerBackend(backend.name, backend.kernel_sizes(request), stored, tuple(warnings))


def _latent_request(
    shape: ModelShape, rank: Rank, cache: Mla, dtype: str, capability: Capability
) -> AttentionRequest:
    return AttentionRequest(
        capability=capability,
        head_dim=cache.kv_lora_rank + cache.qk_rope_head_dim,
        dtype=rank.dtype,
        kv_cache_dtype=dtype,
        block_size=rank.block_size,
        num_heads=cache.num_heads // rank.tensor_parallel_size,
        num_kv_heads=1,
        uses_mla=True,
        sparse=cache.sparse,
        uses_dcp=rank.decode_context_parallel_size > 1,
        qk_nope_head_dim=cache.qk_nope_head_dim,
        index_topk=shape.index_topk,
    )


def _heads_request(
    shape: ModelShape, rank: Rank, cache: KvHeadsCache, dtype: str, capability: Capability
) -> AttentionRequest:
    return AttentionRequest(
        capability=capability,
        head_dim=cache.head_dim,
        dtype=rank.dtype,
        kv_cache_dtype=dtype,
        block_size=rank.block_size,
        num_heads=shape.num_attention_heads // rank.tensor_parallel_size,
        num_kv_heads=max(1, shape.num_key_value_heads // rank.tensor_parallel_size),
        has_sinks=cache.has_sinks,
        bidirectional_images=shape.has_bidirectional_images,
        attention_type="encoder_decoder" if isinstance(cache, CrossAttention) else "decoder",
        has_sliding_window=isinstance(cache, SlidingWindow),
        uses_dcp=rank.decode_context_parallel_size > 1,
        has_logit_softcap=shape.has_logit_softcap,
        scales_per_head=shape.checkpoint_cache.scales_per_head,
        forces_flash_attention_2=rank.kv_cache_dtype.startswith("turboquant_"),
    )


def _forces_triton(shape: ModelShape, capability: Capability) -> bool:
    """Gemma 4's layers differ in head size: without FlashAttention 4 they all run on Triton.

    Source: vLLM 0.32.0 model_executor/models/config.py::Gemma4Config.
    """
    if not shape.architecture.startswith("Gemma4"):
        return False
    dims = {getattr(cache, "head_dim", 0) for caches in shape.layers for cache in caches}
    return len(dims) > 1 and capability[0] != 10


def _stored(backend: Backend, request: AttentionRequest) -> str:
    """Source: vLLM 0.32.0 mla_attention.py::_resolve_kv_cache_dtype."""
    dtype = request.kv_cache_dtype
    if backend.name == "FLASHMLA_SPARSE" and request.quantized and dtype != "nvfp4_ds_mla":
        return "fp8_ds_mla"
    if backend.name == "FLASHINFER_MLA_SPARSE_SM120" and dtype in {"auto", "fp8", "fp8_e4m3"}:
        return "fp8_ds_mla"
    return dtype


_TRITON_NAMES: Final = {"TRITON_ATTN": "Triton attention backend", "TRITON_MLA": "Triton MLA backend"}


def _refuse_after_selection(backend: Backend, request: AttentionRequest, rank: Rank) -> None:
    """Source: vLLM 0.32.0 v1/attention/backends/triton_attn.py and mla/triton_mla.py, the constructors."""
    major, minor = request.capability
    name = _TRITON_NAMES.get(backend.name)
    if name and request.kv_cache_dtype.startswith("fp8") and request.capability < (8, 9):
        instead = "float16" if major < 8 else "bfloat16"
        raise InputError(
            f"FP8 KV cache is not supported by the {name} on {rank.gpu_name} (compute capability "
            f"{major}.{minor}); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype {instead}.",
            "vLLM selects the backend and then stops with this message",
        )


def _deepseek_v4_backend(rank: Rank, dtype: str, capability: Capability) -> LayerBackend:
    """Source: vLLM 0.32.0 models/deepseek_v4/attention.py::_resolve_dsv4_kv_cache_dtype."""
    if dtype != "auto" and not dtype.startswith("fp8"):
        raise InputError(
            f"DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got {dtype}. Please set "
            "`--kv-cache-dtype fp8` or select a backend that supports bfloat16 KV cache.",
            "leave kv_cache_dtype at auto",
        )
    if rank.block_size is not None and rank.block_size % 256:
        raise InputError(
            f"DeepSeek-V4's kernels take blocks of 256 tokens or a multiple, not {rank.block_size}",
            "leave --block-size to vLLM, which takes 256",
        )
    if rank.attention_backend is not None:
        raise UnsupportedModelError(
            f"--attention-backend {rank.attention_backend} with DeepSeek-V4 has no rule here",
            "leave --attention-backend to vLLM",
        )
    name = "FLASHINFER_MLA_SPARSE_DSV4" if capability[0] == 12 else "FLASHMLA_SPARSE_DSV4"
    companions = ("CompressorBackend", "DEEPSEEK_SPARSE_SWA", "DEEPSEEK_V4_INDEXER")
    return LayerBackend(name, exactly(256), "fp8_ds_mla", companions=companions)


_CPU_DTYPES: Final = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2", "float16", "bfloat16")


def _cpu_backend(rank: Rank, cache: AttendedCache, dtype: str) -> LayerBackend:
    """Source: vLLM 0.32.0 platforms/cpu.py::CpuPlatform.get_attn_backend_cls: nothing is validated."""
    if isinstance(cache, MlaIndexer) or (isinstance(cache, Mla) and cache.sparse):
        raise InputError("Sparse Attention is not supported on CPU.", "plan for a GPU")
    if isinstance(cache, Mla):
        if rank.has_cpu_feature("amx"):
            return LayerBackend("AMX_MLA", at_multiples(32), dtype)
        return LayerBackend("CPU_MLA", KernelSizes(exact=(16,), strict=True), dtype)
    unchecked = (
        f"vLLM's CPU backend takes kv_cache_dtype {dtype} unchecked and stores plain bytes without scales: "
        "sizes are exact, answers are not to be trusted"
    )
    warnings = () if dtype in _CPU_DTYPES else (unchecked,)
    return LayerBackend("CPU_ATTN", at_multiples(32), dtype, warnings)
