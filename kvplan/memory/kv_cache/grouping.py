"""Layers to groups that share a block table, as vLLM's KV-cache manager forms them.

Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::get_kv_cache_groups and what it calls.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.memory.kv_cache.spec import GROWING, STATES, CacheSpec
from kvplan.record import FrozenRecord
from kvplan.units import cdiv, round_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.memory.kv_cache.era import Era
    from kvplan.memory.kv_cache.layer_specs import LayerSpec


class Group(FrozenRecord):
    """Layers under one block table: each block of it holds a page of every one of them."""

    members: tuple[LayerSpec, ...]

    @property
    def first(self) -> CacheSpec:
        """The spec that stands for the group in vLLM's scheduler."""
        return self.members[0].spec

    @property
    def specs(self) -> tuple[CacheSpec, ...]:
        """Its distinct specs, one for each kind of layer in it."""
        return tuple(dict.fromkeys(member.spec for member in self.members))

    @property
    def page_bytes(self) -> int:
        """One block of all layers."""
        return sum(member.spec.page_bytes for member in self.members)


class Grouping(FrozenRecord):
    """All groups, and what the manager had to do to form them."""

    groups: tuple[Group, ...]
    warnings: tuple[str, ...] = ()


def group_layers(
    layers: Sequence[LayerSpec], era: Era, *, hybrid_manager_off: bool, blocks_outermost: bool
) -> Grouping:
    """The groups of a model's caches.

    Raises:
        InputError: pages of different sizes that vLLM of that version can't bring together.
    """
    warnings: list[str] = []
    if hybrid_manager_off:
        promoted = _promote_local(layers)
        if promoted != tuple(layers):
            warnings.append(
                "Hybrid KV cache manager is disabled: sliding-window and chunked layers are allocated as "
                "full attention"
            )
        layers = promoted
    if not layers:
        return Grouping(())
    if _one_type([member.spec for member in layers]):
        return Grouping((Group(tuple(layers)),), tuple(warnings))
    if blocks_outermost:
        return Grouping(_packed_groups(layers), tuple(warnings))
    unified = _unify_pages(layers, era)
    groups, notes = _equal_pages(unified, era)
    return Grouping(groups, (*warnings, *notes))


def bytes_per_block(groups: Sequence[Group], *, blocks_outermost: bool) -> int:
    """One block of the pool: as wide as the widest group.

    Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::_get_kv_cache_bytes_per_block.
    """
    widest = max((group.page_bytes for group in groups), default=0)
    if not blocks_outermost or widest == 0:
        return widest
    strides = {member.spec.stride_alignment for group in groups for member in group.members}
    return round_up(widest, math.lcm(*strides))


def on_stage(groups: Sequence[Group], first_layer: int, end_layer: int) -> tuple[Group, ...]:
    """The groups with only the layers of one pipeline stage."""
    return tuple(
        Group(tuple(member for member in group.members if first_layer <= member.layer < end_layer))
        for group in groups
    )


def _one_type(specs: Sequence[CacheSpec]) -> bool:
    """Whether all layers always need the same blocks, so that one table serves them.

    Source: UniformTypeKVCacheSpecs.is_uniform_type of vLLM 0.32.0 v1/kv_cache_interface.py.
    """
    first = specs[0]
    if any(spec.block_size != first.block_size for spec in specs):
        return False
    if first.kind in GROWING:
        return all(spec.kind in GROWING for spec in specs)
    if first.kind in STATES:
        return all(
            spec.kind == first.kind and (spec.span, spec.page_bytes) == (first.span, first.page_bytes)
            for spec in specs
        )
    return all(spec.kind == first.kind and spec.span == first.span for spec in specs)


