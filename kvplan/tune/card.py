"""What one launch teaches about the card: KV cache at every utilisation, and where memory should end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.units import round_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.config.serving import ServingConfig
    from kvplan.memory.kv_cache.plan import KvCachePlan
    from kvplan.tune.trial import Trial

    KvRules = Callable[[ServingConfig], KvCachePlan]
    """vLLM's KV-cache arithmetic for this model and card under the given settings."""


@dataclass(frozen=True, slots=True)
class Card:
    """The memory of one card as one launch showed it. Bytes.

    vLLM's budget is total x utilisation; what it counts before the KV cache (weights, activations, and on
    CPU the worker's resident memory) comes out of that. Memory it does not count (the CUDA context, and on
    CPU the API server, the engine core and shared memory) lies on top: it is why the boundary is below 1.0.
    """

    total_bytes: int
    non_kv_bytes: int
    """Inside the budget, before the KV cache."""
    unbudgeted_bytes: int | None
    """Outside the budget; None when memory use could not be sampled."""

    def requested_bytes(self, utilization: float) -> int:
        """The budget of a utilisation. Source: vLLM 0.32.0 v1/worker/utils.py::request_memory."""
        return math.ceil(self.total_bytes * utilization)

    def kv_bytes(self, utilization: float) -> int:
        """KV cache that a utilisation leaves; 0 when the budget is spent before it."""
        return max(0, self.requested_bytes(utilization) - self.non_kv_bytes)

    def utilization_for(self, kv_bytes: int) -> float:
        """The utilisation whose KV cache is `kv_bytes`, unrounded."""
        return (kv_bytes + self.non_kv_bytes) / self.total_bytes

    def used_bytes(self, utilization: float) -> int | None:
        """All that this utilisation makes the server take of the card."""
        if self.unbudgeted_bytes is None:
            return None
        return self.requested_bytes(utilization) + self.unbudgeted_bytes

    @property
    def boundary_utilization(self) -> float:
        """Where the card should be exactly full."""
        return (self.total_bytes - (self.unbudgeted_bytes or 0)) / self.total_bytes


def learn_card(total_bytes: int, trial: Trial) -> Card:
    """The card as a started trial showed it.

    Raises:
        ValueError: the trial did not start, or its KV cache is unknown.
    """
    if trial.launch is None or trial.kv_cache_bytes is None or trial.non_kv_bytes is None:
        raise ValueError(f"trial {trial.number} tells nothing of the card")
    peak = max(
        (m for m in (trial.launch.peak_bytes, *(load.peak_memory_bytes for load in trial.loads)) if m),
        default=None,
    )
    unbudgeted = None if peak is None else max(0, peak - trial.kv_cache_bytes - trial.non_kv_bytes)
    return Card(total_bytes, trial.non_kv_bytes, unbudgeted)


def kv_bytes_for(plan: KvCachePlan, requests: int, tokens: int) -> int:
    """KV cache in which `requests` requests of `tokens` tokens run at once, the null block included."""
    return (requests * plan.blocks_for_request(tokens) + 1) * plan.bytes_per_block


def point_of(utilization: float, step: float) -> int:
    """The highest whole multiple of the step that is not above the utilisation."""
    return math.floor(utilization / step + 1e-9)


def utilization_of(point: int, step: float) -> float:
    """The utilisation of a point, without binary dust: 148 x 0.005 is 0.74."""
    return round(point * step, 6)


def page_aligned(kv_bytes: int, plan: KvCachePlan) -> int:
    """Rounded up to whole blocks, so that the KV cache asked for is the one that vLLM makes."""
    return round_up(kv_bytes, plan.bytes_per_block)
