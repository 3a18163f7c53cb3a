"""KvCachePlan: block sizes, groups and byte counts of a model's KV cache on one card of an installation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import field
from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from kvplan.architecture.layers import ChunkedLocal
from kvplan.errors import UnsupportedModelError
from kvplan.memory.kv_cache import printed
from kvplan.memory.kv_cache.grouping import Group, bytes_per_block, group_layers, on_stage
from kvplan.memory.kv_cache.layer_specs import rank_layers
from kvplan.memory.kv_cache.rank import Rank, rank_of
from kvplan.memory.kv_cache.spec import GROWING, Demand
from kvplan.memory.kv_cache.stages import pipeline_stages
from kvplan.memory.kv_cache.support import check_checkpoint_scales, check_supported
from kvplan.record import FrozenRecord
from kvplan.units import cdiv

if TYPE_CHECKING:
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.config.version import VllmVersion
    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.kv_cache.era import Era
    from kvplan.memory.kv_cache.spec import CacheSpec

_KINDS = {
    "full": "full",
    "sliding_window": "sliding_window",
    "chunked_local": "chunked_local",
    "mla": "mla",
    "mla_window": "sliding_window",
    "mamba": "mamba",
    "mamba_blocks": "mamba",
    "cross": "cross",
}


class KvGroup(NamedTuple):
    """Layers that share one block table."""

    kind: str
    """full, sliding_window, chunked_local, mla, mamba or cross."""
    layers: int
    block_size: int
    """Tokens of one block."""
    page_bytes: int
    """One block in one layer, padding included; the widest layer's where they differ."""
    block_bytes: int
    """One block in all layers of the group."""


