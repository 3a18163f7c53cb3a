"""The guided search: which launches, in which order, and what each decides. Pure: `run_trial` is an argument.

Order: a probe (KV arithmetic, speed at several loads) -> the other values of each knob, one at a time ->
the boundary of the winner by bisection -> a cold start of the recommendation. Given the same answers it asks
the same questions, which is what makes `--resume` (answers from the journal) and `--dry-run` (answers from
the memory model) the same code.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvplan.tune.boundary import Bracket
from kvplan.tune.card import Card, kv_bytes_for, learn_card, page_aligned, point_of, utilization_of
from kvplan.tune.choose import seat_speeds
from kvplan.tune.contenders import Contender, Seats, best_with_seats
from kvplan.tune.knob_race import LAUNCHES_KEPT, KnobRace
from kvplan.tune.probe_point import ProbePoint
from kvplan.tune.pruning import pruned
from kvplan.tune.trial import TOO_LITTLE_KV, TOO_MUCH_MEMORY, LoadLevel, Trial, TrialSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.config.serving import ServingConfig
    from kvplan.tune.card import KvRules
    from kvplan.tune.contenders import Holds
    from kvplan.tune.problem import Problem

    RunTrial = Callable[[TrialSpec], Trial]

UNEXPLAINED_IN_A_ROW: Final = 3
MOST_REPEATS: Final = 4
"""Times `Problem.repeats`: where repeats end that do not make the mean known."""


class StopSearch(Exception):  # noqa: N818  not an error: the search ends with what was learnt
    """The run ends here, with what was learnt so far."""


@dataclass(slots=True)
class SearchState:
    """All that was learnt, filled in as the search goes; the recommendation is made of it."""

    problem: Problem
    trials: list[Trial] = field(default_factory=list)
    probe: Trial | None = None
    card: Card | None = None
    winner: ServingConfig | None = None
    """The chosen knobs; utilisation and KV bytes are set per launch."""
    low_end_utilization: float | None = None
    """Where the KV cache holds exactly one request of max_model_len; below, vLLM refuses to start."""
    bracket: Bracket | None = None
    recommended_utilization: float | None = None
    confirmed: Trial | None = None
    notes: list[str] = field(default_factory=list)
    stopped: str | None = None
    """Why the search ended before it was done; None when it was done."""


@dataclass(slots=True)
class GuidedSearch:
    """One guided search over one problem."""

    problem: Problem
    kv_rules: KvRules
    run_trial: RunTrial
    max_launches: int
    minutes_left: Callable[[], float]
    probe_utilization: float = 0.9
    """Of the probe on a GPU: what the memory model expects to start with room to spare."""
    state: SearchState = field(init=False)
    _seats: Seats = field(init=False)

    def __post_init__(self) -> None:
        self.state = SearchState(self.problem)

    def run(self) -> SearchState:
        """Search until done, out of budget, or without an explanation three times in a row."""
        state, problem = self.state, self.problem
        try:
            probe = self._probe()
            card = learn_card(problem.card_bytes, probe)
            base = problem.base_settings()
            self._seats = Seats(problem, seat_speeds(problem, probe))
            # As many seats as fit right at the boundary: fewer than the probe's leave more KV cache. Where
            # they do not fit at the recommended utilisation after all, they come down then.
            most = self._holds(card, base, self._expected_boundary(card))
            base = base.with_flags(max_num_seqs=self._seats.within(most))
            state.probe, state.card, state.winner = probe, card, base
            state.notes.append(pruned(problem, card, self.kv_rules).told(len(self._seats.speeds)))
            if problem.prove_low_end and self._can_afford_more():
                self._prove_low_end(card, base)
            contenders, winner = self._race().run(Contender(base, (probe,)))
            state.winner = winner.settings
            bracket = self._find_boundary(card, winner.settings)
            self._confirm(bracket, card, contenders, winner)
        except StopSearch as stop:
            state.stopped = str(stop)
        return state

    def _ask(self, spec: TrialSpec) -> Trial:
        """Run one trial, again if nothing explains its failure; stops the search after three of those."""
        evidence = None
        for attempt in range(spec.attempt, spec.attempt + UNEXPLAINED_IN_A_ROW):
            if self._launches_left() <= 0:
                raise StopSearch(f"the budget of {self.max_launches} launches is used up")
            if self.minutes_left() <= 0:
                raise StopSearch("the budget of minutes is used up")
            trial = self.run_trial(dataclasses.replace(spec, attempt=attempt))
            self.state.trials.append(trial)
            if trial.status != "failed":
                return trial
            evidence = trial.evidence
        raise StopSearch(
            f"{UNEXPLAINED_IN_A_ROW} unexplained failures in a row; the last: {evidence or 'no evidence'}"
        )

    def _launches_left(self) -> int:
        return self.max_launches - len(self.state.trials)

    def _can_afford_more(self) -> bool:
        return self._launches_left() > LAUNCHES_KEPT

    def _race(self) -> KnobRace:
        return KnobRace(
            problem=self.problem,
            state=self.state,
            seats=self._seats,
            holds=self._contender_holds(self._expected_utilization()),
            level=self._compared_level(),
            ask=self._ask,
            launches_left=self._launches_left,
        )

    def _target_level(self) -> LoadLevel:
        return LoadLevel("target", self.problem.target_concurrency, self.problem.repeats)

    def _compared_level(self) -> LoadLevel:
        """The target's load, repeated until its mean is known (repeats.py): settings are chosen by it."""
        return self._until_known(self._target_level())

    def _until_known(self, level: LoadLevel) -> LoadLevel:
        if self.problem.strategy == "grid":
            return level  # every point of a grid is measured alike, however noisy it is
        return dataclasses.replace(level, most_repeats=MOST_REPEATS * self.problem.repeats)

    def _survival_levels(self, settings: ServingConfig) -> tuple[LoadLevel, ...]:
        """The worst case with max_num_seqs requests admitted, then the target's load."""
        return LoadLevel(
            "soak", settings.max_num_seqs or self.problem.target_concurrency
        ), self._target_level()

    def _probe(self) -> Trial:
        """One server: KV arithmetic, and throughput and latency at every load of the sweep."""
        problem = self.problem
        settings = problem.base_settings()
        plan = self.kv_rules(settings)
        smallest = page_aligned(kv_bytes_for(plan, 1, problem.max_model_len), plan)
        # The KV cache of a CPU probe holds twice the target at its longest, so that the sweep up to four
        # times the target shows both the speed with room to spare and the first preemption.
        kv_bytes = kv_bytes_for(plan, 2 * problem.target_concurrency, problem.lengths.longest_request)
        point = ProbePoint(self.probe_utilization, problem.space.highest_utilization)
        target = problem.target_concurrency
        below = (LoadLevel("sweep", n, repeats=2) for n in problem.loads if n < target)
        above = (self._until_known(LoadLevel("sweep", n, repeats=2)) for n in problem.loads if n > target)
        levels = (*below, *above, self._compared_level())
        while True:
            asked = (
                settings.with_flags(gpu_memory_utilization=point.utilization)
                if problem.device == "cuda"
                else settings.with_flags(kv_cache_memory_bytes=max(smallest, page_aligned(kv_bytes, plan)))
            )
            trial = self._ask(TrialSpec("probe", asked, levels, PROBE_DECIDES))
            if trial.survived:
                return trial
            is_too_high, following = trial.failure in TOO_MUCH_MEMORY, None
            if problem.device == "cuda" and (is_too_high or trial.failure in TOO_LITTLE_KV):
                point = point.failed(is_too_high=is_too_high)
                following = point.following()
            elif problem.device == "cpu" and is_too_high and kv_bytes > smallest:
                following, kv_bytes = point, kv_bytes // 4
            if following is None:
                raise StopSearch(
                    f"the probe did not start: {point.told()}{trial.failure}: "
                    f"{trial.evidence or 'no evidence'}"
                )
            point = following

    def _expected_boundary(self, card: Card) -> float:
        return min(card.boundary_utilization, self.problem.space.highest_utilization)

    def _expected_utilization(self) -> float:
        """Where the recommendation is expected, after the first launch."""
        assert self.state.card is not None  # noqa: S101  set right after the probe
        return self._expected_boundary(self.state.card) - self.problem.margin

    def _holds(self, card: Card, settings: ServingConfig, utilization: float) -> int:
        """Requests of the longest length whose KV cache fits at a utilisation."""
        plan = self.kv_rules(settings)
        blocks = plan.num_blocks(card.kv_bytes(max(0.0, utilization)))
        return plan.concurrent_requests(blocks, self.problem.lengths.longest_request)

    def _contender_holds(self, utilization: float, more_bytes: int = 0) -> Holds:
        """What each contender's KV cache holds at a utilisation.

        On CPU the KV cache of a utilisation follows from the probe's memory (`at_utilization`); on a GPU from
        each contender's own, moved by `more_bytes` (what other seats than the probe's were seen to take).
        """

        def holds(contender: Contender) -> int:
            card = self.state.card
            assert card is not None  # noqa: S101  set right after the probe
            own = contender.non_kv_bytes
            if self.problem.device == "cuda" and own is not None:
                card = dataclasses.replace(card, non_kv_bytes=own + more_bytes)
            return self._holds(card, contender.settings, utilization)

        return holds

    def _seated(self, contenders: list[Contender], winner: Contender, utilization: float) -> ServingConfig:
        """The winner with the seats that its KV cache holds at a utilisation; another where that costs it.

        The boundary's survivors ran with the winner's seats: what they took before the KV cache is exact.
        """
        seen = [t for t in self.state.trials if t.survived and t.spec.phase == "boundary"]
        more = 0
        if seen and seen[-1].non_kv_bytes is not None and winner.non_kv_bytes is not None:
            more = seen[-1].non_kv_bytes - winner.non_kv_bytes
        holds = self._contender_holds(utilization, more)
        chosen = best_with_seats(contenders, winner, self._seats, holds)
        held, wanted = holds(chosen), winner.settings.max_num_seqs or self.problem.target_concurrency
        seats = self._seats.within(held)
        if chosen is not winner:
            self.state.notes.append(
                f"{winner.found} is faster, and at utilisation {utilization:g} its KV cache holds "
                f"{holds(winner)} requests of the longest length; {seats} at once without it answer more"
            )
        elif seats < wanted:
            self.state.notes.append(
                f"max_num_seqs {seats}: at utilisation {utilization:g} the KV cache holds {held} requests of "
                f"the longest length, not {wanted}"
            )
        return chosen.settings.with_flags(max_num_seqs=seats)

    def _prove_low_end(self, card: Card, settings: ServingConfig) -> None:
        """One launch with half of what one request needs: vLLM refuses, in its own words."""
        needed = kv_bytes_for(self.kv_rules(settings), 1, self.problem.max_model_len)
        # Not on the grid of points: the whole window between "no KV at all" and "enough" can be one point.
        utilization = round(card.utilization_for(needed // 2), 5)
        asked = at_utilization(self.problem, card, settings, utilization)
        trial = self._ask(TrialSpec("low_end", asked, (), LOW_END_DECIDES))
        if trial.survived:
            self.state.notes.append(
                f"vLLM started at utilisation {utilization:g}, where by the arithmetic one request of "
                f"{self.problem.max_model_len} tokens does not fit: the arithmetic is wrong for this model"
            )

    def _find_boundary(self, card: Card, winner: ServingConfig) -> Bracket:
        """Bisection of the highest utilisation that starts and survives the worst case."""
        space = self.problem.space
        needed = kv_bytes_for(self.kv_rules(winner), 1, self.problem.max_model_len)
        self.state.low_end_utilization = card.utilization_for(needed)
        lowest = max(
            point_of(self.state.low_end_utilization, space.utilization_step) + 1,
            point_of(space.lowest_utilization, space.utilization_step),
        )
        highest = point_of(space.highest_utilization, space.utilization_step)
        if lowest > highest:
            raise StopSearch("one request of max_model_len needs more KV cache than the card leaves")
        tolerance = max(1, round(self.problem.tolerance / space.utilization_step))
        bracket = self.state.bracket = Bracket(lowest, highest, tolerance)
        predicted = point_of(card.boundary_utilization, space.utilization_step)
        while (point := bracket.next_point(predicted)) is not None:
            if bracket.highest_success is not None and self._launches_left() <= 1:
                self.state.notes.append("the bracket is wider than the tolerance: the last launch confirms")
                break
            utilization = utilization_of(point, space.utilization_step)
            asked = at_utilization(self.problem, card, winner, utilization)
            why = f"does utilisation {utilization:g} start and survive the worst case"
            trial = self._ask(TrialSpec("boundary", asked, self._survival_levels(winner), why))
            stop_unless_memory(trial)
            bracket = self.state.bracket = bracket.with_result(point, trial.survived)
            if trial.survived:
                # Its peak is the card as it is up here; the probe saw it with little KV cache.
                seen = learn_card(self.problem.card_bytes, trial).boundary_utilization
                predicted = point_of(seen, space.utilization_step)
        return bracket

    def _confirm(self, bracket: Bracket, card: Card, contenders: list[Contender], winner: Contender) -> None:
        """A cold start of the recommendation; further back if even that does not survive."""
        if bracket.highest_success is None:
            raise StopSearch("no utilisation survived the worst case")
        step = self.problem.space.utilization_step
        margin = margin_points(self.state)
        point = max(bracket.lowest, bracket.highest_success - margin)
        while True:
            utilization = self.state.recommended_utilization = utilization_of(point, step)
            seated = self._seated(contenders, winner, utilization)
            asked = at_utilization(self.problem, card, seated, utilization)
            attempt = 1 + sum(trial.spec.settings == asked for trial in self.state.trials)
            levels = self._survival_levels(asked)
            trial = self._ask(TrialSpec("confirm", asked, levels, CONFIRM_DECIDES, attempt))
            if trial.survived:
                self.state.confirmed = trial
                if bracket.highest_success is None or bracket.highest_success < point:
                    self.state.bracket = bracket.with_result(point, survived=True)
                return
            stop_unless_memory(trial)
            self.state.notes.append(f"utilisation {utilization:g} did not survive its cold start")
            bracket = self.state.bracket = bracket.with_result(point, survived=False)
            if point == bracket.lowest:
                raise StopSearch("nothing survived a second time")
            point = max(bracket.lowest, point - max(margin, 1))


PROBE_DECIDES: Final = (
    "memory outside the KV cache (so the KV cache at every utilisation), speed at each load"
)
LOW_END_DECIDES: Final = "the low end: a KV cache that cannot hold one request of max_model_len"
CONFIRM_DECIDES: Final = "the recommendation, from a cold start"


def at_utilization(
    problem: Problem, card: Card, settings: ServingConfig, utilization: float
) -> ServingConfig:
    """The settings at a utilisation; on CPU with the KV cache that vLLM's accounting gives it there.

    vLLM on CPU takes its share of a NUMA node's changing total, so the share of our card is computed here
    and set as bytes.
    """
    settings = settings.with_flags(gpu_memory_utilization=utilization)
    if problem.device == "cuda":
        return settings
    return settings.with_flags(kv_cache_memory_bytes=max(1, card.kv_bytes(utilization)))


def stop_unless_memory(trial: Trial) -> None:
    """A boundary is about memory: a setting that vLLM refuses for another reason has none.

    Raises:
        StopSearch: the trial failed, explained, and not by too much memory.
    """
    if trial.status == "infeasible" and trial.failure not in TOO_MUCH_MEMORY:
        raise StopSearch(f"utilisation {trial.gpu_memory_utilization}: {trial.failure}: {trial.evidence}")


def margin_points(state: SearchState) -> int:
    """The step back from the boundary: what was asked for, or the observed spread of peaks if it is more."""
    problem = state.problem
    wanted = max(
        problem.margin,
        (problem.constraints.min_headroom_bytes or 0) / problem.card_bytes,
        peak_spread_bytes(state) / problem.card_bytes,
    )
    return math.ceil(wanted / problem.space.utilization_step - 1e-9)


def peak_spread_bytes(state: SearchState) -> int:
    """How much the memory outside the budget differed between launches: the noise of the boundary. Bytes."""
    outside = [
        unbudgeted
        for trial in state.trials
        if trial.survived and trial.kv_cache_bytes is not None and trial.non_kv_bytes is not None
        if (unbudgeted := learn_card(state.problem.card_bytes, trial).unbudgeted_bytes) is not None
    ]
    return max(outside) - min(outside) if len(outside) > 1 else 0
