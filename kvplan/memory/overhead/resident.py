"""Charged memory that is no activation: kernels, communicators, resident buffers; and the CUDA context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.memory.overhead.hardware_facts import is_hopper_or_newer_datacentre
from kvplan.record import FrozenRecord
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.memory.overhead.coefficients import Coefficients
    from kvplan.memory.overhead.eras import Era
    from kvplan.memory.overhead.inputs import OverheadInputs


class Resident(FrozenRecord):
    """The parts of `other`. Bytes."""

    kernels: int
    """Non-torch growth of one GPU: modules, handles, workspaces of libraries."""
    peers: int
    """What tensor parallelism adds."""
    buffers: int
    """Counters of the sampler, one per request and vocabulary entry."""
    context: int
    unified: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.kernels + self.peers + self.buffers + self.context + self.unified


def resident_of(facts: OverheadInputs, era: Era, fitted: Coefficients) -> Resident:
    """The parts of `other` that this version charges."""
    recent = facts.vllm_version >= (0, 18, 0)
    kernels = fitted.non_torch_recent_gib if recent else fitted.non_torch_gib
    large = is_hopper_or_newer_datacentre(facts) or facts.platform == "other"
    if large:
        kernels += fitted.non_torch_hopper_gib
    return Resident(
        kernels=round(kernels * GIB),
        peers=round(_peers_gib(facts, era, fitted) * GIB) if facts.tensor_parallel_size > 1 else 0,
        buffers=sampler_counter_bytes(facts) if era.residents_charged and era.v2_runner else 0,
        context=round(fitted.context_gib * GIB) if era.context_charged else 0,
        unified=round(fitted.unified_gib * GIB) if facts.unified_memory else 0,
    )


def sampler_counter_bytes(facts: OverheadInputs) -> int:
    """Output counts (int32) and prompt bits of every request and vocabulary entry.

    Source: vLLM 0.28.0 v1/worker/gpu/sample/penalties.py::PenaltiesState.
    """
    return facts.max_num_seqs * facts.vocab_size * 4 + facts.max_num_seqs * facts.vocab_size // 8


def _peers_gib(facts: OverheadInputs, era: Era, fitted: Coefficients) -> float:
    if is_hopper_or_newer_datacentre(facts) and facts.vllm_version >= (0, 18, 0):
        return fitted.peers_fused_gib
    if is_hopper_or_newer_datacentre(facts) and era.peers_charged:
        return fitted.peers_nccl_hopper_gib
    return fitted.peers_hopper_gib if is_hopper_or_newer_datacentre(facts) else fitted.peers_gib


def outside_bytes(facts: OverheadInputs, era: Era, fitted: Coefficients) -> int:
    """What is on the card before vLLM's first snapshot: the CUDA context, and process groups from 0.11."""
    if era.context_charged:
        return 0
    gpus = facts.tensor_parallel_size * facts.pipeline_parallel_size
    groups = 0.0
    if gpus > 1 and not era.peers_charged and is_hopper_or_newer_datacentre(facts):
        groups = fitted.peers_outside_gib
    return round((fitted.context_gib + groups) * GIB)


def unprofiled_bytes(facts: OverheadInputs, fitted: Coefficients) -> int:
    """What stays reserved after the profile run without having been in its peak.

    gpt-oss's own expert kernels: its starts at 0.95 on 80 GB cards fail in the sampler's warm-up with 0.9 to
    1.8 GiB gone that no line accounts for, halving with tensor parallelism.
    """
    if facts.moe is None or facts.quantization != "mxfp4":
        return 0
    routed = facts.max_num_batched_tokens * facts.moe.top_k
    row = fitted.own_kernels_rows * facts.moe.intermediate_size / facts.tensor_parallel_size
    return round(routed * row * facts.dtype_bytes)
