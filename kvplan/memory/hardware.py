"""The card (or the CPU's memory in its place) as the memory model sees it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping


class GpuSpec(FrozenRecord):
    """One accelerator. `total_bytes` is what torch (cudaMemGetInfo) sees, never the marketing size."""

    id: str
    name: str
    total_bytes: int
    """The value to plan with: what recent drivers leave visible."""
    total_bytes_low: int
    total_bytes_high: int
    compute_capability: tuple[int, int] | None = None
    """(8, 9) for Ada; None for cards that are not NVIDIA's, and for the CPU."""
    vendor: str = "nvidia"
    arch: str | None = None
    unified_memory: bool = False
    usd_per_hour: float | None = None
    total_is_derived: bool = False
    """Whether nobody has read `total_bytes` on such a card: computed from another figure, wider interval."""
    bandwidth_gbs: float | None = None
    """Of the card's memory, 10^9 bytes per second, as the datasheet says."""
    pcie_gbs_per_direction: float | None = None
    """Between the host and the card, 10^9 bytes per second."""
    notes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name -> where its value is from."""

    @property
    def platform(self) -> Literal["cuda", "cpu", "other"]:
        """Which of vLLM's platforms serves on it."""
        if self.vendor == "cpu":
            return "cpu"
        return "cuda" if self.vendor == "nvidia" else "other"


def cpu_spec(total_bytes: int) -> GpuSpec:
    """vLLM's CPU backend on a "card" of the given size (a memory cgroup, or a NUMA node)."""
    return GpuSpec(
        id="cpu",
        name="CPU",
        total_bytes=total_bytes,
        total_bytes_low=total_bytes,
        total_bytes_high=total_bytes,
        vendor="cpu",
    )
