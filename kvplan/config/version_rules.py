"""VersionRules: what one vLLM version defaults to and how it accounts; facts come from profiles/engines/."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvplan.config.version import format_vllm_version, parse_vllm_version
from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvplan.config.version import VllmVersion


class VersionRules(NamedTuple):
    """The accounting rules and defaults of one vLLM version."""

    version: VllmVersion
    engine: Literal["V0", "V1"]
    gpu_memory_utilization: float
    batch_rule: Literal["v0", "v1_two_classes", "v1_three_classes"]
    """How max_num_batched_tokens and max_num_seqs default to the card."""
    a100_is_large: bool
    """Whether an A100-80 is in the class of H100 for those defaults (before 0.9)."""
    cpu_batch: tuple[int, int]
    """(max_num_batched_tokens, max_num_seqs) of a server on the CPU backend, one worker."""
    cudagraph_charged: bool
    """Whether the CUDA-graph estimate is subtracted from the KV budget."""
    requested_rounding: Literal["int", "ceil"]
    free_memory_check: bool
    """Whether a start fails when less memory is free than utilisation asks for."""
    null_block_in_start_check: bool
    kv_cache_memory_bytes_flag: bool
    max_model_len_auto: bool
    async_scheduling: bool
    chunked_prefill_default: bool
    prefix_caching_default: bool
    hybrid_prefix_caching: bool
    start_check_text: Literal["v0", "v07", "v085", "v092", "v014", "v022"]
    cpu_kv_rule: Literal["kvcache_space_4gib", "half_of_node", "utilization_of_node"]
    newest_known: bool
    """Whether these are the newest rules that kvplan has."""
    asked_version: VllmVersion
    """The version asked for; newer than `version` means that its own rules are not known."""

    @property
    def newer_than_known(self) -> bool:
        """Whether the asked version is newer (by minor) than everything kvplan has read."""
        return self.newest_known and self.asked_version[:2] > self.version[:2]


_BEFORE_V1 = {"a100_is_large": True, "cpu_batch": (2048, 256)}


def version_rules(asked: VllmVersion, profiles: Iterable[Mapping[str, Any]]) -> VersionRules:
    """The rules for a version: every profile up to it, a later one overriding an earlier.

    Args:
        asked: the version to answer for.
        profiles: engine profiles, each `{"version": "0.20.0", "facts": {name: {"value": …}}}`.

    Raises:
        InputError: older than the oldest profile.
    """
    ordered = sorted((parse_vllm_version(p["version"]), p["facts"]) for p in profiles)
    known = [(version, facts) for version, facts in ordered if version <= asked]
    if not known:
        oldest = format_vllm_version(ordered[0][0])
        raise InputError(
            f"vLLM {format_vllm_version(asked)} is older than the oldest rules that kvplan has ({oldest})",
            f"give --vllm-version {oldest} or newer",
        )
    values: dict[str, Any] = dict(_BEFORE_V1)
    for _, facts in known:
        values |= {name: fact["value"] for name, fact in facts.items()}
    values["cpu_batch"] = tuple(values["cpu_batch"])
    fields = set(VersionRules._fields)
    return VersionRules(
        **{k: v for k, v in values.items() if k in fields},
        version=known[-1][0],
        newest_known=len(known) == len(ordered),
        asked_version=asked,
    )
