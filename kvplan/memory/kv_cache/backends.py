"""What vLLM's selector asks of an attention backend, and what a backend answers.

Each rule is a backend's own `validate_configuration` of vLLM 0.32.0 (v1/attention/backend.py and the class
files under v1/attention/backends), read with FlashInfer installed and FlashAttention 2 everywhere, 3 on
SM90, 4 on SM100.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.memory.kv_cache.sizes import KernelSizes

Capability = tuple[int, int]

FLOATS: Final = ("auto", "float16", "bfloat16")
FP8: Final = ("fp8", "fp8_e4m3")
HALVES: Final = ("float16", "bfloat16")
PER_TOKEN_HEAD: Final = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")


def majors(*numbers: int) -> Callable[[Capability], bool]:
    """Cards whose compute capability has one of these major numbers."""
    return lambda capability: capability[0] in numbers


def always(_capability: Capability) -> bool:
    """Every card."""
    return True


def of_size(sizes: KernelSizes) -> Callable[[AttentionRequest], KernelSizes]:
    """The same block sizes whatever is asked."""
    return lambda _request: sizes


class AttentionRequest(NamedTuple):
    """What vLLM's selector is asked for one layer."""

    capability: Capability
    head_dim: int
    dtype: str
    kv_cache_dtype: str
    block_size: int | None
    """None: the user gave no --block-size."""
    num_heads: int
    """Query heads of one rank."""
    num_kv_heads: int
    uses_mla: bool = False
    sparse: bool = False
    has_sinks: bool = False
    bidirectional_images: bool = False
    attention_type: str = "decoder"
    has_sliding_window: bool = False
    uses_dcp: bool = False
    qk_nope_head_dim: int = 0
    index_topk: int | None = None
    has_logit_softcap: bool = False
    scales_per_head: bool = False
    """The checkpoint stores a KV scale for each head."""
    forces_flash_attention_2: bool = False
    """TurboQuant anywhere in the model keeps FlashAttention at version 2."""

    @property
    def quantized(self) -> bool:
        """What the selector calls quantised; TurboQuant is not among it.

        Source: vLLM 0.32.0 utils/torch_utils.py::is_quantized_kv_cache.
        """
        dtype = self.kv_cache_dtype
        return dtype.startswith(("fp8", "nvfp4")) or dtype.endswith("per_token_head")

    @property
    def printed_type(self) -> str:
        """The attention type as vLLM's enum prints itself."""
        return f"AttentionType.{self.attention_type.upper()}"

    def describe(self) -> str:
        """The request as vLLM prints it in its refusals (selector.py::AttentionSelectorConfig)."""
        return (
            f"AttentionSelectorConfig(head_size={self.head_dim}, dtype=torch.{self.dtype}, "
            f"kv_cache_dtype={self.kv_cache_dtype}, block_size={self.block_size}, use_mla={self.uses_mla}, "
            f"has_sink={self.has_sinks}, use_sparse={self.sparse}, "
            f"use_mm_prefix={self.bidirectional_images}, use_per_head_quant_scales={self.scales_per_head}, "
            f"attn_type={self.printed_type}, has_sliding_window={self.has_sliding_window}, "
            "use_non_causal=False, use_batch_invariant=False, use_kv_connector=False, "
            f"use_adaptive_verification=False, use_pcp=False, use_dcp={self.uses_dcp}, use_rswa=False)"
        )


class Backend(NamedTuple):
    """One attention backend: what it accepts, in the order in which vLLM checks it."""

    name: str
    kernel_sizes: Callable[[AttentionRequest], KernelSizes]
    kv_cache_dtypes: tuple[str, ...]
    capabilities: Callable[[Capability], bool]
    head_dims: Callable[[int], bool] = lambda _dim: True
    dtypes: tuple[str, ...] = HALVES
    mla: bool = False
    sparse: bool = False
    sinks: Callable[[AttentionRequest], bool] = lambda _request: False
    images: Callable[[Capability], bool] = lambda _capability: False
    scales_per_head: Callable[[AttentionRequest], bool] = lambda _request: False
    attention_types: tuple[str, ...] = ("decoder",)
    sliding_window: bool = False
    dcp: bool = False
    accepts_dtype: Callable[[AttentionRequest], bool] = lambda _request: True
    """Beyond the list: what the card makes of a dtype."""
    combination: Callable[[AttentionRequest], str | None] = lambda _request: None

    def refusals(self, request: AttentionRequest) -> tuple[str, ...]:
        """Why it can't serve the layer, in vLLM's words; empty when it can.

        Source: vLLM 0.32.0 v1/attention/backend.py::AttentionBackend.validate_configuration.
        """
        capability = request.capability
        dtype_ok = request.kv_cache_dtype in self.kv_cache_dtypes and self.accepts_dtype(request)
        block_ok = request.block_size is None or self.kernel_sizes(request).accepts(request.block_size)
        checks = (
            (self.head_dims(request.head_dim), "head_size not supported"),
            (request.dtype in self.dtypes, "dtype not supported"),
            (dtype_ok, "kv_cache_dtype not supported"),
            (block_ok, "block_size not supported"),
            (
                not request.bidirectional_images or self.images(capability),
                "partial multimodal token full attention not supported",
            ),
            (
                request.uses_mla == self.mla,
                "MLA not supported" if request.uses_mla else "non-MLA not supported",
            ),
            (not request.has_sinks or self.sinks(request), "attention sinks not supported"),
            (
                request.sparse == self.sparse,
                "sparse not supported" if request.sparse else "non-sparse not supported",
            ),
            (
                not request.scales_per_head or self.scales_per_head(request),
                "per-head quant scales not supported",
            ),
            (self.capabilities(capability), "compute capability not supported"),
            (
                request.attention_type in self.attention_types,
                f"attention type {request.printed_type} not supported",
            ),
            (not request.has_sliding_window or self.sliding_window, "sliding window not supported"),
            (not request.uses_dcp or self.dcp, "DCP not supported"),
        )
        reasons = tuple(reason for ok, reason in checks if not ok)
        combined = self.combination(request)
        return (*reasons, combined) if combined else reasons
