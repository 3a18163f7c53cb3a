"""The search that a problem asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.tune.grid import GridSearch
from kvplan.tune.search import GuidedSearch

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.tune.card import KvRules
    from kvplan.tune.problem import Problem
    from kvplan.tune.search import RunTrial


def search_of(
    problem: Problem,
    rules: KvRules,
    run_trial: RunTrial,
    max_launches: int,
    *,
    minutes_left: Callable[[], float] = lambda: float("inf"),
    probe_utilization: float = 0.9,
) -> GuidedSearch:
    """Guided, or the exhaustive grid; both ask through the same `run_trial`."""
    kind = GridSearch if problem.strategy == "grid" else GuidedSearch
    return kind(problem, rules, run_trial, max_launches, minutes_left, probe_utilization)
