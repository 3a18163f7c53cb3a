"""How wide each term's 80 % interval is: what residuals of real launches showed, and what nobody measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.memory.interval import Interval
from kvplan.memory.overhead.activations import sampler_bytes
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.memory.overhead.activations import Activations, Peak
    from kvplan.memory.overhead.coefficients import Coefficients
    from kvplan.memory.overhead.eras import Era
    from kvplan.memory.overhead.inputs import OverheadInputs
    from kvplan.memory.overhead.resident import Resident

_RELATIVE: Final[dict[Peak, float]] = {"sampler": 0.03, "compile": 0.05, "decoder": 0.15, "encoder": 0.4}
"""Of the peak: the sampler's tensors are counted, the tower's are guessed from its width."""
_LEAST_GIB: Final = 0.1
"""Drivers, library versions and what autotuning leaves differ by this much between two machines."""
_GRAPH_SHARE: Final = 0.3
"""80 % of the printed graph sizes are within a quarter of the fit; actual sizes miss estimates by more."""
_OUTSIDE_GIB: Final = 0.13
"""80 % of what was on the cards before vLLM's first snapshot."""
NEWEST_CALIBRATED: Final = (0, 32, 0)
OLDEST_CALIBRATED: Final = (0, 6, 4)
_CALIBRATED_CARDS: Final = frozenset({(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0), (12, 1)})


def activation_interval(
    facts: OverheadInputs, era: Era, fitted: Coefficients, activations: Activations
) -> Interval:
    """The largest of the candidate peaks, each as uncertain as it is: ends are the largest of their ends.

    A candidate that is not the largest may be the less certain one, and then decides the high end; taking the
    width of the largest alone would let the high end fall where a well counted one overtakes it. Flags cannot
    tell a warm from a cold compile cache (the compile then has no low end), nor a sampler that sorts.
    """
    low = high = 0.0
    for peak, size in activations.peaks.items():
        relative = _RELATIVE[peak]
        if facts.is_hybrid and peak == "decoder":
            relative += 0.1
        own = fitted.spread_scale * relative * size
        high = max(high, size + own)
        if peak != "compile":
            low = max(low, size - own)
    if era.sampler_may_sort:
        high = max(high, sampler_bytes(facts, era._replace(sampler="sort"), fitted) + activations.alive)
    return Interval(round(low), activations.bytes, round(high))


def other_interval(facts: OverheadInputs, fitted: Coefficients, resident: Resident) -> Interval:
    """The resident memory, and the model's own error: it grows where nothing was measured."""
    own = (
        fitted.spread_scale
        * (
            (_LEAST_GIB * GIB) ** 2
            + (0.5 * resident.kernels) ** 2
            + (0.4 * resident.peers) ** 2
            + (0.5 * resident.unified) ** 2
            + (unseen_gib(facts) * GIB) ** 2
        )
        ** 0.5
    )
    mid = resident.bytes
    return Interval(max(0, round(mid - own)), mid, round(mid + own))


def unseen_gib(facts: OverheadInputs) -> float:
    """Extra uncertainty outside the calibrated range of cards, versions and kinds."""
    extra = 0.0
    if facts.compute_capability not in _CALIBRATED_CARDS:
        extra += 0.3
    if facts.vllm_version > NEWEST_CALIBRATED or facts.vllm_version < OLDEST_CALIBRATED:
        extra += 0.4
    if facts.has_sparse_indexer or facts.num_speculative_tokens:
        extra += 0.8
    if facts.pipeline_parallel_size > 1:
        extra += 0.2
    return extra


def graph_interval(size: int) -> Interval:
    """Graph memory: vLLM's own estimate misses the actual size by as much, both ways."""
    own = round(_GRAPH_SHARE * size)
    return Interval(size - own, size, size + own)


def outside_interval(size: int) -> Interval:
    """What is there before the first snapshot: the context differs by driver and card."""
    own = round(min(size, _OUTSIDE_GIB * GIB + 0.05 * size))
    return Interval(size - own, size, size + own)
