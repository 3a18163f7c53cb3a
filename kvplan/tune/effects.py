"""What each knob's value changed, one variable at a time, and how far launches differ by themselves. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvplan.tune.answers import may_win
from kvplan.tune.choose import LAUNCH_NOISE, compare_launches, mean, prediction_half_width, throughputs
from kvplan.tune.knob_race import variants

if TYPE_CHECKING:
    from kvplan.tune.card import Card
    from kvplan.tune.search import SearchState
    from kvplan.tune.trial import Trial


@dataclass(frozen=True, slots=True)
class KnobEffect:
    """One variable at a time: what a value changed against another, all else equal."""

    knob: str
    from_value: Any
    to_value: Any
    from_trial: int
    to_trial: int
    output_throughput_change: float | None
    """Relative; None when a side was not measured."""
    change_low: float | None
    change_high: float | None
    kv_cache_tokens_from: int | None
    kv_cache_tokens_to: int | None
    verdict: Literal["better", "worse", "undecided", "not recommended", "failed", "capacity"]
    why: str


def effects(state: SearchState) -> list[KnobEffect]:
    """What each value that was tried changed, and what the utilisation did, in the order tried."""
    problem, probe = state.problem, state.probe
    if probe is None:
        return []
    found = []
    for knob, value in variants(problem):
        trial, base = _pair(state, knob, value)
        if trial is None or base is None:
            continue
        answers = may_win(problem, state.trials, trial) if knob == "kv_cache_dtype" else (True, "")
        found.append(_knob_effect(state, knob, value, (base, trial), answers))
    confirmed = state.confirmed
    if confirmed is not None:
        before, after = kv_tokens(probe), kv_tokens(confirmed)
        found.append(
            KnobEffect(
                knob="gpu_memory_utilization",
                from_value=_own_utilization(state.card, probe),
                to_value=confirmed.gpu_memory_utilization,
                from_trial=probe.number,
                to_trial=confirmed.number,
                output_throughput_change=None,
                change_low=None,
                change_high=None,
                kv_cache_tokens_from=before,
                kv_cache_tokens_to=after,
                verdict="capacity",
                why="room for more tokens at once; at the target's load it buys no speed by itself",
            )
        )
    return found


def launch_noise(state: SearchState) -> float:
    """How far one more launch of the probe's knobs may lie from their mean at the target's load (relative).

    The half-width of the 95 % prediction interval of the launches' mean output throughputs, at least
    `LAUNCH_NOISE`, which also stands in where only one such launch was made. Utilisation and max_num_seqs
    differ between them, which at the target's load buys no speed.
    """
    if state.probe is None:
        return LAUNCH_NOISE
    free = {"gpu_memory_utilization": None, "kv_cache_memory_bytes": None, "max_num_seqs": None}
    knobs = state.probe.spec.settings.with_flags(**free)
    means = [
        value
        for trial in state.trials
        if trial.survived and trial.spec.settings.with_flags(**free) == knobs
        if (value := mean(throughputs(trial.results("target", state.problem.target_concurrency)))) is not None
    ]
    return max(LAUNCH_NOISE, prediction_half_width(means) or 0.0)


def _pair(state: SearchState, knob: str, value: Any) -> tuple[Trial | None, Trial | None]:
    """The trial of a knob's value, and the one before it that differs in nothing else."""
    survivors: list[Trial] = []
    for trial in state.trials:
        if trial.spec.phase == "knob" and trial.spec.settings.given().get(knob) == value:
            same = (
                t for t in survivors if t.spec.settings.with_flags(**{knob: value}) == trial.spec.settings
            )
            if (base := next(same, None)) is not None:
                return trial, base
        if trial.survived and trial.spec.phase in {"probe", "knob"}:
            survivors.append(trial)
    return None, None


def _own_utilization(card: Card | None, probe: Trial) -> float | None:
    if probe.gpu_memory_utilization is not None or card is None or probe.kv_cache_bytes is None:
        return probe.gpu_memory_utilization
    return round(card.utilization_for(probe.kv_cache_bytes), 4)


def _launches_of(state: SearchState, trial: Trial) -> list[Trial]:
    """A trial and the launches of the same settings that were made to compare it again."""
    again = [
        t
        for t in state.trials
        if t.spec.phase == "duel" and t.survived and t.spec.settings == trial.spec.settings
    ]
    return [trial, *again]


def _why_undecided(state: SearchState, knob: str, value: Any, noise: float, launches: int) -> str:
    if launches > 1:
        why = f"{launches} launches of each differ as much among themselves"
    else:
        why = f"repeats, or launches of the same settings (95 % within {noise:.0%}), differ as much anyway"
    chosen = None if state.confirmed is None else state.confirmed.spec.settings.given().get(knob)
    return f"{why}; taken as the better bet" if chosen == value else why


def _knob_effect(
    state: SearchState, knob: str, value: Any, trials: tuple[Trial, Trial], answers: tuple[bool, str]
) -> KnobEffect:
    base, trial = trials
    launches = [_launches_of(state, side) for side in trials]
    difference = compare_launches(dataclasses.replace(state.problem, objective="throughput"), *launches)
    # From two launches of each on, what launches differ by is in the interval itself.
    again = min(len(side) for side in launches)
    noise = launch_noise(state) if again < 2 else 0.0
    verdict: Literal["better", "worse", "undecided", "not recommended", "failed"]
    if not trial.survived:
        verdict, why = "failed", f"{trial.failure or trial.status}: {trial.evidence or 'no evidence'}"
    elif not answers[0]:
        verdict, why = "not recommended", f"stores keys and values in fewer bits; {answers[1]}"
    elif difference is None or not difference.is_decided(noise):
        verdict, why = "undecided", _why_undecided(state, knob, value, noise, again)
    else:
        verdict, why = (
            ("better", "decided at 95 %") if difference.change > 0 else ("worse", "decided at 95 %")
        )
    if trial.survived and answers[0] and answers[1]:
        why = f"{why}; {answers[1]}"
    return KnobEffect(
        knob=knob,
        from_value=base.spec.settings.given().get(knob),
        to_value=value,
        from_trial=base.number,
        to_trial=trial.number,
        output_throughput_change=None if difference is None else difference.change,
        change_low=None if difference is None else difference.low,
        change_high=None if difference is None else difference.high,
        kv_cache_tokens_from=kv_tokens(base),
        kv_cache_tokens_to=kv_tokens(trial),
        verdict=verdict,
        why=why,
    )


def kv_tokens(trial: Trial) -> int | None:
    """Tokens of KV cache, as vLLM printed them."""
    return None if trial.launch is None else trial.launch.facts.kv_cache_tokens
