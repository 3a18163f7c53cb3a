"""One measurement (`kvplan.measurement/1`): a load, its summary, and what the server said meanwhile."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from kvplan.load.client import run_load
from kvplan.load.phase import Limits
from kvplan.load.server_metrics import MetricsWatch, ServerSide, server_side
from kvplan.load.statistics import LoadSummary, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvplan.load.phase import Check
    from kvplan.load.records import ClientHealth, Endpoint, LoadResult, Progress, RequestRecord
    from kvplan.load.workload import Workload

SCHEMA: Final = "kvplan.measurement/1"
NO_METRICS: Final = "no vLLM /metrics: cache use, preemptions and waiting are unknown"
WAITED: Final = "requests waited for KV cache while all users were being served"

_COLD: Final = 1.25
"""The first quarter's median gap over that of the rest, from which on the server was still warming up."""
_QUEUED: Final = 0.5
"""Share of the steady part's samples in which a request waited, from which on a queue explains such a change:
the seats fill up one by one, and the last users run with fewer beside them."""
_FEWEST_GAPS: Final = 50
_P99_NEEDS: Final = 100
"""Requests below which a P99 is little more than the slowest one."""
_NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one load on one running server gave."""

    summary: LoadSummary
    server: ServerSide | None
    """None if the server has no /metrics that we understand."""
    client: ClientHealth
    workload: str
    """Its name."""
    seed: int
    salt: int
    """With the seed, what the prompts were drawn from."""
    started_at: str
    """UTC, ISO 8601."""
    steady_s: tuple[float, float] | None
    """From when every user had its first token until the first user ran out of requests; seconds."""
    warmup_requests: int
    warmup_waves_ms: tuple[float | None, ...]
    """Median time per token of each wave of the warm-up."""
    first_quarter_slowdown: float | None
    """Median gap between tokens in the first quarter of the steady part over that of the rest."""
    stopped: str | None
    """Why the load ended before its requests did."""
    schema: str = SCHEMA

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before believing the figures, one sentence each."""
        summary, server = self.summary, self.server
        slowdown = self.first_quarter_slowdown
        is_slow_at_first = slowdown is not None and slowdown >= _COLD
        queue = self._queue()
        notes = [
            self.stopped and f"the load was stopped: {self.stopped}",
            summary.client_limited,
            is_slow_at_first
            and queue is None
            and f"the server was still warming up: the first quarter was {slowdown:.1f} times slower",
            summary.wrong_lengths
            and f"{summary.wrong_lengths} answers have another length than was asked for",
            summary.miscounted
            and f"the server's count of tokens cannot be true in {summary.miscounted} answers (far more than "
            "were asked for and came, or none although some came): no token throughput",
            summary.completed
            and summary.total_output_tokens is None
            and not summary.miscounted
            and "the server did not count tokens: no token throughput",
            0 < summary.completed < _P99_NEEDS
            and f"P99 of {summary.completed} requests is close to the slowest one",
            server is None and NO_METRICS,
            server is not None and bool(server.waited_for_memory) and WAITED,
            is_slow_at_first and server is not None and not server.waited_for_memory and queue,
        ]
        return tuple(note for note in notes if note)

    def _queue(self) -> str | None:
        """What is to be said of requests that waited most of the time; None if they did not."""
        if self.server is None or self.steady_s is None:
            return None
        start, end = self.steady_s
        steady = [s for s in self.server.samples if start <= s.at_s <= end and s.waiting is not None]
        waiting = [s for s in steady if s.waiting]
        if not waiting or len(waiting) < _QUEUED * len(steady):
            return None
        most = max(waiting, key=lambda sample: sample.waiting or 0)
        running = "" if most.running is None else f" while {most.running:.0f} ran"
        return f"requests waited in the server's queue, up to {most.waiting:.0f} at once{running}"

    def as_dict(self) -> dict[str, Any]:
        """The measurement as JSON types."""
        return {**dataclasses.asdict(self), "summary": self.summary.as_dict(), "notes": list(self.notes)}


async def measure_load(
    endpoint: Endpoint,
    workload: Workload,
    *,
    concurrency: int | None = None,
    num_requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    warmup_requests: int | None = None,
    max_num_seqs: int | None = None,
    token_ids: Sequence[int] | None = None,
    limits: Limits = _NO_LIMITS,
    on_progress: Callable[[Progress], None] | None = None,
    on_record: Callable[[RequestRecord], None] | None = None,
    check: Check | None = None,
) -> Measurement:
    """Load a running server while sampling its /metrics.

    Arguments and exceptions are those of `run_load`, and `max_num_seqs`: the server's, if known; it tells
    waiting for a seat from waiting for memory.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    watch = MetricsWatch()
    result = await run_load(
        endpoint,
        workload,
        concurrency=concurrency,
        num_requests=num_requests,
        duration_s=duration_s,
        seed=seed,
        warmup_requests=warmup_requests,
        token_ids=token_ids,
        limits=limits,
        on_progress=on_progress,
        on_record=on_record,
        check=check,
        watch=watch,
    )
    shortest_prompt = min(sample.input_len for sample in workload.samples)
    return Measurement(
        summary=summarize(result),
        server=server_side(
            watch,
            result.steady_s,
            shortest_prompt,
            max_num_seqs,
            all_busy_until_s=result.all_busy_until_s,
        ),
        client=result.client,
        workload=workload.name,
        seed=seed,
        salt=result.salt,
        started_at=started_at,
        steady_s=result.steady_s,
        warmup_requests=len(result.warmup_records),
        warmup_waves_ms=result.warmup_waves_ms,
        first_quarter_slowdown=first_quarter_slowdown(result),
        stopped=result.stopped,
    )


def first_quarter_slowdown(result: LoadResult) -> float | None:
    """Median gap between tokens in the steady part's first quarter over that of the rest; None if too few.

    1.0 is a warm server; a cold one on a CPU was at 10. Medians, because a gap in which another request's
    prompt was computed is long on a warm server too.
    """
    if result.steady_s is None:
        return None
    start, end = result.steady_s
    quarter = start + (end - start) / 4
    early: list[float] = []
    late: list[float] = []
    for record in result.records:
        if not record.ok or record.ttft_s is None:
            continue
        times = accumulate(record.itl_s, initial=record.start_s + record.ttft_s)
        for began, gap in zip(times, record.itl_s, strict=False):
            if start <= began <= end:
                (early if began < quarter else late).append(gap)
    if min(len(early), len(late)) < _FEWEST_GAPS or not median(late):
        return None
    return median(early) / median(late)
