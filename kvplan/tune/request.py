"""What the user gave a tuning run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.tune.knobs import check_values
from kvplan.tune.problem import Constraints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.planning import PlanRequest
    from kvplan.tune.problem import Objective, Strategy


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What the user gave; None is "not given"."""

    plan: PlanRequest
    demo: bool = False
    constraints: Constraints = field(default_factory=Constraints)
    objective: Objective | None = None
    strategy: Strategy | None = None
    utilizations: tuple[float, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    block_sizes: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()
    knobs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Any other flag of vLLM's, each with its values, the base first."""
    tolerance: float | None = None
    margin: float | None = None
    quality_gate: bool | None = None
    """False lets a quantised KV cache win without a look at its answers."""
    seed: int | None = None
    max_launches: int | None = None
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that nothing can be computed with.

        Raises:
            InputError: a value that its flag does not take, or a flag that a knob gives again.
        """
        named = {
            "gpu_memory_utilization": self.utilizations,
            "kv_cache_dtype": self.kv_cache_dtypes,
            "block_size": self.block_sizes,
            "max_num_seqs": self.max_num_seqs,
        }
        for name, values in (*named.items(), *self.knobs.items()):
            check_values(name, values)
        for name, values in named.items():
            flag = f"--{name.replace('_', '-')}"
            if len(set(values)) < len(values):
                raise InputError(f"{flag} has the same value twice", "give each value once")
            if name in self.knobs:
                raise InputError(f"{name} is given twice, as {flag} and as a knob", "leave out one of them")
