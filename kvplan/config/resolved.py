"""ResolvedSettings: every flag that touches memory, with vLLM's default for a version and card filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvplan.config.version import VllmVersion


class ResolvedSettings(NamedTuple):
    """What vLLM of that version would run with. Sizes in bytes, lengths in tokens."""

    vllm_version: VllmVersion
    gpu_memory_utilization: float
    max_model_len: int
    """-1 is `auto`: the longest length that fits, found after the budget is known."""
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: str
    """`bfloat16`, `float16` or `float32`."""
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    block_size: int | None = None
    """None: vLLM picks it for the attention backend (the KV-cache plan says which)."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    quantization: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True
    disable_hybrid_kv_cache_manager: bool = False
    attention_backend: str | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    num_speculative_tokens: int = 0
    max_loras: int = 0
    """Adapters resident at once; 0 without --enable-lora."""
    max_lora_rank: int = 0
    cpu_offload_bytes: int = 0
    """Weights of one GPU that stay on the host (--cpu-offload-gb)."""
    allows_longer_max_model_len: bool = False
    """VLLM_ALLOW_LONG_MAX_MODEL_LEN."""
    charges_cudagraphs: bool | None = None
    """VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS; None: as the version does by default."""
    profiles_encoder: bool = True
    """Whether the profile run executes a multimodal model's encoder (--language-model-only and the like)."""
    defaulted: tuple[str, ...] = ()
    """Names of the flags that were not given."""
