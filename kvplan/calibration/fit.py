"""Fit the coefficients to published launches: robust least squares, every source counting once.

Each launch gives one residual for every figure that it printed: the activation peak, the non-torch memory,
the graph memory, and, where weights and KV cache were printed, their sum by the budget identity. Coefficients
that count tensors start from the count in vLLM's source and are held near it; the others start from nothing
better than a guess and are held loosely.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.memory.budget import requested_bytes
from kvplan.memory.overhead.fitted import FITTED
from kvplan.memory.overhead.model import terms_of
from kvplan.memory.overhead.resident import outside_bytes
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvplan.calibration.cases import Case
    from kvplan.memory.overhead.coefficients import Coefficients

    Vector = NDArray[np.float64]

Figure = Literal["activations", "non_torch", "graphs", "sum", "outside"]

_SCALE_GIB: Final[dict[Figure, float]] = {
    "activations": 0.05,
    "non_torch": 0.05,
    "graphs": 0.2,
    "sum": 0.1,
    "outside": 0.2,
}
"""A residual of this size counts as 1; larger ones count less and less (soft L1)."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Where a coefficient starts and how far it may be pulled. Same unit as the coefficient."""

    start: float
    spread: float


PRIORS: Final[dict[str, Prior]] = {
    "sort_bytes_per_logit": Prior(36, 0.2),
    "fused_bytes_per_logit": Prior(12, 0.1),
    "compiled_hidden_copies": Prior(4, 0.5),
    "eager_hidden_copies": Prior(3, 0.5),
    "encoder_hidden_copies": Prior(4, 0.5),
    "recurrent_hidden_copies": Prior(12, 6),
    "non_torch_gib": Prior(0.05, 0.1),
    "non_torch_recent_gib": Prior(0.13, 0.1),
    "non_torch_hopper_gib": Prior(0.1, 0.1),
    "peers_gib": Prior(0.15, 0.2),
    "peers_hopper_gib": Prior(0.5, 1),
    "peers_nccl_hopper_gib": Prior(1, 1),
    "peers_fused_gib": Prior(1, 1),
    "context_gib": Prior(0.45, 0.1),
    "peers_outside_gib": Prior(1, 0.5),
    "unified_gib": Prior(2, 2),
    "graph_pool_gib": Prior(0.1, 0.2),
    "graph_hopper_gib": Prior(0.1, 0.2),
    "graph_kib_per_layer": Prior(140, 140),
    "graph_rows_per_layer": Prior(1, 1),
    "graph_experts_factor": Prior(1.5, 1),
}
"""The rest of `Coefficients` is not fitted here: spread_scale follows from leave-one-source-out residuals,
and the CPU's figures are measured with real vLLM on a CPU."""


@dataclass(frozen=True, slots=True)
class Target:
    """One printed figure of one launch."""

    case: Case
    figure: Figure
    measured_gib: float


def targets_of(cases: Sequence[Case]) -> list[Target]:
    """Every printed figure that the model predicts a counterpart of."""
    found: list[Target] = []
    for case in cases:
        launch = case.launch
        if not launch.is_fit_material:
            continue
        if launch.activation_bytes is not None:
            found.append(Target(case, "activations", launch.activation_bytes / GIB))
        if launch.non_torch_bytes is not None and case.settings.pipeline_parallel_size == 1:
            found.append(Target(case, "non_torch", launch.non_torch_bytes / GIB))
        # What is charged is the estimate; where only the actual size was printed, that.
        graphs = launch.cudagraph_estimate_bytes or launch.cudagraph_bytes
        if graphs is not None and graphs > 0 and case.settings.vllm_version >= (0, 18, 0):
            found.append(Target(case, "graphs", graphs / GIB))
        if launch.free_at_start_bytes is not None and launch.gpu_total_bytes is not None:
            outside = launch.gpu_total_bytes - launch.free_at_start_bytes
            found.append(Target(case, "outside", outside / GIB))
        charged = charged_gib(case)
        if charged is not None and launch.activation_bytes is None:
            found.append(Target(case, "sum", charged))
    return found


def charged_gib(case: Case) -> float | None:
    """What the launch's printed figures leave for everything but weights and KV cache (budget identity)."""
    launch = case.launch
    if launch.weights_bytes is None or launch.kv_cache_bytes is None or launch.serving.kv_cache_memory_bytes:
        return None
    if not case.total_is_known:
        return None
    total = launch.gpu_total_bytes or case.planner.gpu.total_bytes
    requested = requested_bytes(
        total, case.settings.gpu_memory_utilization, case.planner.rules.requested_rounding
    )
    return (requested - launch.weights_bytes - launch.kv_cache_bytes) / GIB


def predicted_gib(target: Target, fitted: Coefficients) -> float:
    """The model's counterpart of a printed figure."""
    terms = terms_of(target.case.facts, fitted)
    if target.figure == "activations":
        return terms.activations.bytes / GIB
    if target.figure == "non_torch":
        return terms.resident.bytes / GIB
    if target.figure == "graphs":
        return terms.graph_bytes / GIB
    if target.figure == "outside":
        return outside_bytes(target.case.facts, terms.era, fitted) / GIB
    charged_graphs = terms.graph_bytes if terms.era.graphs_charged else 0
    return (terms.activations.bytes + terms.resident.bytes + charged_graphs) / GIB


def fit(
    targets: Sequence[Target], start: Coefficients | None = None, max_evaluations: int = 40
) -> Coefficients:
    """The coefficients that explain the targets best, each source weighing the same per figure.

    Args:
        targets: printed figures.
        start: where to begin; the priors if not given.
        max_evaluations: of the residuals' Jacobian, at most.
    """
    import numpy as np
    from scipy.optimize import least_squares

    names = list(PRIORS)
    spreads = np.array([PRIORS[n].spread for n in names])
    centres = np.array([PRIORS[n].start for n in names])
    counts = Counter((t.case.launch.source, t.figure) for t in targets)
    weights = np.array(
        [counts[t.case.launch.source, t.figure] ** -0.5 / _SCALE_GIB[t.figure] for t in targets]
    )
    measured = np.array([t.measured_gib for t in targets])

    def residuals(scaled: Vector) -> Vector:
        fitted = _with(names, centres + spreads * scaled)
        predicted = np.array([predicted_gib(t, fitted) for t in targets])
        result: Vector = np.concatenate([weights * (predicted - measured), scaled])
        return result

    first = (
        (np.array([getattr(start, n) for n in names]) - centres) / spreads if start else np.zeros(len(names))
    )
    # Nothing here can be negative; `first` must lie inside.
    lowest = -centres / spreads
    solution = least_squares(
        residuals,
        np.maximum(first, lowest + 1e-3),
        bounds=(lowest, np.full(len(names), np.inf)),
        loss="soft_l1",
        max_nfev=max_evaluations,
        diff_step=1e-3,
    )
    values: Vector = centres + spreads * solution.x
    return _with(names, values)


def _with(names: Sequence[str], values: Any) -> Coefficients:
    changed = {name: float(value) for name, value in zip(names, values, strict=True)}
    return dataclasses.replace(FITTED, **changed)
