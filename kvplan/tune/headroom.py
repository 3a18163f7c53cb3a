"""The distance of a setting from where memory ends, against what was asked for. Pure.

A guided search steps back from the highest survivor itself; a grid has only the points that it was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.tune.boundary import Bracket
from kvplan.tune.card import learn_card, point_of
from kvplan.tune.trial import TOO_MUCH_MEMORY
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.config.serving import ServingConfig
    from kvplan.tune.problem import Problem
    from kvplan.tune.trial import Trial

_DUST = 1e-9


def knobs_of(settings: ServingConfig) -> ServingConfig:
    """The settings without their place on the card: utilisation and KV bytes."""
    return settings.with_flags(gpu_memory_utilization=None, kv_cache_memory_bytes=None)


def grid_bracket(problem: Problem, trials: Sequence[Trial], knobs: ServingConfig) -> Bracket:
    """What a grid showed of the memory boundary of one combination of knobs."""
    step = problem.space.utilization_step
    bracket = Bracket(0, point_of(problem.space.highest_utilization, step), 1)
    for trial in trials:
        if trial.spec.phase != "grid" or knobs_of(trial.spec.settings) != knobs:
            continue
        if trial.survived or trial.failure in TOO_MUCH_MEMORY:
            bracket = bracket.with_result(point_of(trial.gpu_memory_utilization or 0.0, step), trial.survived)
    return bracket


def shortfall(problem: Problem, trials: Sequence[Trial], bracket: Bracket, trial: Trial) -> str | None:
    """What a survivor lacks of the distance that was asked for, in words; None when it keeps it.

    The distance is the one to the highest survivor of the same knobs. Where a cold start failed, and no
    survivor is left above, it is the one to that failure. `--margin` in a grid is also kept by a point whose
    own memory left so much of the card free: its spacing is the user's, and it has one top value.
    """
    step, utilization = problem.space.utilization_step, trial.gpu_memory_utilization
    if utilization is None:
        return None
    failed = None if bracket.lowest_failure is None else bracket.lowest_failure * step
    if failed is not None and failed <= utilization + _DUST:
        return f"the same settings ran out of memory at utilisation {failed:g}, not above {utilization:g}"
    highest = (bracket.highest_success or 0) * step
    distance = max(0.0, highest - utilization)
    if distance <= _DUST and failed is not None and _has_failed_cold(trials):
        distance = failed - utilization
    least = (problem.constraints.min_headroom_bytes or 0) / problem.card_bytes
    if distance + _DUST < least:
        return (
            f"{format_gib(round(distance * problem.card_bytes))} below what survived, not the "
            f"{format_gib(problem.constraints.min_headroom_bytes or 0)} of --min-headroom-gib"
        )
    if problem.strategy == "grid":
        free = _free_share(problem, trial)
        above = free if failed is None else min(free, failed - utilization)
        distance = max(distance, above)
    if distance + _DUST < problem.margin:
        short = f"{round(distance, 4):g} of the card below what survived"
        return f"{short}, not the {problem.margin:g} of --margin"
    return None


def _free_share(problem: Problem, trial: Trial) -> float:
    """Of the card, what a trial left free at its peak; 0 when that is unknown."""
    if trial.launch is None or trial.kv_cache_bytes is None or trial.non_kv_bytes is None:
        return 0.0
    card = learn_card(problem.card_bytes, trial)
    used = card.used_bytes(trial.gpu_memory_utilization or 0.0)
    return 0.0 if used is None else max(0.0, 1 - used / problem.card_bytes)


def _has_failed_cold(trials: Sequence[Trial]) -> bool:
    return any(trial.spec.phase == "confirm" and trial.failure in TOO_MUCH_MEMORY for trial in trials)