class KvCachePlan(FrozenRecord):
    """The KV cache of one rank. Sizes in bytes, lengths in tokens."""

    block_size: int
    """What vLLM ends with after it has fitted the backend, recurrent states and skipped layers."""
    bytes_per_token: int
    """One more token of one long request, in every layer that keeps it; the widest pipeline stage's."""
    bytes_per_block: int
    """One block of the pool, on the pipeline stage where it is largest."""
    stage_bytes_per_block: tuple[int, ...]
    groups: tuple[KvGroup, ...]
    kv_cache_dtype: str
    """Resolved: what `auto` became."""
    attention_backends: tuple[str, ...]
    warnings: tuple[str, ...]
    max_model_len: int
    """The length that was asked for, or the model's own under `auto`."""
    vllm_version: VllmVersion
    num_gpu_blocks_override: int | None
    decode_context_parallel_size: int
    _tables: tuple[tuple[tuple[CacheSpec, ...], int], ...] = field(repr=False)
    """Each distinct kind of block table and how many there are of it."""
    _stage_layers: tuple[tuple[tuple[CacheSpec, int], ...], ...] = field(repr=False)
    """Per pipeline stage each distinct layer and how many there are, before grouping."""
    _demand: Demand = field(repr=False)
    _era: Era = field(repr=False)

    @property
    def is_attention_free(self) -> bool:
        """Whether there is nothing to cache at all."""
        return not self.groups

    def num_blocks(self, available_kv_bytes: int) -> int:
        """Blocks that vLLM makes of what each rank has left, the null block included.

        The smallest count over all ranks, so the widest stage's. Without anything to cache vLLM keeps
        one block.

        Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::get_kv_cache_config_from_groups.
        """
        if self.is_attention_free:
            return 1
        if self.num_gpu_blocks_override is not None:
            return self.num_gpu_blocks_override
        return max(available_kv_bytes, 0) // self.bytes_per_block

    def blocks_for_request(self, num_tokens: int) -> int:
        """Blocks that vLLM counts for one request of that many tokens at worst: all its groups' blocks."""
        demand = self._demand
        return sum(
            count * max(spec.request_blocks(num_tokens, demand) for spec in specs)
            for specs, count in self._tables
        )

    def request_bytes(self, max_model_len: int) -> int:
        """Bytes that the start-up check wants for one request of `max_model_len` tokens.

        From 0.14 whole blocks of the pool for each group, padding layers included; before, each layer's own
        pages.

        Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::_max_memory_usage_bytes_from_groups; 0.13.0
        check_enough_kv_cache_memory.
        """
        if self._era.checks_by_groups:
            return self.blocks_for_request(max_model_len) * self.bytes_per_block
        return max(
            sum(
                count * spec.request_blocks(max_model_len, self._demand) * spec.page_bytes
                for spec, count in layers
            )
            for layers in self._stage_layers
        )

    def check_bytes(self, available_kv_bytes: int) -> int:
        """What the start-up check compares `request_bytes` with.

        From 0.29 the null block is set aside first; `--num-gpu-blocks-override` replaces the memory.

        Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::get_kv_cache_configs.
        """
        if self.num_gpu_blocks_override is not None:
            available_kv_bytes = self.num_gpu_blocks_override * self.bytes_per_block
        reserved = self.bytes_per_block if self._era.reserves_null_block else 0
        return available_kv_bytes - reserved

    def max_concurrency(self, num_blocks: int, max_model_len: int) -> float:
        """The figure that vLLM of that version prints as "Maximum concurrency"."""
        if self.is_attention_free:
            return 0.0
        return printed.max_concurrency(self, self._era, num_blocks, max_model_len)

    def kv_cache_tokens(self, num_blocks: int, max_model_len: int) -> int:
        """The figure that vLLM of that version prints as "GPU KV cache size"."""
        if self.is_attention_free:
            return 0
        return printed.kv_cache_tokens(self, self._era, num_blocks, max_model_len)

    def estimated_max_model_len(self, available_kv_bytes: int) -> int:
        """The longest request that the start-up check lets pass, at most `max_model_len`; 0 for none.

        Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::_estimate_max_model_len_from_groups.
        """
        budget = self.check_bytes(available_kv_bytes)
        low, high = 0, self.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_bytes(middle) <= budget else (low, middle - 1)
        return low

    def steady_blocks(self, num_tokens: int) -> int:
        """Blocks that a request of that many tokens holds between steps while it decodes.

        Windows have given back what is behind them; vLLM's worst case (`blocks_for_request`) holds only
        while a whole batch of prefill tokens is in flight.
        """
        demand = self._demand
        return sum(
            count * max(spec.steady_blocks(num_tokens, demand) for spec in specs)
            for specs, count in self._tables
        )

    def concurrent_requests(self, num_blocks: int, num_tokens: int) -> int:
        """Requests of that total length (prompt and output) that run at once, nobody waiting or preempted.

        The last one is admitted while the others decode: vLLM lets it in when its worst case fits beside
        their steady state. The null block serves nobody. `max_num_seqs` is the caller's to apply.

        Source: vLLM 0.32.0 v1/core/kv_cache_manager.py::allocate_slots, v1/core/block_pool.py.
        """
        if self.is_attention_free:
            return 0
        usable = num_blocks - 1
        last = self.blocks_for_request(num_tokens)
        if usable < last:
            return 0
        return 1 + (usable - last) // self.steady_blocks(num_tokens)


def plan_kv_cache(shape: ModelShape, settings: ResolvedSettings, gpu: GpuSpec) -> KvCachePlan:
    """The KV cache that vLLM of `settings.vllm_version` would make for this model on this card.

    Rules were read in vLLM 0.32.0; `kvplan.memory.kv_cache.era` says what older releases do otherwise.

    Raises:
        InputError: vLLM itself refuses the combination; the message is its own.
        UnsupportedModelError: no exact rule covers it.
    """
    return _plan(shape, rank_of(shape, settings, gpu))


_CARDS = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
"""One compute capability of each kind that vLLM tells apart."""


