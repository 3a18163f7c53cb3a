"""Rank: what decides how one GPU's worker stores the cache, every `auto` resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from kvplan.architecture.layers import Mamba1State, Mamba2State
from kvplan.memory.kv_cache.era import Era, era_of
from kvplan.memory.kv_cache.model_dtype import dtype_on_card

if TYPE_CHECKING:
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.config.version import VllmVersion
    from kvplan.memory.hardware import GpuSpec

Capability = tuple[int, int]
StateMode = Literal["none", "align", "all"]
"""vLLM's mamba_cache_mode: which recurrent states the prefix cache keeps at block ends."""


class Rank(NamedTuple):
    """Hashable, and free of what only the budget needs: plans are cached by it."""

    platform: Literal["cuda", "cpu", "other"]
    capability: Capability | None
    gpu_name: str
    cpu_features: str | None
    vllm_version: VllmVersion
    dtype: str
    kv_cache_dtype: str
    """What model, checkpoint and card make of `auto`."""
    skip_layers: frozenset[str]
    """Layers kept in the model's dtype: indices, or `sliding_window`."""
    block_size: int | None
    """None: no --block-size."""
    tensor_parallel_size: int
    pipeline_parallel_size: int
    decode_context_parallel_size: int
    max_num_batched_tokens: int
    max_model_len: int
    state_mode: StateMode
    async_scheduling: bool
    disable_hybrid_kv_cache_manager: bool
    attention_backend: str | None
    mamba_cache_dtype: str
    mamba_ssm_cache_dtype: str
    num_speculative_tokens: int
    num_gpu_blocks_override: int | None
    allows_longer_max_model_len: bool

    @property
    def era(self) -> Era:
        """The rules of its vLLM release.

        Source: vLLM 0.8.5, 0.9.2 and 0.10.1 engine/arg_utils.py::_is_v1_supported_oracle: cards before
        Ampere stay with the first engine.
        """
        old_card = self.capability is not None and self.capability < (8, 0)
        return era_of(self.vllm_version, first_engine=old_card and self.vllm_version < (0, 10, 2))

    @property
    def is_cuda(self) -> bool:
        """Whether vLLM's CUDA platform serves on it."""
        return self.platform == "cuda"

    def has_cpu_feature(self, name: str) -> bool:
        """Whether the CPU has it; a CPU that nobody described is taken for a current server's."""
        return self.cpu_features is None or name in self.cpu_features


def rank_of(shape: ModelShape, settings: ResolvedSettings, gpu: GpuSpec) -> Rank:
    """The part of settings and card that the KV cache depends on.

    Raises:
        InputError: the card cannot compute in that dtype.
    """
    dtype = _kv_cache_dtype(shape, settings, gpu)
    return Rank(
        platform=gpu.platform,
        capability=gpu.compute_capability,
        gpu_name=gpu.name,
        cpu_features=gpu.arch if gpu.platform == "cpu" else None,
        vllm_version=settings.vllm_version,
        dtype=dtype_on_card(
            shape,
            settings.dtype,
            gpu,
            settings.vllm_version,
            is_default="dtype" in settings.defaulted,
        ),
        kv_cache_dtype=dtype,
        skip_layers=_skip_layers(shape, settings, dtype),
        block_size=settings.block_size,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        decode_context_parallel_size=settings.decode_context_parallel_size,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len if settings.max_model_len > 0 else shape.max_model_len,
        state_mode=_state_mode(shape, settings),
        async_scheduling=settings.async_scheduling,
        disable_hybrid_kv_cache_manager=settings.disable_hybrid_kv_cache_manager,
        attention_backend=settings.attention_backend,
        mamba_cache_dtype=settings.mamba_cache_dtype,
        mamba_ssm_cache_dtype=settings.mamba_ssm_cache_dtype,
        num_speculative_tokens=settings.num_speculative_tokens,
        num_gpu_blocks_override=settings.num_gpu_blocks_override,
        allows_longer_max_model_len=settings.allows_longer_max_model_len,
    )


