"""How much of the grid needs no launch, and why: counted by arithmetic after the first launch. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.tune.card import kv_bytes_for, point_of, utilization_of

if TYPE_CHECKING:
    from kvplan.tune.card import Card, KvRules
    from kvplan.tune.problem import Problem


@dataclass(frozen=True, slots=True)
class Pruned:
    """The candidates of the whole grid: utilisation x max_num_seqs x every other knob."""

    candidates: int
    cannot_start: int
    """One request of max_model_len does not fit in the KV cache."""
    too_few: int
    """Start, but hold fewer requests of the longest length than the target."""
    too_full: int
    """Need more memory than the card has."""

    @property
    def left(self) -> int:
        """What arithmetic does not rule out."""
        return self.candidates - self.cannot_start - self.too_few - self.too_full

    def told(self, seats: int) -> str:
        """One sentence."""
        return (
            f"of {self.candidates:,} candidates (utilisation x max_num_seqs x knobs) arithmetic left "
            f"{self.left:,} after the first launch: {self.cannot_start:,} cannot hold one request, "
            f"{self.too_few:,} fewer requests than the target, {self.too_full:,} need more than the card; "
            f"one server's sweep stands for {seats} values of max_num_seqs, the boundary for the utilisations"
        )


def pruned(problem: Problem, card: Card, kv_rules: KvRules) -> Pruned:
    """Count what the memory that the first launch showed rules out."""
    space = problem.space
    seats = sum(n >= problem.target_concurrency for n in problem.loads)
    utilizations = space.utilization or tuple(
        utilization_of(point, space.utilization_step)
        for point in range(
            point_of(space.lowest_utilization, space.utilization_step),
            point_of(space.highest_utilization, space.utilization_step) + 1,
        )
    )
    names = ["kv_cache_dtype", *(["block_size"] if space.block_size else []), *space.other]
    values = [space.kv_cache_dtype, *([space.block_size] if space.block_size else []), *space.other.values()]
    counts = {"candidates": 0, "cannot_start": 0, "too_few": 0, "too_full": 0}
    for chosen in itertools.product(*values):
        plan = kv_rules(problem.base_settings().with_flags(**dict(zip(names, chosen, strict=True))))
        one = kv_bytes_for(plan, 1, problem.max_model_len)
        target = kv_bytes_for(plan, problem.target_concurrency, problem.lengths.longest_request)
        for utilization in utilizations:
            counts["candidates"] += seats
            kv_bytes = card.kv_bytes(utilization)
            if utilization > card.boundary_utilization:
                counts["too_full"] += seats
            elif kv_bytes < one:
                counts["cannot_start"] += seats
            elif kv_bytes < target:
                counts["too_few"] += seats
    return Pruned(**counts)
