"""The attention backends that read keys and values per head, of vLLM 0.32.0's CUDA platform.

Sources: v1/attention/backends/{flash_attn,flashinfer,triton_attn,flex_attention,turboquant_attn}.py and
platforms/cuda.py::_get_backend_priorities.
"""

from __future__ import annotations

from typing import Final

from kvplan.memory.kv_cache.backends import (
    FLOATS,
    FP8,
    HALVES,
    PER_TOKEN_HEAD,
    AttentionRequest,
    Backend,
    always,
    majors,
    of_size,
)
from kvplan.memory.kv_cache.sizes import KernelSizes, at_multiples, exactly


def _flash_attention_version(request: AttentionRequest) -> int:
    """Source: vLLM 0.32.0 v1/attention/backends/fa_utils.py::get_flash_attn_version."""
    if request.forces_flash_attention_2:
        return 2
    major = request.capability[0]
    if major == 9:
        return 3
    if major != 10:
        return 2
    if request.head_dim == 256:
        falls_back = (
            request.has_sinks
            or request.has_logit_softcap
            or request.quantized
            or (request.block_size is not None and request.block_size % 128 != 0)
            or request.bidirectional_images
            or request.uses_dcp
        )
        return 2 if falls_back else 4
    return 4 if request.head_dim <= 128 else 2


def _flash_sizes(request: AttentionRequest) -> KernelSizes:
    if request.capability[0] == 10 and request.head_dim == 256 and _flash_attention_version(request) == 4:
        return KernelSizes(exact=(128,), preferred=128)
    return at_multiples(16)


def _flash_combination(request: AttentionRequest) -> str | None:
    if request.has_sinks and request.capability < (9, 0):
        return "sink not supported on compute capability < 9.0"
    if request.bidirectional_images and request.quantized and request.capability == (9, 0):
        return "SM90 FP8 KV with mm_prefix requires Triton"
    version = _flash_attention_version(request)
    native = (request.capability[0], version) in {(9, 3), (10, 4)} and request.kv_cache_dtype != "fp8_e5m2"
    if request.quantized and not native:
        return "FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 on SM90, or FA4 on SM100"
    if request.bidirectional_images and version != 4:
        return (
            "mm_prefix (PrefixLM bidirectional attention) requires FlashAttention v4, which does not "
            "resolve for this head_size"
        )
    return None


def _flashinfer_sizes(request: AttentionRequest) -> KernelSizes:
    grouped = request.num_kv_heads > 0 and request.num_heads // request.num_kv_heads > 1
    if request.capability[0] == 10 and grouped:
        return exactly(16, 32, 64, 128, 256, 512, 1024)
    return exactly(16, 32, 64)


def _flashinfer_dtype(request: AttentionRequest) -> bool:
    if not request.kv_cache_dtype.startswith("nvfp4"):
        return True
    if request.capability[0] in {8, 9, 12}:
        return request.kv_cache_dtype == "nvfp4"
    return request.capability[0] == 10


def _flashinfer_combination(request: AttentionRequest) -> str | None:
    if request.kv_cache_dtype.startswith("nvfp4") and request.capability[0] in {8, 9, 12}:
        if request.head_dim == 64:
            return "fa2 prefill misreads an NVFP4 KV cache at head_size 64"
        if request.has_sinks:
            return "the sink prefill wrapper cannot read an NVFP4 KV cache"
    return None


FLASH_ATTN: Final = Backend(
    "FLASH_ATTN",
    _flash_sizes,
    (*FLOATS, *FP8),
    lambda capability: capability >= (8, 0),
    head_dims=lambda dim: dim % 8 == 0 and dim <= 256,
    sinks=lambda request: request.capability[0] in {9, 10} and not request.forces_flash_attention_2,
    images=majors(10),
    scales_per_head=lambda request: request.capability[0] in {9, 10} and not request.forces_flash_attention_2,
    attention_types=("decoder", "encoder_decoder"),
    sliding_window=True,
    dcp=True,
    accepts_dtype=lambda request: not request.quantized or request.capability[0] in {9, 10},
    combination=_flash_combination,
)
FLASHINFER: Final = Backend(
    "FLASHINFER",
    _flashinfer_sizes,
    (*FLOATS, *FP8, "fp8_e5m2", "nvfp4", "nvfp4_4over6"),
    lambda capability: (8, 0) <= capability <= (12, 1),
    head_dims=lambda dim: dim in {64, 128, 256, 512},
    sinks=lambda request: request.capability == (9, 0) or request.capability[0] in {10, 12},
    sliding_window=True,
    dcp=True,
    accepts_dtype=_flashinfer_dtype,
    combination=_flashinfer_combination,
)
TRITON_ATTN: Final = Backend(
    "TRITON_ATTN",
    of_size(at_multiples(16)),
    (*FLOATS, *FP8, "fp8_e5m2", *PER_TOKEN_HEAD),
    always,
    head_dims=lambda dim: dim >= 32,
    dtypes=(*HALVES, "float32"),
    sinks=lambda _request: True,
    images=always,
    attention_types=("decoder", "encoder_decoder"),
    sliding_window=True,
)
FLEX_ATTENTION: Final = Backend(
    "FLEX_ATTENTION",
    of_size(at_multiples(16)),
    FLOATS,
    always,
    dtypes=(*HALVES, "float32"),
    images=always,
    sliding_window=True,
)
TURBOQUANT: Final = Backend(
    "TURBOQUANT",
    of_size(exactly(16, 32, 64, 128)),
    ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
    always,
)


def _composite(name: str, causal: Backend, major: int, sizes: KernelSizes) -> Backend:
    """Triton for image spans, another backend for the rest (v1/attention/backends/composite.py)."""

    def combination(request: AttentionRequest) -> str | None:
        inner = causal.combination(request._replace(bidirectional_images=False))
        return f"{causal.name}: {inner}" if inner else None

    return Backend(
        name,
        of_size(sizes),
        tuple(dtype for dtype in TRITON_ATTN.kv_cache_dtypes if dtype in causal.kv_cache_dtypes),
        majors(major),
        head_dims=lambda dim: dim in {256, 512} and causal.head_dims(dim),
        images=always,
        sliding_window=True,
        accepts_dtype=causal.accepts_dtype,
        combination=combination,
    )


TRITON_FLASH_ATTN: Final = _composite("TRITON_FLASH_ATTN", FLASH_ATTN, 9, at_multiples(16))
TRITON_FLASHINFER: Final = _composite("TRITON_FLASHINFER", FLASHINFER, 10, exactly(64))

HEADS_BACKENDS: Final = (
    FLASH_ATTN,
    FLASHINFER,
    TRITON_ATTN,
    FLEX_ATTENTION,
    TURBOQUANT,
    TRITON_FLASH_ATTN,
    TRITON_FLASHINFER,
)


def heads_priorities(request: AttentionRequest) -> tuple[Backend, ...]:
    """The order in which vLLM tries them."""
    major = request.capability[0]
    if major == 10:
        first = (TRITON_FLASHINFER,) if request.bidirectional_images else ()
        return (*first, FLASHINFER, FLASH_ATTN, TRITON_ATTN, FLEX_ATTENTION, TURBOQUANT)
    first = (TRITON_FLASH_ATTN,) if major == 9 and request.bidirectional_images else ()
    return (*first, FLASH_ATTN, FLASHINFER, TRITON_ATTN, FLEX_ATTENTION, TURBOQUANT)
