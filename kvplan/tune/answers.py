"""Which launches have their answers looked at, and whether a quantised KV cache may win. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.quality.judge import QualityVerdict, judge
from kvplan.tune.choose import is_quantised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.tune.problem import Problem
    from kvplan.tune.trial import Trial, TrialSpec

NOT_LOOKED_AT: Final = "its answers were not looked at"


@dataclass(frozen=True, slots=True)
class QualityFinding:
    """What was found of one quantised kv_cache_dtype."""

    kv_cache_dtype: str
    base_trial: int | None
    """The launch with the unquantised cache; None: there was none to compare with."""
    trial: int
    verdict: QualityVerdict


def has_gate(problem: Problem) -> bool:
    """Whether a quantised cache has to show its answers: the gate is on, and there is one to compare with."""
    dtypes = {_is_quantised(dtype) for dtype in problem.space.kv_cache_dtype}
    return problem.quality_gate and dtypes == {True, False}


def is_looked_at(problem: Problem, spec: TrialSpec) -> bool:
    """Whether this launch's answers are sampled: the unquantised reference, and whatever is to be judged."""
    if not has_gate(problem):
        return False
    if _is_quantised(spec.settings.kv_cache_dtype):
        return spec.phase in {"probe", "knob", "grid"}
    # Where the base is quantised already, the reference is the launch that tries the unquantised value.
    base_is_quantised = _is_quantised(problem.space.kv_cache_dtype[0])
    return spec.phase == "probe" or (spec.phase == "knob" and base_is_quantised)


def is_reference(spec: TrialSpec) -> bool:
    """Whether a launch that is looked at is the unquantised one, which also shows the noise floor."""
    return not _is_quantised(spec.settings.kv_cache_dtype)


def may_win(problem: Problem, trials: Sequence[Trial], trial: Trial) -> tuple[bool, str]:
    """Whether a trial's settings may be recommended as far as its answers go, and why in a few words.

    An unquantised cache may, without a word. A quantised one needs a verdict that passes, unless the user
    turned the gate off or asked for nothing but quantised caches.
    """
    if not _is_quantised(trial.spec.settings.kv_cache_dtype):
        return True, ""
    if not problem.quality_gate:
        return True, f"{NOT_LOOKED_AT} (--no-quality-gate)"
    if not has_gate(problem):
        return True, f"{NOT_LOOKED_AT}: no unquantised cache was asked for"
    finding = quality_of(trials, trial)
    if finding.base_trial is None and trial.quality is None:
        return False, NOT_LOOKED_AT
    verdict = finding.verdict
    return verdict.outcome == "passes", f"its answers: {verdict.outcome}, {verdict.reason}"


def quality_of(trials: Sequence[Trial], trial: Trial) -> QualityFinding:
    """The verdict on a quantised trial against the run's unquantised reference.

    A trial whose own answers were not sampled is judged by another launch of the same kv_cache_dtype.
    """
    dtype = trial.spec.settings.kv_cache_dtype
    sampled = [t for t in trials if t.quality is not None]
    base = next((t for t in sampled if not _is_quantised(t.spec.settings.kv_cache_dtype)), None)
    own = trial if trial.quality is not None else None
    judged = own or next((t for t in sampled if t.spec.settings.kv_cache_dtype == dtype), trial)
    return QualityFinding(
        kv_cache_dtype=f"{dtype}",
        base_trial=None if base is None else base.number,
        trial=judged.number,
        verdict=judge(None if base is None else base.quality, judged.quality),
    )


def findings(trials: Sequence[Trial]) -> list[QualityFinding]:
    """One finding for each quantised kv_cache_dtype whose answers were sampled, in launch order."""
    first: dict[str | None, Trial] = {}
    for trial in trials:
        if trial.quality is not None and _is_quantised(trial.spec.settings.kv_cache_dtype):
            first.setdefault(trial.spec.settings.kv_cache_dtype, trial)
    return [quality_of(trials, trial) for trial in first.values()]


def _is_quantised(dtype: str | None) -> bool:
    return dtype is not None and is_quantised("kv_cache_dtype", dtype)
