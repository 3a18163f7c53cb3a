"""ServingConfig: the vLLM flags that kvplan plans, varies, launches and reads out of files.

A field is called as vLLM calls it; None means that the flag was not given and vLLM's own default holds
(`kvplan.config.defaults` resolves it for a version and a card). Flags that do not touch memory travel
verbatim in `other_flags`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping


class ServingConfig(FrozenRecord):
    """vLLM flags as given by a user; None is "not given". Sizes in bytes, lengths in tokens."""

    model: str | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    """KV cache of one GPU; replaces the profile-run arithmetic (vLLM >= 0.10.2)."""
    num_gpu_blocks_override: int | None = None
    max_model_len: int | None = None
    """-1 is vLLM's `auto` (>= 0.14): the longest length that fits."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str | None = None
    kv_cache_dtype_skip_layers: tuple[str, ...] | None = None
    block_size: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    decode_context_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    disable_hybrid_kv_cache_manager: bool | None = None
    attention_backend: str | None = None
    mamba_cache_dtype: str | None = None
    mamba_ssm_cache_dtype: str | None = None
    other_flags: Mapping[str, Any] = field(default_factory=dict)
    """Every other flag, by its long name with underscores, value as vLLM's YAML file would hold it."""

    def given(self) -> dict[str, Any]:
        """The flags that were given, in declaration order, `other_flags` last and flat."""
        named = {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}
        return named | dict(self.other_flags)

    def with_flags(self, **flags: Any) -> ServingConfig:
        """A copy with some flags changed; an unknown name goes to `other_flags`."""
        named = {k: v for k, v in flags.items() if k in FIELD_NAMES}
        rest = {k: v for k, v in flags.items() if k not in FIELD_NAMES}
        return dataclasses.replace(self, **named, other_flags={**self.other_flags, **rest})


_FIELDS: Final = tuple(f.name for f in dataclasses.fields(ServingConfig) if f.name != "other_flags")
FIELD_NAMES: Final = frozenset(_FIELDS)
