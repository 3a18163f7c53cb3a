"""Why vLLM refuses flags before it looks at memory: which flag it is, and what it would take instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import KvplanError
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.config.serving import ServingConfig
    from kvplan.memory.planner import Planner

_TAKEN_AWAY: Final = (
    "kv_cache_dtype",
    "block_size",
    "quantization",
    "attention_backend",
    "dtype",
    "max_num_batched_tokens",
    "max_num_seqs",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "decode_context_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "kv_cache_dtype_skip_layers",
    "max_model_len",
)


_MOST_RANKS: Final = 128
"""No larger tensor parallel size is tried; a file may ask for any number."""


class Refusal(FrozenRecord):
    """What vLLM would say, the flag whose change makes it go on, and the change."""

    message: str
    flag: str | None
    passes: str | None


def explain_refusal(planner: Planner, settings: ServingConfig, error: KvplanError) -> Refusal:
    """Find the flag by asking again without it: the first single change that vLLM would take is the cause."""
    for flag, value, text in _changes(planner, settings):
        try:
            planner.estimate(settings.with_flags(**{flag: value}))
        except KvplanError:
            continue
        return Refusal(error.message, flag, text)
    return Refusal(error.message, None, None)


def _changes(planner: Planner, settings: ServingConfig) -> Iterator[tuple[str, Any, str]]:
    longest = planner.shape.longest_model_len
    length = settings.max_model_len
    if length is not None and longest is not None and length > longest:
        yield "max_model_len", longest, f"--max-model-len {longest}"
    tensor = settings.tensor_parallel_size
    for size in range(min((tensor or 1) - 1, _MOST_RANKS), 0, -1):
        yield "tensor_parallel_size", size, f"--tensor-parallel-size {size}"
    for flag in _TAKEN_AWAY:
        if getattr(settings, flag) is not None:
            yield flag, None, f"without --{flag.replace('_', '-')}"
    if settings.dtype is None:
        # A card without bfloat16 serves the same model in half precision.
        yield "dtype", "float16", "--dtype half"
