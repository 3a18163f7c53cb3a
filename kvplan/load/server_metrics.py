"""What the server's own /metrics say while a load runs: sampled, and set against the load's steady part."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvplan.engine.metrics import MAX_BYTES, MetricsSnapshot, parse_metrics
from kvplan.load.session import read_at_most

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import aiohttp

    from kvplan.load.records import Endpoint

INTERVAL_S: Final = 0.5
_TIMEOUT_S: Final = 5.0
_COUNTING_LAG_S: Final = 0.1
_FEWEST_SAMPLES: Final = 3
"""In the steady part; with fewer nothing can be said about it."""


@dataclass(frozen=True, slots=True)
class MetricsSample:
    """Gauges at one moment of a load."""

    at_s: float
    """From the start of the load, warm-up apart."""
    running: float | None
    waiting: float | None
    kv_cache_usage: float | None


@dataclass(frozen=True, slots=True)
class ServerSide:
    """What the server said of one load. None is "did not say"."""

    samples: tuple[MetricsSample, ...]
    peak_running: int | None = None
    peak_waiting: int | None = None
    peak_kv_cache_usage: float | None = None
    """0 to 1, of the KV cache."""
    preemptions: int | None = None
    prefix_cache_queries: int | None = None
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_cache_hits: int | None = None
    """... and found there."""
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    mean_queue_time_ms: float | None = None
    """Mean time that a request waited before its first step, by the server's own clock."""
    kv_cache_tokens: int | None = None
    """Size of the KV cache in tokens, as vLLM 0.24 and later say it."""
    waited_for_memory: bool | None = None
    """Whether a request waited for KV blocks in the steady part; None if that was not seen. With too few
    samples of it, an earlier one that waits or a preemption anywhere in the load says that it did."""
    waiting_share: float | None = None
    """Share of the steady part's samples in which a request was waiting, for memory or for a free seat."""


@dataclass(slots=True)
class MetricsWatch:
    """What was scraped around and during the part of a load that counts."""

    origin_s: float = 0.0
    """perf_counter when the part that counts began."""
    before: MetricsSnapshot | None = None
    after: MetricsSnapshot | None = None
    taken: list[tuple[float, MetricsSnapshot]] = field(default_factory=list)
    """(perf_counter, snapshot)."""


async def fetch_metrics(session: aiohttp.ClientSession, endpoint: Endpoint) -> MetricsSnapshot | None:
    """One snapshot; None if the server does not answer with one."""
    import aiohttp

    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            session.get(endpoint.at("/metrics"), allow_redirects=False) as response,
        ):
            if response.status != 200:
                return None
            body = await read_at_most(response, MAX_BYTES)
    except (aiohttp.ClientError, OSError):
        return None
    # Histograms are nine tenths of the text; parsing them would hold up the client's own loop.
    lines = [line for line in body.decode(errors="replace").splitlines() if _is_plain(line)]
    return parse_metrics("\n".join(lines) + "\n") if lines else None


def _is_plain(line: str) -> bool:
    return line.startswith("vllm:") and "_bucket{" not in line


@contextlib.asynccontextmanager
async def watch_metrics(
    session: aiohttp.ClientSession, endpoint: Endpoint, watch: MetricsWatch | None
) -> AsyncIterator[None]:
    """Sample while the block runs, and once before and after it; without a watch, do nothing."""
    if watch is None:
        yield
        return
    watch.before = await fetch_metrics(session, endpoint)
    sampler = asyncio.create_task(_sample(session, endpoint, watch))
    try:
        yield
    finally:
        sampler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampler
    # vLLM counts a token a moment after it has sent it.
    await asyncio.sleep(_COUNTING_LAG_S)
    watch.after = await fetch_metrics(session, endpoint)


async def _sample(session: aiohttp.ClientSession, endpoint: Endpoint, watch: MetricsWatch) -> None:
    while True:
        await asyncio.sleep(INTERVAL_S)
        snapshot = await fetch_metrics(session, endpoint)
        if snapshot is not None:
            watch.taken.append((time.perf_counter(), snapshot))