def _kv_cache_dtype(shape: ModelShape, settings: ResolvedSettings, gpu: GpuSpec) -> str:
    """Source: vLLM 0.32.0 utils/torch_utils.py::resolve_kv_cache_dtype_string and
    model_executor/models/config.py (DeepseekV32ForCausalLM, GlmMoeDsaForCausalLM).
    """  # noqa: D205  # the source is the whole docstring
    dtype = _after_checkpoint(shape, settings.kv_cache_dtype, era_of(settings.vllm_version))
    if shape.architecture == "DeepseekV32ForCausalLM":
        # 0.11 stored everything but bfloat16 in its own fp8 rows, up to 0.15 whatever was called fp8.
        version = settings.vllm_version
        if version < (0, 12, 0) and dtype != "bfloat16":
            return "fp8_ds_mla"
        if version < (0, 16, 0) and dtype.startswith("fp8"):
            return "fp8_ds_mla"
        return "auto" if dtype == "bfloat16" else dtype
    blackwell = gpu.compute_capability is not None and gpu.compute_capability[0] == 10
    if shape.architecture == "GlmMoeDsaForCausalLM" and dtype == "auto" and blackwell:
        return "fp8_e4m3"
    return dtype


def _after_checkpoint(shape: ModelShape, dtype: str, era: Era) -> str:
    """The dtype after the checkpoint's own wish, which MLA layers read from ModelOpt only.

    Source: vLLM engine/arg_utils.py::create_engine_config and Attention.__init__ of 0.13.0, 0.14.1, 0.15.1,
    0.21.0, 0.22.1 and 0.32.0.
    """
    cache = shape.checkpoint_cache
    if cache.kv_cache_dtype is None:
        return dtype
    if cache.is_modelopt:
        known = era.reads_modelopt_nvfp4 or cache.kv_cache_dtype != "nvfp4"
        return cache.kv_cache_dtype if dtype == "auto" and era.reads_modelopt_cache and known else dtype
    decides = dtype == "auto" or era.checkpoint_overrides_dtype
    if era.reads_compressed_tensors_cache and decides and not shape.uses_mla:
        return cache.kv_cache_dtype
    return dtype


def _skip_layers(shape: ModelShape, settings: ResolvedSettings, dtype: str) -> frozenset[str]:
    """Those asked for, and TurboQuant's two at either end of a model without recurrent state.

    Source: vLLM 0.32.0 engine/arg_utils.py::create_engine_config and
    quantization/turboquant/config.py::get_boundary_skip_layers.
    """
    asked = frozenset(settings.kv_cache_dtype_skip_layers)
    if not dtype.startswith("turboquant_") or shape.is_hybrid:
        return asked
    edge = min(2, shape.num_layers // 2)
    ends = (*range(edge), *range(shape.num_layers - edge, shape.num_layers))
    return asked | frozenset(map(str, ends))


def _state_mode(shape: ModelShape, settings: ResolvedSettings) -> StateMode:
    """Hybrids have prefix caching on by default from 0.26, models without attention never.

    Source: vLLM model_executor/models/config.py::MambaModelConfig of 0.15.1, 0.20.0, 0.25.1, 0.27.1, 0.28.0
    and 0.32.0; config/model.py::is_prefix_caching_supported of 0.25.1 and 0.26.0.
    """
    era = era_of(settings.vllm_version)
    chosen = era.hybrid_prefix_caching or "enable_prefix_caching" not in settings.defaulted
    if shape.is_attention_free or not (settings.enable_prefix_caching and chosen):
        return "none"
    mamba = any(isinstance(cache, Mamba1State | Mamba2State) for layer in shape.layers for cache in layer)
    drafts = settings.num_speculative_tokens > 0 and (0, 20, 0) <= settings.vllm_version < (0, 21, 0)
    return "all" if mamba and era.keeps_every_mamba_state and not drafts else "align"
