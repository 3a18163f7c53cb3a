"""The exhaustive sweep: every combination of every knob's values, in a random order."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.tune.answers import may_win
from kvplan.tune.card import kv_bytes_for, learn_card
from kvplan.tune.choose import mean, objective_values, violations
from kvplan.tune.headroom import grid_bracket, knobs_of, shortfall
from kvplan.tune.search import GuidedSearch, SearchState, StopSearch, at_utilization
from kvplan.tune.trial import LoadLevel, TrialSpec

if TYPE_CHECKING:
    from kvplan.config.serving import ServingConfig
    from kvplan.tune.boundary import Bracket
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
        state.winner = knobs_of(asked)
        state.recommended_utilization = asked.gpu_memory_utilization
        state.bracket = grid_bracket(self.problem, state.trials, state.winner)
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
    """The survivor with the best mean objective that keeps the constraints and whose answers are no worse.

    Of those that keep the distance from the boundary that was asked for; of the others where none does.
    """
    best, best_rank = None, None
    brackets: dict[str, Bracket] = {}
    for trial in trials:
        if trial.spec.phase != "grid" or not trial.survived:
            continue
        if not may_win(problem, trials, trial)[0]:
            continue
        if violations(problem.constraints, trial.results("target", problem.target_concurrency)):
            continue
        value = mean(objective_values(problem, trial))
        if value is None:
            continue
        knobs = knobs_of(trial.spec.settings)
        if repr(knobs) not in brackets:
            brackets[repr(knobs)] = grid_bracket(problem, trials, knobs)
        keeps_distance = shortfall(problem, trials, brackets[repr(knobs)], trial) is None
        if best_rank is None or (keeps_distance, value) > best_rank:
            best, best_rank = trial, (keeps_distance, value)
    return best
