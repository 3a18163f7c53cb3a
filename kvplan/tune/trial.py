"""A trial: one launch of vLLM and the loads put on it. A failed trial is a result, never a score."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.errors import FailureClass
from kvplan.launch import Launch
from kvplan.quality.sample import QualitySample
from kvplan.tune.problem import settings_from_dict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.config.serving import ServingConfig

Phase = Literal["probe", "low_end", "knob", "duel", "boundary", "confirm", "grid"]
Status = Literal["ok", "infeasible", "failed"]
LoadKind = Literal["sweep", "soak", "target"]

EXPLAINED: Final = frozenset(FailureClass) - {FailureClass.TIMEOUT, FailureClass.UNKNOWN}
"""Failures that say something about the settings; the others end a trial without an answer."""

TOO_LITTLE_KV: Final = frozenset({FailureClass.KV_TOO_SMALL, FailureClass.NO_KV_MEMORY})
"""Failures of too low a utilisation."""

TOO_MUCH_MEMORY: Final = frozenset(
    {
        FailureClass.KILLED,
        FailureClass.FREE_MEMORY_LOW,
        FailureClass.OOM_WEIGHTS,
        FailureClass.OOM_PROFILE,
        FailureClass.OOM_CUDAGRAPH,
        FailureClass.OOM_SAMPLER,
        FailureClass.OOM_SERVING,
    }
)
"""Failures of too high a utilisation."""

_WAVES: Final[Mapping[LoadKind, int]] = {"sweep": 3, "soak": 2, "target": 4}
_FEWEST_REQUESTS: Final = 12


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """One load to put on a running server."""

    kind: LoadKind
    """sweep and target: the workload's lengths; soak: every request at the longest prompt and answer."""
    concurrency: int
    repeats: int = 1
    most_repeats: int | None = None
    """Go on to so many while the mean is not known well enough (repeats.py); None: `repeats` and no more."""

    @property
    def num_requests(self) -> int:
        """Requests of one repeat: a few waves of all users, so that the ramps at both ends weigh little."""
        return max(_FEWEST_REQUESTS, _WAVES[self.kind] * self.concurrency)

    def as_dict(self) -> dict[str, Any]:
        """The level as JSON types."""
        record = dataclasses.asdict(self)
        if self.most_repeats is None:
            del record["most_repeats"]
        return record


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What one measured repeat of a load gave. None is unknown, never 0."""

    level: LoadLevel
    repeat: int
    completed: int
    failed: int
    output_throughput: float | None = None
    """Output tokens per second."""
    request_throughput: float | None = None
    p50_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    p50_tpot_ms: float | None = None
    p99_tpot_ms: float | None = None
    p99_e2el_ms: float | None = None
    preemptions: int | None = None
    peak_running: int | None = None
    peak_waiting: int | None = None
    peak_kv_usage: float | None = None
    """Highest share of the KV cache in use, 0 to 1."""
    waited_for_memory: bool | None = None
    """Whether a request waited for KV cache while all users were being served."""
    peak_memory_bytes: int | None = None
    duration_s: float | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know before believing the figures."""

    @property
    def is_usable(self) -> bool:
        """Whether it may stand for the settings: something was answered and nothing failed."""
        return self.completed > 0 and self.failed == 0 and self.output_throughput is not None

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON types."""
        return dataclasses.asdict(self) | {"level": self.level.as_dict()}


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """What to try, and why."""

    phase: Phase
    settings: ServingConfig
    """With gpu_memory_utilization, or (the probe on CPU) with kv_cache_memory_bytes in its place."""
    levels: tuple[LoadLevel, ...]
    decides: str
    """One sentence: what the answer of this launch decides."""
    attempt: int = 1
    """Asking the same again on purpose (after an unexplained failure, or as a cold start) counts up."""

    def key(self, context: Mapping[str, Any]) -> str:
        """The trial's identity: settings, loads and attempt, within what the whole run fixes.

        Args:
            context: model, machine, vLLM version and workload, as the journal's first line holds them.
        """
        identity = {
            "settings": self.settings.given(),
            # How long to go on is no part of the question: an answer with fewer repeats answers it too.
            "levels": [dataclasses.replace(level, most_repeats=None).as_dict() for level in self.levels],
            "attempt": self.attempt,
            "context": dict(context),
        }
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """The spec as JSON types; the settings as the flags that were given."""
        return {
            "phase": self.phase,
            "settings": self.settings.given(),
            "levels": [level.as_dict() for level in self.levels],
            "decides": self.decides,
            "attempt": self.attempt,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TrialSpec:
        """The spec back from JSON."""
        return cls(
            phase=record["phase"],
            settings=settings_from_dict(record["settings"]),
            levels=tuple(LoadLevel(**level) for level in record["levels"]),
            decides=record["decides"],
            attempt=record["attempt"],
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """One finished trial, with its evidence."""

    number: int
    spec: TrialSpec
    status: Status
    launch: Launch | None
    """None only when nothing was started (the lock, or memory that never became free)."""
    loads: tuple[LoadResult, ...] = ()
    failure: FailureClass | None = None
    evidence: str | None = None
    """The decisive line of the log, or what ended the load."""
    kv_cache_bytes: int | None = None
    """KV cache of this launch in bytes, as set or as vLLM found it."""
    non_kv_bytes: int | None = None
    """Memory that vLLM's own accounting takes from the requested share before the KV cache."""
    wall_s: float = 0.0
    """Launch, load and stop together."""
    waited_s: float | None = None
    """Before that, for the engine of somebody else to leave the device; None in journals that don't tell."""
    quality: QualitySample | None = None
    """What the server answered to the probe of the KV cache's quality; None where it was not asked."""

    @property
    def gpu_memory_utilization(self) -> float | None:
        """The share of the card that this trial asked for."""
        return self.spec.settings.gpu_memory_utilization

    @property
    def survived(self) -> bool:
        """Started, and answered every load without a failure."""
        return self.status == "ok"

    def results(self, kind: LoadKind, concurrency: int | None = None) -> tuple[LoadResult, ...]:
        """The measured repeats of one load."""
        return tuple(
            load
            for load in self.loads
            if load.level.kind == kind and concurrency in {None, load.level.concurrency}
        )

    def as_dict(self) -> dict[str, Any]:
        """The trial as JSON types."""
        record = {
            "number": self.number,
            "spec": self.spec.as_dict(),
            "status": self.status,
            "launch": None if self.launch is None else self.launch.as_dict(),
            "loads": [load.as_dict() for load in self.loads],
            "failure": self.failure,
            "evidence": self.evidence,
            "kv_cache_bytes": self.kv_cache_bytes,
            "non_kv_bytes": self.non_kv_bytes,
            "wall_s": self.wall_s,
        }
        record |= {} if self.waited_s is None else {"waited_s": self.waited_s}
        return record if self.quality is None else record | {"quality": self.quality.as_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Trial:
        """The trial back from JSON; keys that a newer kvplan added are ignored."""
        known = {f.name for f in dataclasses.fields(LoadResult)} - {"level"}
        return cls(
            number=record["number"],
            spec=TrialSpec.from_dict(record["spec"]),
            status=record["status"],
            launch=None if record["launch"] is None else Launch.from_dict(record["launch"]),
            loads=tuple(
                LoadResult(
                    level=LoadLevel(**load["level"]),
                    **({k: v for k, v in load.items() if k in known} | {"notes": tuple(load["notes"])}),
                )
                for load in record["loads"]
            ),
            failure=None if record["failure"] is None else FailureClass(record["failure"]),
            evidence=record["evidence"],
            kv_cache_bytes=record["kv_cache_bytes"],
            non_kv_bytes=record["non_kv_bytes"],
            wall_s=record["wall_s"],
            waited_s=record.get("waited_s"),
            quality=None if record.get("quality") is None else QualitySample.from_dict(record["quality"]),
        )


def status_of(failure: FailureClass | None) -> Status:
    """`infeasible` for a failure that the settings explain, `failed` for one that nothing explains."""
    if failure is None:
        return "ok"
    return "infeasible" if failure in EXPLAINED else "failed"
