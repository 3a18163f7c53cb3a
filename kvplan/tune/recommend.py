"""From what a search learnt to what the user should run. Pure; a run without an answer says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.tune.answers import QualityFinding, findings, may_win
from kvplan.tune.card import utilization_of
from kvplan.tune.choose import violations
from kvplan.tune.effects import KnobEffect, effects, kv_tokens, launch_noise
from kvplan.tune.headroom import knobs_of, shortfall
from kvplan.tune.search import margin_points, peak_spread_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.tune.card import KvRules
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
    headroom = (
        None if highest is None or utilization is None or highest < utilization else highest - utilization
    )
    return Recommendation(
        met=not reasons,
        reasons=tuple(reasons),
        settings=None if chosen is None else chosen.spec.settings.given(),
        trial=None if chosen is None else chosen.number,
        is_confirmed=state.confirmed is not None,
        measured=measured,
        kv_cache_tokens=None if chosen is None else kv_tokens(chosen),
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
        effects=tuple(effects(state)),
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
    allowed, why = may_win(problem, state.trials, chosen)
    if not allowed:
        dtype = chosen.spec.settings.kv_cache_dtype
        reasons.append(f"the answers of {dtype} were not shown to be as good: {why}")
    if state.confirmed is not None and state.bracket is not None:
        lacking = shortfall(problem, state.trials, state.bracket, state.confirmed)
        reasons += [] if lacking is None else [lacking]
    return reasons


def _bracket_ends(state: SearchState) -> tuple[BoundaryEnd | None, BoundaryEnd | None]:
    if state.bracket is None:
        return None, None
    step = state.problem.space.utilization_step
    winner = None if state.winner is None else knobs_of(state.winner)

    def trial_at(point: int | None, survived: bool) -> Trial | None:
        if point is None:
            return None
        there = [
            t
            for t in state.trials
            if t.gpu_memory_utilization == utilization_of(point, step)
            and t.survived is survived
            and t.spec.phase in {"boundary", "confirm", "grid"}
        ]
        # A confirmation may have come down to fewer seats than the winner's.
        return next((t for t in there if knobs_of(t.spec.settings) == winner), there[0] if there else None)

    low = trial_at(state.bracket.highest_success, survived=True)
    high = trial_at(state.bracket.lowest_failure, survived=False)
    return None if low is None else _end(low), None if high is None else _end(high)


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
                kv_tokens(chosen),
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