def server_side(
    watch: MetricsWatch,
    steady_s: tuple[float, float] | None,
    shortest_prompt: int,
    max_num_seqs: int | None = None,
    *,
    all_busy_until_s: float | None = None,
) -> ServerSide | None:
    """The load as the server saw it; None if it never answered.

    Args:
        watch: samples and the counters before and after.
        steady_s: when all users were being served.
        shortest_prompt: tokens that the smallest request needs to be let in.
        max_num_seqs: seats, if known: with all of them taken a request waits for a seat, not for memory.
        all_busy_until_s: when the first user ran out of requests.
    """
    last = watch.after or (watch.taken[-1][1] if watch.taken else watch.before)
    if last is None:
        return None
    samples = tuple(
        MetricsSample(taken_s - watch.origin_s, shot.running, shot.waiting, shot.kv_cache_usage)
        for taken_s, shot in watch.taken
    )
    cache_tokens = _cache_tokens(last)
    steady = [s for s in samples if steady_s is not None and steady_s[0] <= s.at_s <= steady_s[1]]
    # With every user's request in flight, a sample of an idle server was taken before vLLM looked at them.
    told = [
        s
        for s in steady
        if s.waiting is not None and s.kv_cache_usage is not None and (s.waiting or s.running)
    ]
    enough = len(told) >= _FEWEST_SAMPLES
    # A load too short for such samples is believed when it waits: all users are in flight from 0 on.
    seen = told if enough else [*told, *_up_to(samples, all_busy_until_s)]
    short = any(_waits_for_memory(s, cache_tokens, shortest_prompt, max_num_seqs) for s in seen)
    preemptions = _delta(watch, "preemptions_total")
    # Where the gauges were not seen, the counter still tells: a preempted request waits until memory is free.
    short = short or (not enough and bool(preemptions))
    return ServerSide(
        samples=samples,
        peak_running=_peak([s.running for s in samples]),
        peak_waiting=_peak([s.waiting for s in samples]),
        peak_kv_cache_usage=max(
            (s.kv_cache_usage for s in samples if s.kv_cache_usage is not None), default=None
        ),
        preemptions=preemptions,
        prefix_cache_queries=_delta(watch, "prefix_cache_queries_total"),
        prefix_cache_hits=_delta(watch, "prefix_cache_hits_total"),
        prompt_tokens=_delta(watch, "prompt_tokens_total"),
        generation_tokens=_delta(watch, "generation_tokens_total"),
        mean_queue_time_ms=_mean_queue_time_ms(watch),
        kv_cache_tokens=cache_tokens,
        waited_for_memory=True if short else (False if enough and cache_tokens is not None else None),
        waiting_share=sum(bool(s.waiting) for s in told) / len(told) if enough else None,
    )


def _up_to(samples: Sequence[MetricsSample], until_s: float | None) -> list[MetricsSample]:
    return [s for s in samples if until_s is not None and 0 <= s.at_s <= until_s]


def _waits_for_memory(
    sample: MetricsSample, cache_tokens: int | None, shortest_prompt: int, max_num_seqs: int | None
) -> bool:
    """A request waits although there are seats, and the free blocks do not hold even the shortest prompt.

    vLLM lets a request in once the whole prompt fits (0.32.0 v1/core/sched/scheduler.py,
    full_sequence_must_fit); one that waits with room for it waits for the next step, or its token budget.
    """
    if not sample.waiting or sample.kv_cache_usage is None or cache_tokens is None:
        return False
    if max_num_seqs is not None and (sample.running or 0) >= max_num_seqs:
        return False
    return (1 - sample.kv_cache_usage) * cache_tokens < shortest_prompt


def _cache_tokens(snapshot: MetricsSnapshot) -> int | None:
    """KV cache size in tokens: vLLM's own figure, else blocks times their size."""
    tokens = snapshot.cache_int("kv_cache_size_tokens")
    if tokens is not None:
        return tokens
    blocks, size = snapshot.cache_int("num_gpu_blocks"), snapshot.cache_int("block_size")
    return blocks * size if blocks and size else None


def _peak(values: Sequence[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(max(known)) if known else None


def _mean_queue_time_ms(watch: MetricsWatch) -> float | None:
    waited_s = _growth(watch, "queue_time_s_total")
    requests = _growth(watch, "queue_time_requests_total")
    return 1000 * waited_s / requests if waited_s is not None and requests else None


def _delta(watch: MetricsWatch, counter: str) -> int | None:
    """How much a counter of whole things grew."""
    growth = _growth(watch, counter)
    return None if growth is None else int(growth)


def _growth(watch: MetricsWatch, counter: str) -> float | None:
    """How much a counter grew; None if it was not there, or began anew because the server did."""
    before: float | None = getattr(watch.before, counter, None)
    after: float | None = getattr(watch.after, counter, None)
    return None if before is None or after is None or after < before else after - before
