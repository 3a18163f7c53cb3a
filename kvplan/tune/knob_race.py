"""Which value of each knob wins: one variable at a time, then the two best in pairs. Pure: `ask` launches."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.tune.answers import may_win
from kvplan.tune.choose import better_variant, breaks_more, gain_of
from kvplan.tune.contenders import Contender, ranked
from kvplan.tune.trial import TrialSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.tune.contenders import Holds, Seats
    from kvplan.tune.problem import Problem
    from kvplan.tune.search import SearchState
    from kvplan.tune.trial import LoadLevel, Trial

LAUNCHES_KEPT: Final = 3
"""Kept back from the optional launches: two for the bracket and one for the confirmation."""
DUEL_PAIRS: Final = 2
"""Pairs of launches that the comparison of the two best may take beyond the first."""


@dataclass(slots=True)
class KnobRace:
    """The launches between the probe and the boundary."""

    problem: Problem
    state: SearchState
    """Read for the trials so far; notes are added."""
    seats: Seats
    holds: Holds
    """Where the recommendation is expected."""
    level: LoadLevel
    """What settings are compared by."""
    ask: Callable[[TrialSpec], Trial]
    launches_left: Callable[[], int]

    def run(self, base: Contender) -> tuple[list[Contender], Contender]:
        """All that may win, and the one that does."""
        return self._duel(*self._try_knobs(base))

    def _try_knobs(self, base: Contender) -> tuple[list[Contender], Contender]:
        """Every other value of each knob against the best so far, one variable at a time, all else equal.

        Gives all that may win and the best of them.
        """
        contenders, best = [base], base
        for knob, value in variants(self.problem):
            if self.launches_left() <= LAUNCHES_KEPT:
                self.state.notes.append(
                    f"{knob}={value} was not tried: the launches left are for the boundary"
                )
                continue
            before = best.launches[0]
            changed = before.spec.settings.with_flags(**{knob: value})
            why = f"what {knob}={value} changes, everything else as in trial {before.number}"
            trial = self.ask(TrialSpec("knob", changed, (self.level,), why))
            found = Contender(
                best.settings.with_flags(**{knob: value}), (trial,), best.speed, f"{knob}={value}"
            )
            gain = gain_of(self.problem, best.launches, found.launches)
            if gain is not None:
                found = dataclasses.replace(found, speed=best.speed * (1 + gain.speed))
            is_taken = self._is_taken(found, best)
            if is_taken or (trial.survived and self._may_be_taken(trial, best.launches[0])):
                contenders.append(found)
            if is_taken:
                best = found
        allowed = [c for c in contenders if may_win(self.problem, self.state.trials, c.launches[0])[0]]
        return allowed or [best], best

    def _seat_gain(self, found: Contender, best: Contender) -> float:
        """What other seats, by the memory that each leaves, make of the throughput."""
        return self.seats.factor(self.holds(found)) / self.seats.factor(self.holds(best))

    def _may_be_taken(self, trial: Trial, base: Trial) -> bool:
        """Whether its answers and the constraints allow it; how fast it is is another question."""
        if not may_win(self.problem, self.state.trials, trial)[0]:
            return False
        return not breaks_more(self.problem, trial, base)

    def _is_taken(self, found: Contender, best: Contender) -> bool:
        """Whether a variant is better and may win; also where what it would replace may not."""
        trial, base = found.launches[0], best.launches[0]
        allowed, why = may_win(self.problem, self.state.trials, trial)
        better = trial.survived and (
            better_variant(self.problem, trial, base, self._seat_gain(found, best))
            or not may_win(self.problem, self.state.trials, base)[0]
        )
        if why and (better or not allowed):
            said = "is better" if allowed else "was measured and is not recommended"
            self.state.notes.append(f"kv_cache_dtype={trial.spec.settings.kv_cache_dtype} {said}: {why}")
        return better and allowed

    def _duel(self, contenders: list[Contender], winner: Contender) -> tuple[list[Contender], Contender]:
        """The two best launched again in pairs, in random order, until it is decided which is better.

        Ends undecided after `DUEL_PAIRS`, or when the launches left are for the boundary, and says so. Gives
        the contenders as they then are, and the one that is taken.
        """
        others = [c for c in contenders if c is not winner]
        if not others or winner not in contenders:
            return contenders, winner
        rival = ranked(others, self.seats, self.holds)[0]
        if contenders.index(rival) > contenders.index(winner):
            return contenders, winner  # not taken when it was tried: nothing to gain by it
        old, new, seats = rival, winner, self._seat_gain(winner, rival)
        names = f"{new.found} against {old.found or 'the base'}"
        pairs = 0
        while True:
            gain = gain_of(self.problem, old.launches, new.launches, seats)
            after = f"after {pairs + 1} launch{'es' if pairs else ''} of each"
            if gain is None:
                return contenders, winner
            if gain.is_settled:
                if pairs:
                    said = "decided at 95 %" if gain.is_decided else "no gain worth a change is left"
                    self.state.notes.append(f"{names}: {said} {after}")
                break
            if pairs == DUEL_PAIRS or self.launches_left() < LAUNCHES_KEPT + 2:
                self.state.notes.append(f"{names}: taken as the better bet, not decided at 95 % {after}")
                break
            old, new = self._pair_again(old, new, pairs)
            pairs += 1
        new = dataclasses.replace(new, speed=old.speed * (1 + gain.speed))
        kept = [c for c in contenders if c is not winner and c is not rival]
        return [*kept, old, new], new if gain.is_taken else old

    def _pair_again(self, old: Contender, new: Contender, number: int) -> tuple[Contender, Contender]:
        """One more launch of each; which is first is drawn, so that no drift of the machine favours one."""
        if random.Random(f"{self.problem.seed}/{number}").random() < 0.5:
            old = self._again(old)
            return old, self._again(new)
        new = self._again(new)
        return self._again(old), new

    def _again(self, contender: Contender) -> Contender:
        """The same settings launched once more, at the target's load."""
        settings = contender.launches[0].spec.settings
        attempt = 1 + sum(trial.spec.settings == settings for trial in self.state.trials)
        why = f"{contender.found or 'the base'} again: which of the two best is better"
        trial = self.ask(TrialSpec("duel", settings, (self.level,), why, attempt))
        return contender.with_launch(trial)


def variants(problem: Problem) -> list[tuple[str, Any]]:
    """Every knob's other values, in the order they are tried."""
    space = problem.space
    return [
        *(("kv_cache_dtype", value) for value in space.kv_cache_dtype[1:]),
        *(("block_size", value) for value in space.block_size[1:]),
        *((name, value) for name, values in space.other.items() for value in values[1:]),
    ]
