"""The attention backends of vLLM 0.32.0's CUDA platform, and which one a layer gets.

Read with FlashInfer installed and FlashAttention 2 everywhere, 3 on SM90, 4 on SM100.
Sources: v1/attention/backends/{flash_attn,flashinfer,triton_attn,flex_attention,turboquant_attn}.py,
v1/attention/backends/mla/*.py and platforms/cuda.py::_get_backend_priorities.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kvplan.errors import InputError
from kvplan.memory.kv_cache.backends import AttentionRequest, Backend, Capability
from kvplan.memory.kv_cache.sizes import KernelSizes, at_multiples, exactly

if TYPE_CHECKING:
    from collections.abc import Callable

_FLOATS: Final = ("auto", "float16", "bfloat16")
_FP8: Final = ("fp8", "fp8_e4m3")
_HALVES: Final = ("float16", "bfloat16")
_PER_TOKEN_HEAD: Final = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")


def _majors(*majors: int) -> Callable[[Capability], bool]:
    return lambda capability: capability[0] in majors


def _always(_capability: Capability) -> bool:
    return True


def _sizes(sizes: KernelSizes) -> Callable[[AttentionRequest], KernelSizes]:
    return lambda _request: sizes


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
    (*_FLOATS, *_FP8),
    lambda capability: capability >= (8, 0),
    head_dims=lambda dim: dim % 8 == 0 and dim <= 256,
    sinks=lambda request: request.capability[0] in {9, 10} and not request.forces_flash_attention_2,
    images=_majors(10),
    attention_types=("decoder", "encoder_decoder"),
    sliding_window=True,
    dcp=True,
    accepts_dtype=lambda request: not request.quantized or request.capability[0] in {9, 10},
    combination=_flash_combination,
)
FLASHINFER: Final = Backend(
    "FLASHINFER",
    _flashinfer_sizes,
    (*_FLOATS, *_FP8, "fp8_e5m2", "nvfp4", "nvfp4_4over6"),
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
    _sizes(at_multiples(16)),
    (*_FLOATS, *_FP8, "fp8_e5m2", *_PER_TOKEN_HEAD),
    _always,
    head_dims=lambda dim: dim >= 32,
    dtypes=(*_HALVES, "float32"),
    sinks=lambda _request: True,
    images=_always,
    attention_types=("decoder", "encoder_decoder"),
    sliding_window=True,
)
FLEX_ATTENTION: Final = Backend(
    "FLEX_ATTENTION",
    _sizes(at_multiples(16)),
    _FLOATS,
    _always,
    dtypes=(*_HALVES, "float32"),
    images=_always,
    sliding_window=True,
)
TURBOQUANT: Final = Backend(
    "TURBOQUANT",
    _sizes(exactly(16, 32, 64, 128)),
    ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
    _always,
)


def _composite(name: str, causal: Backend, major: int, sizes: KernelSizes) -> Backend:
    """Triton for image spans, another backend for the rest (v1/attention/backends/composite.py)."""

    def combination(request: AttentionRequest) -> str | None:
        inner = causal.combination(dataclasses.replace(request, bidirectional_images=False))
        return f"{causal.name}: {inner}" if inner else None

    return Backend(
        name,
        _sizes(sizes),
        tuple(dtype for dtype in TRITON_ATTN.kv_cache_dtypes if dtype in causal.kv_cache_dtypes),
        _majors(major),
        head_dims=lambda dim: dim in {256, 512} and causal.head_dims(dim),
        images=_always,
        sliding_window=True,
        accepts_dtype=causal.accepts_dtype,
        combination=combination,
    )


TRITON_FLASH_ATTN: Final = _composite("TRITON_FLASH_ATTN", FLASH_ATTN, 9, at_multiples(16))
TRITON_FLASHINFER: Final = _composite("TRITON_FLASHINFER", FLASHINFER, 10, exactly(64))


def _latent_dims(dim: int) -> bool:
    return dim in {320, 512, 576}


_FLASHMLA_SPARSE_CARDS: Final = "FlashMLA Sparse is only supported on Hopper and Blackwell DC devices."


def _flashmla_combination(request: AttentionRequest) -> str | None:
    major = request.capability[0]
    if request.sparse:
        return None if major in {9, 10} else _FLASHMLA_SPARSE_CARDS
    return None if major == 9 else "FlashMLA Dense is only supported on Hopper devices."


def _flashinfer_mla_combination(request: AttentionRequest) -> str | None:
    if request.qk_nope_head_dim in {64, 128, 192}:
        return None
    return (
        "FlashInfer MLA kernel requires qk_nope_head_dim in [64, 128, 192], "
        f"but got {request.qk_nope_head_dim}"
    )


FLASH_ATTN_MLA: Final = Backend(
    "FLASH_ATTN_MLA",
    _sizes(at_multiples(16)),
    _FLOATS,
    _majors(9),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
    combination=lambda request: (
        None if request.capability[0] == 9 else "FlashAttention MLA not supported on this device"
    ),
)
FLASHMLA: Final = Backend(
    "FLASHMLA",
    _sizes(exactly(64)),
    (*_FLOATS, *_FP8),
    _majors(9, 10),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
    combination=_flashmla_combination,
)
FLASHINFER_MLA: Final = Backend(
    "FLASHINFER_MLA",
    _sizes(exactly(32, 64)),
    (*_FLOATS, *_FP8),
    _majors(10),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
    combination=_flashinfer_mla_combination,
)
TOKENSPEED_MLA: Final = Backend(
    "TOKENSPEED_MLA",
    _sizes(exactly(32, 64)),
    _FP8,
    _majors(10),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
    combination=lambda _request: (
        "tokenspeed_mla package is not installed. Install it with: `uv pip install tokenspeed-mla`"
    ),
)
CUTLASS_MLA: Final = Backend(
    "CUTLASS_MLA",
    _sizes(exactly(128)),
    (*_FLOATS, *_FP8),
    _majors(10),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
)
TRITON_MLA: Final = Backend(
    "TRITON_MLA", _sizes(at_multiples(16)), (*_FLOATS, *_FP8), _always, mla=True, dcp=True
)


def _flash_sparse_combination(request: AttentionRequest) -> str | None:
    if request.kv_cache_dtype not in _FLOATS:
        return "FlashAttention MLA Sparse currently supports only FP16/BF16 KV cache"
    if request.capability[0] != 9:
        return "FlashAttention MLA not supported on this device"
    if request.uses_dcp:
        return "FlashAttention MLA Sparse does not support DCP for now"
    return None if request.index_topk else "FlashAttention MLA Sparse requires model with index_topk"


def _flashmla_sparse_combination(request: AttentionRequest) -> str | None:
    if request.kv_cache_dtype == "nvfp4_ds_mla" and request.capability[0] != 10:
        return "FLASHMLA_SPARSE only supports the nvfp4_ds_mla kv-cache dtype on SM100 (Blackwell)"
    return None


def _flashinfer_sparse_combination(request: AttentionRequest) -> str | None:
    if request.kv_cache_dtype == "fp8_ds_mla":
        return "FLASHINFER_MLA_SPARSE SM10 does not support fp8_ds_mla kv-cache dtype"
    if request.qk_nope_head_dim not in {128, 192}:
        return (
            "FlashInfer MLA Sparse kernel requires qk_nope_head_dim in [128, 192], "
            f"but got {request.qk_nope_head_dim}"
        )
    return None


def _sm120_sparse_combination(request: AttentionRequest) -> str | None:
    if request.index_topk != 2048:
        return f"FLASHINFER_MLA_SPARSE_SM120 requires index_topk=2048; got {request.index_topk}"
    return None


FLASH_ATTN_MLA_SPARSE: Final = Backend(
    "FLASH_ATTN_MLA_SPARSE",
    _sizes(at_multiples(64)),
    _FLOATS,
    _majors(9),
    mla=True,
    sparse=True,
    combination=_flash_sparse_combination,
)
FLASHMLA_SPARSE: Final = Backend(
    "FLASHMLA_SPARSE",
    _sizes(at_multiples(64)),
    ("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
    _majors(9, 10),
    head_dims=lambda dim: dim in {576, 512},
    dtypes=("bfloat16",),
    mla=True,
    sparse=True,
    dcp=True,
    combination=_flashmla_sparse_combination,
)
FLASHINFER_MLA_SPARSE: Final = Backend(
    "FLASHINFER_MLA_SPARSE",
    _sizes(at_multiples(32)),
    (*_FLOATS, *_FP8),
    _majors(10),
    head_dims=lambda dim: dim in {576, 512},
    mla=True,
    sparse=True,
    dcp=True,
    combination=_flashinfer_sparse_combination,
)
FLASHINFER_MLA_SPARSE_SM120: Final = Backend(
    "FLASHINFER_MLA_SPARSE_SM120",
    _sizes(at_multiples(64)),
    ("auto", *_FP8, "fp8_ds_mla"),
    _majors(12),
    head_dims=lambda dim: dim in {576, 512},
    dtypes=("bfloat16",),
    mla=True,
    sparse=True,
    combination=_sm120_sparse_combination,
)
FLASHINFER_MLA_SPARSE_SM90: Final = Backend(
    "FLASHINFER_MLA_SPARSE_SM90",
    _sizes(at_multiples(64)),
    ("auto", "bfloat16", *_FP8),
    _majors(9),
    head_dims=lambda dim: dim in {512, 576},
    dtypes=("bfloat16",),
    mla=True,
    sparse=True,
    dcp=True,
    # Newer than the FlashInfer that was read with: never chosen here.
    combination=lambda _request: (
        "FLASHINFER_MLA_SPARSE_SM90 requires FlashInfer with SM90 MLA support (ckv_scale_arr in "
        "BatchMLAPagedAttentionWrapper.run, FlashInfer >= 0.6.18)"
    ),
)

BACKENDS: Final = {
    backend.name: backend
    for backend in (
        FLASH_ATTN,
        FLASHINFER,
        TRITON_ATTN,
        FLEX_ATTENTION,
        TURBOQUANT,
        TRITON_FLASH_ATTN,
        TRITON_FLASHINFER,
        FLASH_ATTN_MLA,
        FLASHMLA,
        FLASHINFER_MLA,
        TOKENSPEED_MLA,
        CUTLASS_MLA,
        TRITON_MLA,
        FLASH_ATTN_MLA_SPARSE,
        FLASHMLA_SPARSE,
        FLASHINFER_MLA_SPARSE,
        FLASHINFER_MLA_SPARSE_SM120,
        FLASHINFER_MLA_SPARSE_SM90,
    )
}


def priorities(request: AttentionRequest) -> tuple[Backend, ...]:
    """The backends that vLLM tries, best first.

    Source: vLLM 0.32.0 platforms/cuda.py::_get_backend_priorities.
    """
    major = request.capability[0]
    if request.uses_mla:
        return _latent_priorities(request)
    if major == 10:
        first = (TRITON_FLASHINFER,) if request.bidirectional_images else ()
        return (*first, FLASHINFER, FLASH_ATTN, TRITON_ATTN, FLEX_ATTENTION, TURBOQUANT)
    first = (TRITON_FLASH_ATTN,) if major == 9 and request.bidirectional_images else ()
    return (*first, FLASH_ATTN, FLASHINFER, TRITON_ATTN, FLEX_ATTENTION, TURBOQUANT)


def _latent_priorities(request: AttentionRequest) -> tuple[Backend, ...]:
    major = request.capability[0]
    if major == 12:
        return TRITON_MLA, FLASHINFER_MLA_SPARSE_SM120
    if major == 10:
        few_heads = request.num_heads <= 16
        sparse = (FLASHMLA_SPARSE, FLASHINFER_MLA_SPARSE)
        if request.quantized or few_heads:
            sparse = (FLASHINFER_MLA_SPARSE, FLASHMLA_SPARSE)
        return (
            FLASHINFER_MLA,
            TOKENSPEED_MLA,
            CUTLASS_MLA,
            FLASH_ATTN_MLA,
            FLASHMLA,
            TRITON_MLA,
            *sparse,
        )
    sparse_tail: tuple[Backend, ...] = (FLASH_ATTN_MLA_SPARSE, FLASHMLA_SPARSE)
    if request.head_dim == 512:
        sparse_tail = (FLASHINFER_MLA_SPARSE_SM90, *sparse_tail)
    else:
        sparse_tail = (*sparse_tail, FLASHINFER_MLA_SPARSE_SM90)
    return FLASH_ATTN_MLA, FLASHMLA, FLASHINFER_MLA, TRITON_MLA, *sparse_tail


def select_backend(request: AttentionRequest, asked: str | None) -> tuple[Backend, str | None]:
    """The backend that a layer gets, and vLLM's warning if --block-size kept a better one out.

    Args:
        request: what the layer needs.
        asked: `--attention-backend`, or None.

    Raises:
        InputError: vLLM refuses to start, in its own words.

    Source: vLLM 0.32.0 platforms/cuda.py::CudaPlatformBase.get_attn_backend_cls.
    """
    if asked is not None:
        return _asked_backend(request, asked), None
    tried = [(backend, backend.refusals(request)) for backend in priorities(request)]
    chosen = next((backend for backend, reasons in tried if not reasons), None)
    if chosen is None:
        reasons_text = ", ".join(f"{backend.name}: [{', '.join(reasons)}]" for backend, reasons in tried)
        raise InputError(
            f"No valid attention backend found for cuda with {request.describe()}. "
            f"Reasons: {{{reasons_text}}}.",
            "vLLM stops at start-up with this message: choose another kv_cache_dtype, block_size or card",
        )
    better = [
        backend.name
        for backend, reasons in tried[: tried.index((chosen, ()))]
        if reasons == ("block_size not supported",)
    ]
    if request.block_size is None or not better:
        return chosen, None
    return chosen, (
        f"--block-size {request.block_size} precluded higher-priority backend(s) {', '.join(better)}. Using "
        f"{chosen.name} instead, which may result in reduced performance. Consider removing --block-size to "
        "auto-select the optimal block size."
    )


def _asked_backend(request: AttentionRequest, asked: str) -> Backend:
    backend = BACKENDS.get(asked.upper())
    if backend is None:
        raise InputError(
            f"attention backend {asked!r} has no rule here", f"known: {', '.join(sorted(BACKENDS))}"
        )
    if reasons := backend.refusals(request):
        raise InputError(
            f"Selected backend AttentionBackendEnum.{backend.name} is not valid for this configuration. "
            f"Reason: {list(reasons)}",
            "leave --attention-backend to vLLM, or change what the reason names",
        )
    return backend