def _promote_local(layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """Windows and chunks allocated like full attention, where there is full attention beside them.

    Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::_promote_local_kv_cache_specs.
    """
    if not layers or _one_type([member.spec for member in layers]):
        return tuple(layers)
    sizes = {member.spec.block_size for member in layers if member.spec.kind in GROWING}
    local = {"sliding_window": "full", "chunked_local": "full", "mla_window": "mla"}
    if not sizes:
        raise InputError(
            "Failed to promote local KV cache specs to one unified type.",
            "leave --disable-hybrid-kv-cache-manager out",
        )
    promoted = []
    for member in layers:
        spec = member.spec
        if spec.kind in local:
            ratio = (next(iter(sizes)) if len(sizes) == 1 else spec.block_size) / spec.block_size
            content = int(spec.content_bytes * ratio)
            padded = spec.page_bytes != spec.content_bytes
            spec = spec._replace(
                kind="mla" if spec.kind == "mla_window" else "full",
                block_size=int(spec.block_size * ratio),
                page_bytes=max(spec.page_bytes, content) if padded else content,
                content_bytes=content,
                span=0,
            )
        promoted.append(member._replace(spec=spec))
    if not _one_type([member.spec for member in promoted]):
        raise InputError(
            "Failed to promote local KV cache specs to one unified type.",
            "leave --disable-hybrid-kv-cache-manager out",
        )
    return tuple(promoted)


def _unify_pages(layers: Sequence[LayerSpec], era: Era) -> tuple[LayerSpec, ...]:
    """Equal pages: longer blocks where the largest page is a multiple, else padding.

    Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::unify_kv_cache_spec_page_size; padding of attention
    pages is first in 0.24.
    """
    largest = max(member.spec.page_bytes for member in layers)
    if not era.unifies_pages and any(member.spec.page_bytes != largest for member in layers):
        raise InputError(
            "KV pages of different sizes: vLLM before 0.12 raises NotImplementedError at start-up",
            "plan with vLLM 0.12 or newer",
        )
    unified = []
    for member in layers:
        spec = member.spec
        if spec.page_bytes == largest:
            pass
        elif spec.kind in STATES:
            spec = spec.padded_to(largest)
        elif largest % spec.page_bytes == 0:
            # vLLM leaves a padded page's padding alone: only its block grows.
            spec = spec.with_blocks_of(largest // spec.page_bytes)
        elif spec.kind not in {"mla", "mla_window"} and era.pads_attention_pages:
            spec = spec.padded_to(largest)
        else:
            raise InputError(
                f"KV pages of {spec.page_bytes} and {largest} bytes cannot be brought together: vLLM "
                "raises NotImplementedError at start-up",
                "another block_size, or vLLM 0.24 on (which pads them)",
            )
        unified.append(member._replace(spec=spec))
    return tuple(unified)


def _equal_pages(layers: Sequence[LayerSpec], era: Era) -> tuple[tuple[Group, ...], list[str]]:
    """Buckets of equal specs cut into groups of one size, layers dealt out in turn.

    Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::_get_kv_cache_groups_uniform_page_size.
    """
    buckets: dict[CacheSpec, list[LayerSpec]] = {}
    for member in layers:
        buckets.setdefault(member.spec, []).append(member)
    shortest, longest = min(map(len, buckets.values())), max(map(len, buckets.values()))
    size = longest if longest < shortest * era.near_ratio else shortest
    groups: list[Group] = []
    notes: list[str] = []
    for members in buckets.values():
        padding = -len(members) % size
        if padding:
            notes.append(
                f"Add {padding} padding layers, may waste at most {padding / len(members) * 100:.2f}% KV "
                "cache memory"
            )
        count = cdiv(len(members), size)
        groups.extend(Group(tuple(members[start::count])) for start in range(count))
    return tuple(groups), notes


def _packed_groups(layers: Sequence[LayerSpec]) -> tuple[Group, ...]:
    """Groups whose pages of several sizes lie side by side in a block (DeepSeek-V4).

    Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::_get_packed_kv_cache_groups.
    """
    buckets: list[list[LayerSpec]] = []
    for member in layers:
        home = next((b for b in buckets if _one_type([b[0].spec, member.spec])), None)
        if home is None:
            buckets.append([member])
        else:
            home.append(member)
    shapes = [_Bucket(bucket) for bucket in buckets]
    floor = max((s.repeats for s in shapes if s.balanced and len(s.by_page) > 1), default=0)
    repeats = _least_padding([s.repeats for s in shapes if s.balanced], floor) if floor else None
    for shape in shapes:
        if shape.balanced and repeats is not None:
            shape.groups = cdiv(shape.repeats, repeats)
        shape.is_state = shape.is_state or (
            repeats is None and shape.members[0].spec.kind in {"sliding_window", "mla_window"}
        )
    anchor = max(s.widest(len(s.members) if s.is_state else s.groups) for s in shapes)
    groups: list[Group] = []
    for shape in shapes:
        if shape.is_state:
            per_block = max(anchor // shape.members[0].spec.page_bytes, 1)
            shape.groups = max(shape.groups, cdiv(len(shape.members), per_block))
        groups.extend(shape.split())
    return tuple(groups)


class _Bucket:
    """Layers that need the same blocks, by page size."""

    def __init__(self, members: list[LayerSpec]) -> None:
        self.members = members
        self.by_page: dict[int, list[LayerSpec]] = {}
        for member in members:
            self.by_page.setdefault(member.spec.page_bytes, []).append(member)
        counts = [len(same) for same in self.by_page.values()]
        self.balanced = len(set(counts)) == 1
        self.repeats = max(counts)
        self.groups = 1
        self.is_state = members[0].spec.kind in STATES

    def widest(self, groups: int) -> int:
        """Bytes of the largest group when cut into that many."""
        return sum(cdiv(len(same), groups) * page for page, same in self.by_page.items())

    def split(self) -> list[Group]:
        """The bucket's groups, each with its share of every page size."""
        if self.groups == 1:
            return [Group(tuple(self.members))]
        patterns = list(zip(*self.by_page.values(), strict=True))
        return [
            Group(tuple(member for pattern in patterns[start :: self.groups] for member in pattern))
            for start in range(self.groups)
        ]


def _least_padding(values: Sequence[int], lower_bound: int) -> int:
    """The chunk from `lower_bound` up that needs least padding; the largest of equals.

    Source: vLLM 0.32.0 v1/core/kv_cache_utils.py::_approximate_gcd.
    """
    longest = max(values)
    if lower_bound > longest:
        return lower_bound
    return min(range(lower_bound, longest + 1), key=lambda size: (sum(-v % size for v in values), -size))
