"""From what a search learnt to what the user should run. Pure; a run without an answer says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.tune.answers import QualityFinding, findings, may_win
from kvplan.tune.card import utilization_of
from kvplan.tune.choose import (
    LAUNCH_NOISE,
    compare,
    mean,
    prediction_half_width,
    throughputs,
    violations,
)
from kvplan.tune.search import margin_points, peak_spread_bytes, variants

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.config.serving import ServingConfig
    from kvplan.tune.card import Card, KvRules
    from kvplan.tune.choose import Difference
    from kvplan.tune.problem import Problem
    from kvplan.tune.search import SearchState
    from kvplan.tune.trial import LoadResult, Trial


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """The repeats of one load in one trial: medians. None is unknown."""

    trial: int
    kind: str
    concurrency: int
    repeats: int
    completed: int
    failed: int
    output_throughput: float | None
    request_throughput: float | None
    p50_ttft_ms: float | None
    p99_ttft_ms: float | None
    p50_tpot_ms: float | None
    p99_tpot_ms: float | None
    p99_e2el_ms: float | None
    preemptions: int | None
    peak_running: int | None
    peak_kv_usage: float | None
    peak_memory_bytes: int | None
    notes: tuple[str, ...] = ()
    """What a reader must know before believing the figures."""


@dataclass(frozen=True, slots=True)
class BoundaryEnd:
    """One end of the bracket, or the low end."""

    gpu_memory_utilization: float | None
    """None for a probe on CPU: it is given its KV cache in bytes, before the card is known."""
    kv_cache_bytes: int | None
    trial: int
    failure: str | None = None
    evidence: str | None = None
    oom_kill_count: int | None = None
    log_path: str | None = None


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


@dataclass(frozen=True, slots=True)
class Prediction:
    """A figure known before it was measured, beside what was measured."""

    name: str
    unit: Literal["bytes", "tokens", "utilization", "requests"]
    predicted: float | None
    measured: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The answer of a run."""

    met: bool
    """Whether a confirmed setting meets the target and every constraint."""
    reasons: tuple[str, ...]
    """What is missing when it is not met."""
    settings: dict[str, Any] | None
    """The recommended flags, or the nearest that was measured; None when nothing started."""
    trial: int | None
    is_confirmed: bool
    measured: LoadSummary | None
    kv_cache_tokens: int | None
    requests_at_longest: int | None
    """Requests of the longest length that the KV cache holds at once."""
    boundary_survived: BoundaryEnd | None
    boundary_failed: BoundaryEnd | None
    low_end: BoundaryEnd | None
    low_end_utilization: float | None
    headroom_utilization: float | None
    """From the recommendation to the highest utilisation that survived."""
    headroom_bytes: int | None
    margin_utilization: float | None
    peak_spread_bytes: int | None
    launch_noise: float
    """How far one more launch of the same settings may lie from their mean output throughput (relative)."""
    curve: tuple[LoadSummary, ...]
    """The sweep of one server, by number of users."""
    first_preemption: int | None
    """Users at which requests were first preempted; None: at no load that was tried."""
    effects: tuple[KnobEffect, ...]
    predictions: tuple[Prediction, ...]
    failures: tuple[BoundaryEnd, ...]
    notes: tuple[str, ...]
    stopped: str | None
    quality: tuple[QualityFinding, ...] = ()
    """What was found of the answers of each quantised kv_cache_dtype that was tried."""


SUMMARY_FIGURES: Final = (
    "output_throughput",
    "request_throughput",
    "p50_ttft_ms",
    "p99_ttft_ms",
    "p50_tpot_ms",
    "p99_tpot_ms",
    "p99_e2el_ms",
)


def recommend(state: SearchState, kv_rules: KvRules) -> Recommendation:
    """The recommendation of a search, or the nearest to one that it found."""
    problem = state.problem
    chosen = state.confirmed or _nearest(state)
    measured = None if chosen is None else _at_target(problem, chosen)
    reasons = _reasons(state, chosen, kv_rules)
    survived, failed = _bracket_ends(state)
    low_end = next((t for t in state.trials if t.spec.phase == "low_end" and t.status == "infeasible"), None)
    utilization = None if chosen is None else chosen.gpu_memory_utilization
    highest = None if survived is None else survived.gpu_memory_utilization
    headroom = None if highest is None or utilization is None else highest - utilization
    return Recommendation(
        met=not reasons,
        reasons=tuple(reasons),
        settings=None if chosen is None else chosen.spec.settings.given(),
        trial=None if chosen is None else chosen.number,
        is_confirmed=state.confirmed is not None,
        measured=measured,
        kv_cache_tokens=None if chosen is None else _kv_tokens(chosen),
        requests_at_longest=None if chosen is None else requests_at_longest(problem, chosen, kv_rules),
        boundary_survived=survived,
        boundary_failed=failed,
        low_end=None if low_end is None else _end(low_end),
        low_end_utilization=state.low_end_utilization,
        headroom_utilization=None if headroom is None else round(headroom, 6),
        headroom_bytes=None if headroom is None else round(headroom * problem.card_bytes),
        margin_utilization=utilization_of(margin_points(state), problem.space.utilization_step),
        peak_spread_bytes=peak_spread_bytes(state),
        launch_noise=launch_noise(state),
        curve=_curve(problem, state.probe),
        first_preemption=_first_preemption(state.probe),
        effects=tuple(_effects(state)),
        predictions=tuple(_predictions(state, chosen, kv_rules)),
        failures=tuple(_end(trial) for trial in state.trials if trial.status != "ok"),
        notes=tuple(dict.fromkeys(state.notes)),
        stopped=state.stopped,
        quality=tuple(findings(state.trials)),
    )


