"""vLLM as the journal of an exhaustive grid remembers it: a search's questions answered without a launch.

Restrictions, because only what was launched can be answered:
- utilisations are the grid's own (`restricted_to`), and so are the values of the knobs;
- a knob's launch, which the search makes with the probe's KV cache, is answered by a grid point of the same
  knobs whose KV cache is at least as large; where several are, the seed draws one, so that another seed
  sees another launch;
- the same question asked again gets the next of those launches, and the first again when there is no other.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvplan.tune.card import point_of, utilization_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.config.serving import ServingConfig
    from kvplan.tune.problem import Problem
    from kvplan.tune.trial import Trial, TrialSpec


class NotRecordedError(LookupError):
    """Nobody launched that."""


@dataclass(slots=True)
class RecordedGrid:
    """Answers trials from the launches of a grid."""

    probes: Sequence[Trial]
    points: Sequence[Trial]
    seed: int
    asked: list[tuple[TrialSpec, int]] = field(default_factory=list)
    """Every question, with the number of the launch in the grid that answered it."""

    def run_trial(self, spec: TrialSpec) -> Trial:
        """The recorded launch that stands for this one.

        Raises:
            NotRecordedError: there is none.
        """
        candidates = self._candidates(spec)
        if not candidates:
            raise NotRecordedError(f"{spec.phase}: {spec.settings.given()}")
        before = sum(_question(then) == _question(spec) for then, _ in self.asked)
        recorded = candidates[before % len(candidates)]
        self.asked.append((spec, recorded.number))
        kinds = {level.kind for level in spec.levels}
        loads = tuple(load for load in recorded.loads if load.level.kind in kinds)
        return dataclasses.replace(recorded, number=len(self.asked), spec=spec, loads=loads)

    def _candidates(self, spec: TrialSpec) -> list[Trial]:
        utilization, kv_bytes = spec.settings.gpu_memory_utilization, spec.settings.kv_cache_memory_bytes
        if spec.phase == "probe":
            found = [trial for trial in self.probes if knobs(trial.spec.settings) == knobs(spec.settings)]
            return found[self.seed % len(found) :] + found[: self.seed % len(found)] if found else []
        same = [trial for trial in self.points if knobs(trial.spec.settings) == knobs(spec.settings)]
        if utilization is not None:
            return [trial for trial in same if trial.gpu_memory_utilization == utilization]
        holding = [t for t in same if t.survived and (t.kv_cache_bytes or 0) >= (kv_bytes or 0)]
        random.Random(f"{self.seed} {knobs(spec.settings)}").shuffle(holding)
        return holding


def knobs(settings: ServingConfig) -> ServingConfig:
    """The settings but for how much memory they take."""
    return settings.with_flags(gpu_memory_utilization=None, kv_cache_memory_bytes=None)


def restricted_to(problem: Problem, points: Sequence[Trial]) -> Problem:
    """The grid's problem for the guided search: its utilisations are the grid's, from the second up.

    Utilisations are whole steps; the lowest of the grid, where the target's requests do not fit at once, is
    no multiple of the step between the others, and no search that reckons with memory would go there.
    """
    recorded = sorted({trial.gpu_memory_utilization or 0.0 for trial in points})[1:]
    step = round(recorded[1] - recorded[0], 6)
    assert [utilization_of(point_of(value, step), step) for value in recorded] == recorded
    space = dataclasses.replace(
        problem.space,
        utilization=(),
        utilization_step=step,
        lowest_utilization=recorded[0],
        highest_utilization=recorded[-1],
    )
    return dataclasses.replace(problem, space=space, strategy="guided")


def _question(spec: TrialSpec) -> tuple[ServingConfig, bool]:
    return spec.settings, spec.phase == "probe"
