"""What one load gave, flat enough for a journal: the points of a sweep and the cells of the ladder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.load.measure import Measurement

_ERROR_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One measured load. None is unknown, never 0."""

    users: int
    completed: int
    failed: int
    """Failed or still in flight when the load was stopped."""
    duration_s: float | None = None
    output_throughput: float | None = None
    """Output tokens per second."""
    request_throughput: float | None = None
    mean_ttft_ms: float | None = None
    p50_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    mean_tpot_ms: float | None = None
    p50_tpot_ms: float | None = None
    p99_tpot_ms: float | None = None
    p99_e2el_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    """As the server counted them in its answers to us."""
    miscounted: int = 0
    """Answers whose tokens it counted in a way that cannot be true."""
    preemptions: int | None = None
    peak_running: int | None = None
    peak_waiting: int | None = None
    waiting_share: float | None = None
    """Share of the steady part's samples in which a request was waiting."""
    peak_kv_usage: float | None = None
    """0 to 1."""
    waited_for_memory: bool | None = None
    mean_queue_time_ms: float | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    server_output_tokens: int | None = None
    """Output tokens that /metrics counted meanwhile, whoever asked for them."""
    peak_memory_bytes: int | None = None
    client_limited: str | None = None
    """Why these are the client's figures rather than the server's."""
    stopped: str | None = None
    """Why the load ended before its requests did."""
    error: str | None = None
    """What most of the failed requests said."""
    notes: tuple[str, ...] = ()

    @property
    def concurrency(self) -> int:
        """Users, under the name that a tuning run's loads have."""
        return self.users

    @property
    def is_usable(self) -> bool:
        """Everything that was asked was answered."""
        return self.completed > 0 and self.failed == 0 and self.stopped is None

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of prompt tokens that were found in the prefix cache."""
        if not self.prefix_cache_queries or self.prefix_cache_hits is None:
            return None
        return self.prefix_cache_hits / self.prefix_cache_queries

    @property
    def others_share(self) -> float | None:
        """Share of the server's output tokens that were not ours; negative where it counted fewer than ours.

        Fewer is what one of several replicas behind one address counts.
        """
        if not self.server_output_tokens or self.output_tokens is None or not self.is_usable:
            return None
        return 1 - self.output_tokens / self.server_output_tokens

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> LoadPoint:
        """Back from JSON; keys that a newer kvplan added are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in record.items() if name in known}
        return cls(**values | {"notes": tuple(record.get("notes", ()))})


def load_point(users: int, measurement: Measurement, peak_memory_bytes: int | None = None) -> LoadPoint:
    """The point of a measurement."""
    summary, server = measurement.summary, measurement.server
    told: dict[str, Any] = {}
    if server is not None:
        told = {
            "preemptions": server.preemptions,
            "peak_running": server.peak_running,
            "peak_waiting": server.peak_waiting,
            "waiting_share": server.waiting_share,
            "peak_kv_usage": server.peak_kv_cache_usage,
            "waited_for_memory": server.waited_for_memory,
            "mean_queue_time_ms": server.mean_queue_time_ms,
            "prefix_cache_queries": server.prefix_cache_queries,
            "prefix_cache_hits": server.prefix_cache_hits,
            "server_output_tokens": server.generation_tokens,
        }
    same = (
        "output_throughput",
        "request_throughput",
        "mean_ttft_ms",
        "p50_ttft_ms",
        "p99_ttft_ms",
        "mean_tpot_ms",
        "p50_tpot_ms",
        "p99_tpot_ms",
        "p99_e2el_ms",
        "client_limited",
    )
    return LoadPoint(
        users=users,
        completed=summary.completed,
        failed=summary.failed + summary.unfinished,
        duration_s=summary.duration,
        input_tokens=summary.total_input_tokens,
        output_tokens=summary.total_output_tokens,
        miscounted=summary.miscounted,
        peak_memory_bytes=peak_memory_bytes,
        stopped=measurement.stopped,
        error=summary.errors[0][0][:_ERROR_SHOWN] if summary.errors else None,
        notes=measurement.notes,
        **{name: getattr(summary, name) for name in same},
        **told,
    )
