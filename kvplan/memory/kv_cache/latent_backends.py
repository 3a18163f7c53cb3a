"""The attention backends that read latents (MLA, with and without an indexer), vLLM 0.32.0 on CUDA.

Sources: v1/attention/backends/mla/*.py and platforms/cuda.py::_get_backend_priorities.
"""

from __future__ import annotations

from typing import Final

from kvplan.memory.kv_cache.backends import FLOATS, FP8, AttentionRequest, Backend, always, majors, of_size
from kvplan.memory.kv_cache.sizes import at_multiples, exactly


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
    of_size(at_multiples(16)),
    FLOATS,
    majors(9),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
    combination=lambda request: (
        None if request.capability[0] == 9 else "FlashAttention MLA not supported on this device"
    ),
)
FLASHMLA: Final = Backend(
    "FLASHMLA",
    of_size(exactly(64)),
    (*FLOATS, *FP8),
    majors(9, 10),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
    combination=_flashmla_combination,
)
FLASHINFER_MLA: Final = Backend(
    "FLASHINFER_MLA",
    of_size(exactly(32, 64)),
    (*FLOATS, *FP8),
    majors(10),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
    combination=_flashinfer_mla_combination,
)
TOKENSPEED_MLA: Final = Backend(
    "TOKENSPEED_MLA",
    of_size(exactly(32, 64)),
    FP8,
    majors(10),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
    combination=lambda _request: (
        "tokenspeed_mla package is not installed. Install it with: `uv pip install tokenspeed-mla`"
    ),
)
CUTLASS_MLA: Final = Backend(
    "CUTLASS_MLA",
    of_size(exactly(128)),
    (*FLOATS, *FP8),
    majors(10),
    head_dims=_latent_dims,
    mla=True,
    dcp=True,
)
TRITON_MLA: Final = Backend(
    "TRITON_MLA", of_size(at_multiples(16)), (*FLOATS, *FP8), always, mla=True, dcp=True
)


def _flash_sparse_combination(request: AttentionRequest) -> str | None:
    if request.kv_cache_dtype not in FLOATS:
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
    of_size(at_multiples(64)),
    FLOATS,
    majors(9),
    mla=True,
    sparse=True,
    combination=_flash_sparse_combination,
)
FLASHMLA_SPARSE: Final = Backend(
    "FLASHMLA_SPARSE",
    of_size(at_multiples(64)),
    ("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
    majors(9, 10),
    head_dims=lambda dim: dim in {576, 512},
    dtypes=("bfloat16",),
    mla=True,
    sparse=True,
    dcp=True,
    combination=_flashmla_sparse_combination,
)
FLASHINFER_MLA_SPARSE: Final = Backend(
    "FLASHINFER_MLA_SPARSE",
    of_size(at_multiples(32)),
    (*FLOATS, *FP8),
    majors(10),
    head_dims=lambda dim: dim in {576, 512},
    mla=True,
    sparse=True,
    dcp=True,
    combination=_flashinfer_sparse_combination,
)
FLASHINFER_MLA_SPARSE_SM120: Final = Backend(
    "FLASHINFER_MLA_SPARSE_SM120",
    of_size(at_multiples(64)),
    ("auto", *FP8, "fp8_ds_mla"),
    majors(12),
    head_dims=lambda dim: dim in {576, 512},
    dtypes=("bfloat16",),
    mla=True,
    sparse=True,
    combination=_sm120_sparse_combination,
)
FLASHINFER_MLA_SPARSE_SM90: Final = Backend(
    "FLASHINFER_MLA_SPARSE_SM90",
    of_size(at_multiples(64)),
    ("auto", "bfloat16", *FP8),
    majors(9),
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

LATENT_BACKENDS: Final = (
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


def latent_priorities(request: AttentionRequest) -> tuple[Backend, ...]:
    """The order in which vLLM tries them."""
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
