"""The guided search against an exhaustive grid of real launches, answered from the grid's journal.

Source: tests/bench/tune_grid_real.py, on the machine of tests/data/grid/machine.json.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kvplan.tune.choose import compare, objective_values
from kvplan.tune.grid import best_of
from kvplan.tune.problem import Problem
from kvplan.tune.replay import rules_of
from kvplan.tune.strategies import search_of
from tests.bench.grid_data import (
    CLOSE,
    MAX_LAUNCHES,
    SEEDS,
    grid_journal,
    guided_journals,
    launch_noise_of,
    verdict,
)
from tests.recorded_grid import NotRecordedError, RecordedGrid, restricted_to

if TYPE_CHECKING:
    from kvplan.tune.search import SearchState

GRID = grid_journal()
PROBLEM = Problem.from_dict(GRID.header["problem"])
RULES = rules_of(GRID.header)
POINTS = [trial for trial in GRID.trials if trial.spec.phase == "grid"]
PROBES = [
    trial
    for journal in (GRID, *guided_journals().values())
    for trial in journal.trials
    if trial.spec.phase == "probe"
]


def guided(seed: int, *, quality_gate: bool = True) -> tuple[SearchState, RecordedGrid]:
    """The search itself, at most six launches, all of them answered by the grid's."""
    problem = dataclasses.replace(restricted_to(PROBLEM, POINTS), seed=seed, quality_gate=quality_gate)
    engine = RecordedGrid(PROBES, POINTS, seed)
    state = search_of(problem, RULES, engine.run_trial, MAX_LAUNCHES).run()
    return state, engine


def test_the_grid_is_whole_and_has_every_kind_of_answer() -> None:
    settings = {repr(trial.spec.settings.given()) for trial in POINTS}
    assert len(settings) == len(POINTS) == 32
    assert {trial.failure for trial in POINTS} == {None, "killed"}
    assert {t.gpu_memory_utilization for t in POINTS if t.failure == "killed"} == {0.7}
    waited = {
        (t.gpu_memory_utilization, t.spec.settings.kv_cache_dtype)
        for t in POINTS
        if any(load.waited_for_memory for load in t.loads if load.level.kind == "target")
    }
    # KV cache at 0.35: 14,671,053 bytes of 4,096 a token (4 layers x 2 x 4 heads x 64 x 2 bytes) hold 6 of
    # the target's 8 requests of 576 tokens; in fp8 twice as many.
    assert waited == {(0.35, "auto")}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("quality_gate", [True, False])
def test_the_guided_search_finds_what_the_grid_found_with_six_launches(seed: int, quality_gate: bool) -> None:
    state, engine = guided(seed, quality_gate=quality_gate)
    assert len(state.trials) <= MAX_LAUNCHES
    assert state.confirmed is not None, state.stopped
    best = best_of(dataclasses.replace(PROBLEM, quality_gate=quality_gate), list(GRID.trials))
    assert best is not None
    best_values = objective_values(PROBLEM, best)
    noise = launch_noise_of(PROBLEM, POINTS, best)
    difference = compare(best_values, objective_values(PROBLEM, state.confirmed))
    assert difference is not None
    assert difference.change >= -CLOSE or not difference.is_decided(noise), verdict(
        best_values, objective_values(PROBLEM, state.confirmed), noise
    )
    # A grid point: launched, survived, with no kill below it.
    chosen = POINTS[[trial.number for trial in POINTS].index(engine.asked[-1][1])]
    assert chosen.survived
    assert chosen.gpu_memory_utilization in {0.5, 0.6}
    assert state.bracket is not None
    assert (state.bracket.highest_success, state.bracket.lowest_failure) == (6, 7)  # steps of 0.1


def test_the_comparison_can_tell_a_bad_point_from_the_best() -> None:
    best = best_of(PROBLEM, list(GRID.trials))
    assert best is not None
    noise = launch_noise_of(PROBLEM, POINTS, best)
    found = {
        verdict(objective_values(PROBLEM, best), objective_values(PROBLEM, trial), noise)[1]
        for trial in POINTS
        if trial.survived
    }
    assert "worse" in found


def test_what_nobody_launched_is_not_answered() -> None:
    engine = RecordedGrid(PROBES, POINTS, seed=0)
    spec = POINTS[0].spec
    never = dataclasses.replace(spec, settings=spec.settings.with_flags(gpu_memory_utilization=0.55))
    with pytest.raises(NotRecordedError):
        engine.run_trial(never)
