"""The exhaustive sweep: every combination of every knob's values, in a random order."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.tune.answers import may_win
from kvplan.tune.boundary import Bracket
from kvplan.tune.card import kv_bytes_for, learn_card, point_of
from kvplan.tune.choose import mean, objective_values, violations
from kvplan.tune.search import GuidedSearch, SearchState, StopSearch, at_utilization
from kvplan.tune.trial import LoadLevel, TrialSpec

if TYPE_CHECKING:
    from kvplan.config.serving import ServingConfig
    from kvplan.tune.card import Card
    from kvplan.tune.problem import Problem
    from kvplan.tune.trial import Trial


@dataclass(slots=True)
class GridSearch(GuidedSearch):
    """Tries everything that the arithmetic does not rule out, and confirms the best from a cold start."""

    def run(self) -> SearchState:
        """Search until every candidate was tried, or the budget is used up."""
        state = self.state
        try:
            probe = self._probe()
            card = learn_card(self.problem.card_bytes, probe)
            state.probe, state.card = probe, card
            settings = self._possible(card)
            random.Random(self.problem.seed).shuffle(settings)
            for asked in settings:
                soak = LoadLevel("soak", asked.max_num_seqs or self.problem.target_concurrency)
                self._ask(TrialSpec("grid", asked, (soak, self._target_level()), "one point of the grid"))
        except StopSearch as stop:
            state.stopped = str(stop)
        best = best_of(self.problem, state.trials)
        if best is not None:
            self._confirm_best(best)
        return state

    def _possible(self, card: Card) -> list[ServingConfig]:
        """Every candidate in which one request fits; how many were ruled out is noted."""
        possible, ruled_out = [], 0
        for knobs, utilization in itertools.product(knob_settings(self.problem), utilizations(self.problem)):
            needed = kv_bytes_for(self.kv_rules(knobs), 1, self.problem.max_model_len)
            if card.kv_bytes(utilization) < needed:
                ruled_out += 1
            else:
                possible.append(at_utilization(self.problem, card, knobs, utilization))
        if ruled_out:
            self.state.notes.append(
                f"{ruled_out} of {ruled_out + len(possible)} candidates were ruled out without a launch: one "
                "request of max_model_len does not fit"
            )
        return possible

    def _confirm_best(self, best: Trial) -> None:
        state, asked = self.state, best.spec.settings
        knobs = state.winner = asked.with_flags(gpu_memory_utilization=None, kv_cache_memory_bytes=None)
        state.recommended_utilization = asked.gpu_memory_utilization
        step = self.problem.space.utilization_step
        space = self.problem.space
        bracket = Bracket(0, point_of(space.highest_utilization, step), 1)
        for trial in state.trials:
            same = trial.spec.settings.with_flags(gpu_memory_utilization=None, kv_cache_memory_bytes=None)
            if trial.spec.phase == "grid" and same == knobs and trial.status != "failed":
                point = point_of(trial.gpu_memory_utilization or 0.0, step)
                bracket = bracket.with_result(point, trial.survived)
        state.bracket = bracket
        if state.stopped is not None:
            return
        attempt = 1 + sum(trial.spec.settings == asked for trial in state.trials)
        try:
            trial = self._ask(
                TrialSpec("confirm", asked, best.spec.levels, "the best of the grid again", attempt)
            )
            state.confirmed = trial if trial.survived else None
        except StopSearch as stop:
            state.stopped = str(stop)


def knob_settings(problem: Problem) -> list[ServingConfig]:
    """Every combination of the knobs but utilisation."""
    space, base = problem.space, problem.base_settings()
    names = ["max_num_seqs", "kv_cache_dtype", *(["block_size"] if space.block_size else []), *space.other]
    values = [
        [n for n in problem.loads if n >= problem.target_concurrency],
        space.kv_cache_dtype,
        *([space.block_size] if space.block_size else []),
        *space.other.values(),
    ]
    return [base.with_flags(**dict(zip(names, chosen, strict=True))) for chosen in itertools.product(*values)]


def utilizations(problem: Problem) -> tuple[float, ...]:
    """The grid's utilisations: those given, else every 0.1."""
    space = problem.space
    if space.utilization:
        return space.utilization
    tenths = (round(0.1 * n, 1) for n in range(1, 11))
    return tuple(u for u in tenths if space.lowest_utilization <= u <= space.highest_utilization)


def best_of(problem: Problem, trials: list[Trial]) -> Trial | None:
    """The survivor with the best mean objective that keeps the constraints and whose answers are no worse."""
    best, best_mean = None, None
    for trial in trials:
        if trial.spec.phase != "grid" or not trial.survived:
            continue
        if not may_win(problem, trials, trial)[0]:
            continue
        if violations(problem.constraints, trial.results("target", problem.target_concurrency)):
            continue
        value = mean(objective_values(problem, trial))
        if value is not None and (best_mean is None or value > best_mean):
            best, best_mean = trial, value
    return best
