"""The settings that no other setting beats in everything: throughput, headroom and time a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.report.tune_text import changed_flags
from kvplan.tune.recommend import summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.tune.problem import Problem
    from kvplan.tune.trial import Trial


@dataclass(frozen=True, slots=True)
class Candidate:
    """One trial at the target's load. None is unknown."""

    trial: int
    settings: str
    output_throughput: float | None
    p99_tpot_ms: float | None
    headroom_bytes: int | None
    """Of the card, at the highest memory use that was seen."""
    kv_cache_tokens: int | None
    is_on_front: bool = False

    @property
    def _goodness(self) -> tuple[float, float, float] | None:
        """Higher is better in each; None where a figure is unknown."""
        if self.output_throughput is None or self.p99_tpot_ms is None or self.headroom_bytes is None:
            return None
        return self.output_throughput, -self.p99_tpot_ms, self.headroom_bytes

    def beats(self, other: Candidate) -> bool:
        """At least as good in all three, better in one; never for a figure that is unknown."""
        ours, theirs = self._goodness, other._goodness
        return (
            ours is not None
            and theirs is not None
            and ours != theirs
            and all(a >= b for a, b in zip(ours, theirs, strict=True))
        )

    @property
    def is_complete(self) -> bool:
        """Whether all three figures are known."""
        return self._goodness is not None


def candidates(problem: Problem, trials: Sequence[Trial]) -> tuple[Candidate, ...]:
    """Every trial that survived and was measured at the target, with the front marked."""
    import dataclasses

    found = []
    for trial in trials:
        loads = trial.results("target", problem.target_concurrency)
        if not trial.survived or not loads:
            continue
        load = summarise(trial, "target", problem.target_concurrency, loads)
        launch = trial.launch
        seen = (load.peak_memory_bytes, None if launch is None else launch.peak_bytes)
        peak = max((size for size in seen if size), default=None)
        found.append(
            Candidate(
                trial.number,
                changed_flags(trial.spec.settings.given()),
                load.output_throughput,
                load.p99_tpot_ms,
                None if peak is None else problem.card_bytes - peak,
                None if launch is None else launch.facts.kv_cache_tokens,
            )
        )
    return tuple(
        dataclasses.replace(one, is_on_front=one.is_complete and not any(other.beats(one) for other in found))
        for one in found
    )
