"""Rank: the settings of one GPU's worker that decide how a layer's cache is stored there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.config.version import VllmVersion
    from kvplan.memory.hardware import GpuSpec

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rank:
    """What the cache of one rank depends on. Hashable, and free of what only the budget needs."""

    platform: Literal["cuda", "cpu", "other"]
    capability: Capability | None
    gpu_name: str
    cpu_features: str | None
    vllm_version: VllmVersion
    dtype: str
    kv_cache_dtype: str
    skip_layers: tuple[str, ...]
    block_size: int | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    decode_context_parallel_size: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool
    prefix_caching_defaulted: bool
    async_scheduling: bool
    disable_hybrid_kv_cache_manager: bool
    attention_backend: str | None
    mamba_cache_dtype: str
    mamba_ssm_cache_dtype: str
    num_speculative_tokens: int
    num_gpu_blocks_override: int | None

    @property
    def is_cuda(self) -> bool:
        """Whether vLLM's CUDA platform serves on it."""
        return self.platform == "cuda"

    def has_cpu_feature(self, name: str) -> bool:
        """Whether the CPU has it; one that nobody described is taken for a current server CPU."""
        return self.cpu_features is None or name in self.cpu_features


def rank_of(settings: ResolvedSettings, gpu: GpuSpec, longest: int) -> Rank:
    """The part of settings and card that the KV cache depends on; `longest` stands in for `auto`."""
    return Rank(
        platform=gpu.platform,
        capability=gpu.compute_capability,
        gpu_name=gpu.name,
        cpu_features=gpu.arch if gpu.platform == "cpu" else None,
        vllm_version=settings.vllm_version,
        dtype=settings.dtype,
        kv_cache_dtype=settings.kv_cache_dtype,
        skip_layers=settings.kv_cache_dtype_skip_layers,
        block_size=settings.block_size,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        decode_context_parallel_size=settings.decode_context_parallel_size,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len if settings.max_model_len > 0 else longest,
        enable_prefix_caching=settings.enable_prefix_caching,
        prefix_caching_defaulted="enable_prefix_caching" in settings.defaulted,
        async_scheduling=settings.async_scheduling,
        disable_hybrid_kv_cache_manager=settings.disable_hybrid_kv_cache_manager,
        attention_backend=settings.attention_backend,
        mamba_cache_dtype=settings.mamba_cache_dtype,
        mamba_ssm_cache_dtype=settings.mamba_ssm_cache_dtype,
        num_speculative_tokens=settings.num_speculative_tokens,
        num_gpu_blocks_override=settings.num_gpu_blocks_override,
    )