def requests_at_longest(problem: Problem, trial: Trial, kv_rules: KvRules) -> int | None:
    """Requests of the longest length that the KV cache of a started trial holds at once."""
    if trial.kv_cache_bytes is None or not trial.survived:
        return None
    plan = kv_rules(trial.spec.settings)
    return plan.concurrent_requests(plan.num_blocks(trial.kv_cache_bytes), problem.lengths.longest_request)


def summarise(trial: Trial, kind: str, concurrency: int, loads: tuple[LoadResult, ...]) -> LoadSummary:
    """Medians over the repeats of one load; counts added, peaks at their highest."""
    return LoadSummary(
        trial=trial.number,
        kind=kind,
        concurrency=concurrency,
        repeats=len(loads),
        completed=sum(load.completed for load in loads),
        failed=sum(load.failed for load in loads),
        **{name: _median([getattr(load, name) for load in loads]) for name in SUMMARY_FIGURES},
        preemptions=_added([load.preemptions for load in loads]),
        peak_running=_highest([load.peak_running for load in loads]),
        peak_kv_usage=_highest([load.peak_kv_usage for load in loads]),
        peak_memory_bytes=_highest([load.peak_memory_bytes for load in loads]),
        notes=_one_of_each(note for load in loads for note in load.notes),
    )


def _at_target(problem: Problem, trial: Trial) -> LoadSummary | None:
    loads = trial.results("target", problem.target_concurrency)
    return summarise(trial, "target", problem.target_concurrency, loads) if loads else None


def _nearest(state: SearchState) -> Trial | None:
    """Without a confirmed setting: the best survivor of the boundary, else the probe."""
    survivors = [t for t in state.trials if t.survived and t.spec.phase in {"boundary", "grid"}]
    return max(survivors, key=lambda t: t.gpu_memory_utilization or 0.0, default=state.probe)


def _reasons(state: SearchState, chosen: Trial | None, kv_rules: KvRules) -> list[str]:
    problem = state.problem
    if chosen is None:
        return [state.stopped or "nothing started"]
    reasons = [] if state.confirmed else [f"not confirmed from a cold start: {state.stopped or 'unfinished'}"]
    loads = chosen.results("target", problem.target_concurrency)
    reasons += violations(problem.constraints, loads)
    holds = requests_at_longest(problem, chosen, kv_rules)
    peak = max((load.peak_running for load in loads if load.peak_running is not None), default=None)
    target = problem.target_concurrency
    if (holds is None or holds < target) and (peak is None or peak < target):
        reasons.append(f"the KV cache holds {holds} requests of the longest length at once, not {target}")
    return reasons


def _bracket_ends(state: SearchState) -> tuple[BoundaryEnd | None, BoundaryEnd | None]:
    if state.bracket is None:
        return None, None
    step = state.problem.space.utilization_step
    winner = None if state.winner is None else _knobs(state.winner)

    def trial_at(point: int | None, survived: bool) -> Trial | None:
        if point is None:
            return None
        wanted = utilization_of(point, step)
        return next(
            t
            for t in state.trials
            if t.gpu_memory_utilization == wanted
            and t.survived is survived
            and t.spec.phase in {"boundary", "confirm", "grid"}
            and _knobs(t.spec.settings) == winner
        )

    low = trial_at(state.bracket.highest_success, survived=True)
    high = trial_at(state.bracket.lowest_failure, survived=False)
    return None if low is None else _end(low), None if high is None else _end(high)


def _knobs(settings: ServingConfig) -> ServingConfig:
    return settings.with_flags(gpu_memory_utilization=None, kv_cache_memory_bytes=None)


def _end(trial: Trial) -> BoundaryEnd:
    launch = trial.launch
    return BoundaryEnd(
        gpu_memory_utilization=trial.gpu_memory_utilization,
        kv_cache_bytes=trial.kv_cache_bytes,
        trial=trial.number,
        failure=trial.failure,
        evidence=trial.evidence,
        oom_kill_count=None if launch is None else launch.oom_kill_count,
        log_path=None if launch is None else launch.log_path,
    )