@lru_cache(maxsize=1024)
def _plan(shape: ModelShape, rank: Rank) -> KvCachePlan:
    if rank.is_cuda and rank.capability is None:
        return _plan_for_any_card(shape, rank)
    notes = check_supported(shape, rank)
    layers = rank_layers(shape, rank)
    check_checkpoint_scales(shape, rank)
    grouping = group_layers(
        layers.layers,
        rank.era,
        hybrid_manager_off=_hybrid_manager_off(shape, rank),
        blocks_outermost=layers.blocks_outermost,
    )
    ends = pipeline_stages(shape.num_layers, rank.pipeline_parallel_size)
    stages = [on_stage(grouping.groups, first, end) for first, end in ends]
    stage_layers = [
        Counter(member.spec for member in layers.layers if first <= member.layer < end) for first, end in ends
    ]
    per_block = tuple(bytes_per_block(stage, blocks_outermost=layers.blocks_outermost) for stage in stages)
    return KvCachePlan(
        block_size=layers.block_size,
        bytes_per_token=max(_bytes_per_token(counted, rank) for counted in stage_layers),
        bytes_per_block=max(per_block),
        stage_bytes_per_block=per_block,
        groups=tuple(map(_described, grouping.groups)),
        kv_cache_dtype=rank.kv_cache_dtype,
        attention_backends=layers.backends,
        warnings=(*notes, *layers.warnings, *grouping.warnings),
        max_model_len=rank.max_model_len,
        vllm_version=rank.vllm_version,
        num_gpu_blocks_override=rank.num_gpu_blocks_override,
        decode_context_parallel_size=rank.decode_context_parallel_size,
        _tables=tuple(Counter(group.specs for group in grouping.groups).items()),
        _stage_layers=tuple(tuple(counted.items()) for counted in stage_layers),
        _demand=Demand(
            in_flight_tokens=_in_flight_tokens(shape, rank),
            decode_context_parallel_size=rank.decode_context_parallel_size,
            encoder_tokens=rank.max_num_batched_tokens,
        ),
        _era=rank.era,
    )


def _plan_for_any_card(shape: ModelShape, rank: Rank) -> KvCachePlan:
    """The plan of a card of unknown compute capability, where every kind of card gives the same.

    Raises:
        InputError: the cache hangs on the card, or some kind of card cannot serve this at all.
    """
    plans = [_plan(shape, rank._replace(capability=capability)) for capability in _CARDS]
    found = {dataclasses.replace(plan, attention_backends=(), warnings=()) for plan in plans}
    if len(found) > 1:
        raise UnsupportedModelError(
            f"the compute capability of {rank.gpu_name} is not known, and this model's KV cache hangs on it",
            "name the card by a profile (`kvplan profiles gpus`)",
        )
    shared = set.intersection(*(set(plan.warnings) for plan in plans))
    kept = tuple(note for note in plans[0].warnings if note in shared)
    return dataclasses.replace(plans[0], attention_backends=(), warnings=kept)


def _hybrid_manager_off(shape: ModelShape, rank: Rank) -> bool:
    """Whether windows and chunks are allocated like full attention.

    Source: vLLM config/vllm.py (0.32.0, 0.13.0), config.py (0.9.2), kv_cache_utils.py (0.8.5).
    """
    era = rank.era
    chunked = any(isinstance(cache, ChunkedLocal) for layer in shape.layers for cache in layer)
    return (
        rank.disable_hybrid_kv_cache_manager
        or not era.has_hybrid_manager
        or (rank.platform == "cpu" and not era.hybrid_manager_on_cpu)
        or (chunked and not era.chunks_under_hybrid_manager)
    )


def _bytes_per_token(layers: Counter[CacheSpec], rank: Rank) -> int:
    """Growing layers only; a part of a byte counts as one."""
    growing = [
        (spec, count) for spec, count in layers.items() if spec.kind in GROWING or spec.kind == "mamba_blocks"
    ]
    # Exact for blocks of several sizes: bytes of as many tokens as every size divides.
    span = lcm(*(spec.block_size for spec, _ in growing))
    span_bytes = sum(count * spec.page_bytes * (span // spec.block_size) for spec, count in growing)
    return cdiv(span_bytes, span * rank.decode_context_parallel_size)


def _described(group: Group) -> KvGroup:
    return KvGroup(
        kind=_KINDS[group.first.kind],
        layers=len(group.members),
        block_size=group.first.block_size,
        page_bytes=max(member.spec.page_bytes for member in group.members),
        block_bytes=group.page_bytes,
    )


def _in_flight_tokens(shape: ModelShape, rank: Rank) -> int:
    """Tokens scheduled and not settled: one batch before 0.26, one for each concurrent batch from then.

    Source: vLLM 0.32.0 config/vllm.py::max_concurrent_batches, use_v2_model_runner.
    """
    era = rank.era
    if not era.counts_concurrent_batches:
        return rank.max_num_batched_tokens
    stages = rank.pipeline_parallel_size
    asynchronous = rank.async_scheduling and rank.is_cuda
    second_runner = rank.is_cuda and (era.second_runner_for_all or not (shape.is_moe or shape.is_hybrid))
    batches = stages
    if asynchronous and second_runner:
        batches = stages + 1
    elif asynchronous and stages == 1:
        batches = 2
    return batches * rank.max_num_batched_tokens
