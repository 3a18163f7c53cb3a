"""One tuning run: the search, asked through the journal, so that nothing finished is ever asked again."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kvplan.errors import KvplanError
from kvplan.tune.recommend import Recommendation, recommend
from kvplan.tune.replay import INTERRUPTED, explained, recommendation_as_dict
from kvplan.tune.strategies import search_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.tune.card import KvRules
    from kvplan.tune.journal import Journal
    from kvplan.tune.problem import Budget, Problem
    from kvplan.tune.search import SearchState
    from kvplan.tune.trial import LoadResult, Trial, TrialSpec


class Watcher(Protocol):
    """Whoever shows how a run goes."""

    def trial_begins(self, number: int, spec: TrialSpec) -> None:
        """A launch is about to be made."""

    def phase(self, text: str) -> None:
        """What the running trial is doing now."""

    def load_ends(self, result: LoadResult) -> None:
        """One repeat of one load was measured."""

    def trial_ends(self, trial: Trial) -> None:
        """A trial is finished and in the journal."""


class Executor(Protocol):
    """Whoever can really make a trial."""

    def execute(self, number: int, spec: TrialSpec) -> Trial:
        """Launch, load, stop; a failure of vLLM is in the trial, not raised."""


@dataclass(slots=True)
class TuneRun:
    """A run that goes on where its journal ends."""

    problem: Problem
    rules: KvRules
    journal: Journal
    executor: Executor
    watcher: Watcher
    budget: Budget
    probe_utilization: float = 0.9
    _finished: dict[str, Trial] = field(init=False)
    _made: int = field(init=False)
    _context: Mapping[str, Any] = field(init=False)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._finished = explained(self.journal.contents)
        self._made = len(self.journal.contents.trials)
        self._context = self.journal.contents.header["context"]
        self._began = time.monotonic() - self.journal.contents.measured_s

    def run(self) -> Recommendation:
        """Search to the end, or until interrupted; either way the journal ends with an outcome.

        Raises:
            KeyboardInterrupt: passed on, after the outcome so far was written.
            KvplanError: the journal can't be written, or the run can't go on; what finished is in it.
        """
        search = search_of(
            self.problem,
            self.rules,
            self._ask,
            self.budget.max_launches,
            minutes_left=self._minutes_left,
            probe_utilization=self.probe_utilization,
        )
        try:
            state = search.run()
        except KeyboardInterrupt:
            search.state.stopped = INTERRUPTED
            self._conclude(search.state, finished=False)
            raise
        except KvplanError as error:
            search.state.stopped = error.message
            with contextlib.suppress(KvplanError):  # the disk that is full is the journal's too
                self._conclude(search.state, finished=False)
            raise
        return self._conclude(state, finished=True)

    def _conclude(self, state: SearchState, *, finished: bool) -> Recommendation:
        recommendation = recommend(state, self.rules)
        self.journal.append(
            "outcome", finished=finished, recommendation=recommendation_as_dict(recommendation)
        )
        return recommendation

    def _minutes_left(self) -> float:
        return self.budget.max_minutes - (time.monotonic() - self._began) / 60

    def _ask(self, spec: TrialSpec) -> Trial:
        key = spec.key(self._context)
        known = self._finished.get(key)
        if known is not None:
            # The sentence and the phase belong to this asking; what was measured belongs to the key.
            return dataclasses.replace(known, spec=spec)
        self._made += 1
        number = self._made
        self.journal.append("trial_started", number=number, key=key, spec=spec.as_dict())
        self.watcher.trial_begins(number, spec)
        trial = self.executor.execute(number, spec)
        self.journal.append("trial", key=key, trial=trial.as_dict())
        self._finished[key] = trial
        self.watcher.trial_ends(trial)
        return trial