def _curve(problem: Problem, probe: Trial | None) -> tuple[LoadSummary, ...]:
    if probe is None:
        return ()
    found = []
    for users in problem.loads:
        kind: Literal["target", "sweep"] = "target" if users == problem.target_concurrency else "sweep"
        loads = probe.results(kind, users)
        if loads:
            found.append(summarise(probe, kind, users, loads))
    return tuple(found)


def _first_preemption(probe: Trial | None) -> int | None:
    loads = () if probe is None else probe.loads
    return min((load.level.concurrency for load in loads if load.preemptions), default=None)


def _kv_tokens(trial: Trial) -> int | None:
    return None if trial.launch is None else trial.launch.facts.kv_cache_tokens


def _effects(state: SearchState) -> list[KnobEffect]:
    problem, probe = state.problem, state.probe
    if probe is None:
        return []
    target = problem.target_concurrency
    found = []
    for knob, value in variants(problem):
        trial, base = _pair(state, knob, value)
        if trial is None or base is None:
            continue
        difference = compare(
            throughputs(base.results("target", target)), throughputs(trial.results("target", target))
        )
        answers = may_win(problem, state.trials, trial) if knob == "kv_cache_dtype" else (True, "")
        found.append(_knob_effect(knob, value, (base, trial), difference, launch_noise(state), answers))
    confirmed = state.confirmed
    if confirmed is not None:
        before, after = _kv_tokens(probe), _kv_tokens(confirmed)
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


def _knob_effect(
    knob: str,
    value: Any,
    trials: tuple[Trial, Trial],
    difference: Difference | None,
    noise: float,
    answers: tuple[bool, str],
) -> KnobEffect:
    base, trial = trials
    verdict: Literal["better", "worse", "undecided", "not recommended", "failed"]
    if not trial.survived:
        verdict, why = "failed", f"{trial.failure or trial.status}: {trial.evidence or 'no evidence'}"
    elif not answers[0]:
        verdict, why = "not recommended", f"stores keys and values in fewer bits; {answers[1]}"
    elif difference is None or not difference.is_decided(noise):
        verdict = "undecided"
        why = f"repeats, or launches of the same settings (95 % within {noise:.0%}), differ as much anyway"
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
        kv_cache_tokens_from=_kv_tokens(base),
        kv_cache_tokens_to=_kv_tokens(trial),
        verdict=verdict,
        why=why,
    )


def _predictions(state: SearchState, chosen: Trial | None, kv_rules: KvRules) -> list[Prediction]:
    found = []
    if state.card is not None and state.bracket is not None:
        low = state.bracket.highest_success
        found.append(
            Prediction(
                "highest utilisation that survives",
                "utilization",
                round(state.card.boundary_utilization, 4),
                None if low is None else utilization_of(low, state.problem.space.utilization_step),
                "card minus the memory outside vLLM's budget, as the probe showed it",
            )
        )
    if chosen is not None and chosen.survived and chosen.kv_cache_bytes is not None:
        plan = kv_rules(chosen.spec.settings)
        # What was predicted before the launch: from the utilisation, not from what vLLM then made of it.
        utilization = chosen.gpu_memory_utilization
        kv_bytes = (
            chosen.kv_cache_bytes
            if state.card is None or utilization is None
            else state.card.kv_bytes(utilization)
        )
        blocks = plan.num_blocks(kv_bytes)
        found.append(
            Prediction(
                "KV cache",
                "tokens",
                plan.kv_cache_tokens(blocks, state.problem.max_model_len),
                _kv_tokens(chosen),
                "vLLM's own arithmetic",
            )
        )
    if state.probe is not None and state.probe.kv_cache_bytes is not None:
        holds = requests_at_longest(state.problem, state.probe, kv_rules)
        found.append(
            Prediction(
                "users before the first preemption (probe)",
                "requests",
                holds,
                _users_before_preemption(state.probe),
                "KV cache of the probe over the longest request; the measured figure is the highest load "
                "tried without a preemption",
            )
        )
    return found


def _users_before_preemption(probe: Trial) -> int | None:
    first = _first_preemption(probe)
    tried = {load.level.concurrency for load in probe.loads}
    return max((users for users in tried if first is None or users < first), default=None)


def _one_of_each(notes: Iterable[str]) -> tuple[str, ...]:
    """Notes that differ in more than their figures, each in its first form."""
    kinds = {re.sub(r"[\d.,]+", "#", note): note for note in reversed(list(notes))}
    return tuple(reversed(kinds.values()))


def _median(values: list[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    if not known or len(known) < len(values):
        return None
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2


def _added(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _highest(values: list[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)
