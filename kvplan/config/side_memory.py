"""Other flags and variables that change the budget: charged, or refused by name, never ignored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError
from kvplan.record import FrozenRecord
from kvplan.units import GIB, bytes_from_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

DRAFTS_WITHOUT_WEIGHTS: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Speculative methods that load no model (vLLM 0.32.0 config/speculative.py)."""

_NOT_MODELLED: Final = {
    "enable_eplb": "redundant experts take memory that is not modelled",
    "performance_mode": "it changes the batch defaults: give max_num_seqs and max_num_batched_tokens instead",
    "offload_group_size": "prefetched weight groups are not modelled",
    "mm_ipc_gpu_memory_gb": "memory reserved for multimodal input on the GPU is not modelled",
    "enable_sleep_mode": "its allocator's pool is not modelled",
}
"""Flag -> why it is refused when it is set to something."""

VARIABLES: Final = {
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": None,
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": None,
    "VLLM_CPU_KVCACHE_SPACE": None,
    "VLLM_PP_LAYER_PARTITION": "an uneven split of the layers by hand is not modelled",
    "VLLM_ENABLE_STARTUP_PLAN": "the stored plan of an earlier start replaces the profile run",
    "VLLM_USE_V1": "the engine that a version defaults to is the one that is modelled",
    "VLLM_USE_V2_MODEL_RUNNER": "the model runner that a version defaults to is the one that is modelled",
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "the default (1) is what is modelled",
}
"""Variables that change the budget; the text says why one is refused, None that it is understood."""


class SideMemory(FrozenRecord):
    """What the other flags and the environment do to the memory. Sizes in bytes."""

    max_loras: int = 0
    """Adapters resident at once; 0 without --enable-lora."""
    max_lora_rank: int = 0
    num_speculative_tokens: int = 0
    cpu_offload_bytes: int = 0
    """Weights of one GPU kept on the host."""
    charges_cudagraphs: bool | None = None
    """None: as the version does by default."""
    allows_longer_max_model_len: bool = False
    cpu_kv_cache_bytes: int | None = None
    profiles_encoder: bool = True
    """Whether the profile run executes a multimodal model's encoder."""


_NOTHING: Final = SideMemory()


def side_memory(flags: Mapping[str, Any], environment: Mapping[str, str]) -> SideMemory:
    """Read what is understood and refuse what is not.

    Args:
        flags: vLLM flags that have no field of their own, by name with underscores.
        environment: VLLM_* variables of the server.

    Raises:
        InputError: a flag or variable that changes the budget in a way that is not modelled.
    """
    if not flags and not environment:
        return _NOTHING
    for name, why in _NOT_MODELLED.items():
        if flags.get(name):
            raise InputError(f"--{name.replace('_', '-')}: {why}", "leave it out of the estimate")
    for name, why_not in VARIABLES.items():
        if (
            why_not is not None
            and environment.get(name, "") != ""
            and not _is_default(name, environment[name])
        ):
            raise InputError(f"{name}={environment[name]}: {why_not}", "unset it")
    lora = bool(flags.get("enable_lora"))
    estimate = environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    kv_space = environment.get("VLLM_CPU_KVCACHE_SPACE")
    return SideMemory(
        max_loras=int(flags.get("max_loras") or 1) if lora else 0,
        max_lora_rank=int(flags.get("max_lora_rank") or 16) if lora else 0,
        num_speculative_tokens=_speculative_tokens(flags.get("speculative_config")),
        cpu_offload_bytes=bytes_from_gib(float(flags.get("cpu_offload_gb") or 0), "--cpu-offload-gb"),
        charges_cudagraphs=None if estimate is None else estimate != "0",
        allows_longer_max_model_len=environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1",
        cpu_kv_cache_bytes=int(kv_space) * GIB if kv_space else None,
        profiles_encoder=not (
            flags.get("language_model_only")
            or flags.get("skip_mm_profiling")
            or _takes_no_items(flags.get("limit_mm_per_prompt"))
        ),
    )


def _takes_no_items(limits: Any) -> bool:
    """Whether --limit-mm-per-prompt names modalities and allows none of any.

    Raises:
        InputError: malformed.
    """
    if isinstance(limits, str):
        try:
            limits = json.loads(limits)
        except ValueError as error:
            raise InputError(f"--limit-mm-per-prompt is not JSON: {error}", 'write {"image": 2}') from error
    return isinstance(limits, dict) and bool(limits) and not any(limits.values())


def _is_default(name: str, value: str) -> bool:
    return name in {"VLLM_USE_V1", "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"} and value == "1"


def _speculative_tokens(config: Any) -> int:
    """Draft tokens a step; only methods that load no model are charged (through the KV cache).

    Raises:
        InputError: malformed, or a method whose draft model would need memory that is not modelled.
    """
    if not config:
        return 0
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError as error:
            raise InputError(
                f"--speculative-config is not JSON: {error}", 'write {"method": "ngram"}'
            ) from error
    method = str(config.get("method") or ("draft_model" if config.get("model") else "an unnamed method"))
    if method not in DRAFTS_WITHOUT_WEIGHTS:
        draft = "a draft model" if method == "draft_model" else f"a draft by {method}"
        raise InputError(
            f"--speculative-config: the weights and the KV cache of {draft} are not modelled",
            "leave it out and keep room for the draft yourself, or measure with `kvplan tune`",
        )
    return int(config.get("num_speculative_tokens") or 0)
