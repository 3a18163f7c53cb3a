"""What a run expects before its first launch: memory by the model, seconds by earlier starts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError
from kvplan.tune.card import Card
from kvplan.units import GIB, format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvplan.planning import Planned
    from kvplan.tune.card import KvRules
    from kvplan.tune.problem import Problem

START_S: Final = {"cpu": 35.0, "cuda": 120.0}
"""Expected seconds of a start before one was seen: measured with small models on CPU (24 to 36 s eager);
on a GPU what a 7B model takes with compilation and graph capture."""
LOAD_S: Final = 15.0
"""Expected seconds of the loads of one launch before one was seen."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the memory model expects before anything was launched; bytes."""

    non_kv_bytes: int
    unbudgeted_bytes: int
    probe_utilization: float


def expected_memory(planned: Planned, problem: Problem) -> Assumed:
    """What the memory model expects of memory outside the KV cache.

    Raises:
        InputError: not even the weights fit.
    """
    answer = planned.planner.estimate(problem.base_settings().with_flags(gpu_memory_utilization=0.9))
    total = answer.gpu.total_bytes
    kv_bytes = next(line.bytes.mid for line in answer.budget.lines if line.name == "kv_cache")
    non_kv = answer.budget.requested_bytes - kv_bytes
    outside = answer.overhead.outside_budget.mid + answer.overhead.cuda_graphs_outside.mid
    if answer.weights.bytes.low >= total:
        raise InputError(
            f"the weights are {format_gib(answer.weights.bytes.low)}, the card has {format_gib(total)}",
            "kvplan estimate shows the ledger",
        )
    # Low enough to start even at the unlucky end of what the model expects, high enough to hold KV cache.
    cautious = (
        total - answer.overhead.outside_budget.high - answer.overhead.cuda_graphs_outside.high
    ) / total
    probe = round(max(0.5, min(0.9, cautious - 0.02)), 3)
    return Assumed(non_kv, outside, min(probe, problem.space.highest_utilization))


def out_of_reach(problem: Problem, rules: KvRules, assumed: Assumed) -> tuple[str, ...]:
    """Said before the first launch: the card is not expected to hold the target's requests at once."""
    card = Card(problem.card_bytes, assumed.non_kv_bytes, assumed.unbudgeted_bytes)
    highest = min(card.boundary_utilization, problem.space.highest_utilization)
    held = 0
    for dtype in problem.space.kv_cache_dtype:
        plan = rules(problem.base_settings().with_flags(kv_cache_dtype=dtype))
        blocks = plan.num_blocks(card.kv_bytes(highest))
        held = max(held, plan.concurrent_requests(blocks, problem.lengths.mean_request))
    if held >= problem.target_concurrency:
        return ()
    said = (
        f"the target of {problem.target_concurrency:,} users is out of reach by the memory model: the card "
        f"should hold {held:,} requests of {problem.lengths.mean_request:,} tokens at once"
    )
    return (said,)


def expected_start_s(problem: Problem, context: Mapping[str, Any], runs_dir: Path) -> tuple[float, str]:
    """Seconds that a launch will take to be ready, and where that is known from."""
    from kvplan.tune.journal import FILE_NAME, read_journal

    seen: list[float] = []
    for path in sorted(runs_dir.glob(f"*/{FILE_NAME}"))[-20:]:
        try:
            contents = read_journal(path)
        except InputError:
            continue
        then = contents.header["context"]
        if (then["model"], then["machine"]) == (context["model"], context["machine"]):
            seen += [t.launch.ready_s for t in contents.trials if t.launch is not None and t.launch.ready_s]
    if seen:
        return statistics.median(seen), f"median of {len(seen)} starts of this model here"
    gib = problem.card_bytes / GIB
    return START_S[problem.device], f"no start of this model was seen here yet; a guess for {gib:.0f} GiB"
