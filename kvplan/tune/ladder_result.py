"""What one step of the ladder gave, as the journal keeps it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvplan.errors import FailureClass
from kvplan.tune.load_point import LoadPoint

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class RungResult:
    """What one step gave. None is unknown, never 0."""

    name: str
    settings: Mapping[str, Any]
    """vLLM's flags, or use_cache of Transformers."""
    command: str
    loads: Mapping[str, LoadPoint] = field(default_factory=dict)
    """Load name -> what it gave: the repeat whose throughput was the middle one."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """Load name -> (fastest - slowest) / middle of its repeats' throughputs."""
    failure: FailureClass | None = None
    evidence: str | None = None
    peak_memory_bytes: int | None = None
    kv_cache_tokens: int | None = None
    ready_s: float | None = None
    wall_s: float = 0.0
    log_path: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_explained(self) -> bool:
        """Whether asking again would give the same: it worked, or failed for a reason that is known."""
        return self.failure not in {FailureClass.TIMEOUT, FailureClass.UNKNOWN}

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> RungResult:
        """Back from JSON; keys that a newer kvplan added are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in record.items() if name in known}
        values["loads"] = {name: LoadPoint.from_dict(load) for name, load in record["loads"].items()}
        values["failure"] = None if record["failure"] is None else FailureClass(record["failure"])
        return cls(**values | {"notes": tuple(record.get("notes", ()))})
