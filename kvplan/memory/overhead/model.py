"""The terms put together."""

from __future__ import annotations

from kvplan.memory.interval import Interval
from kvplan.memory.overhead.activations import activation_interval
from kvplan.memory.overhead.eras import era_of
from kvplan.memory.overhead.inputs import Overhead, OverheadInputs
from kvplan.units import GIB

_NOTHING = Interval.exactly(0)


def predict_overhead(facts: OverheadInputs) -> Overhead:
    """What one GPU of this launch holds beside weights and KV cache.

    Source: fitted to public launches; docs/calibration.md.
    """
    era = era_of(facts)
    activations = activation_interval(facts, era)
    graph_bytes = GIB // 2
    graphs = Interval(graph_bytes // 4, graph_bytes, 2 * graph_bytes) if era.graphs_captured else _NOTHING
    other_bytes = GIB // 4 + (2 * GIB if facts.tensor_parallel_size > 1 else 0)
    other = Interval(other_bytes // 2, other_bytes, 2 * other_bytes)
    return Overhead(
        activations=activations,
        cuda_graphs=graphs if era.graphs_charged else _NOTHING,
        other=other,
        cuda_graphs_outside=_NOTHING if era.graphs_charged else graphs,
        outside_budget=Interval(GIB // 4, GIB // 2, GIB),
        explanations=(("activations", f"peak of the profile run, {activations.mid:,} B"),),
    )
