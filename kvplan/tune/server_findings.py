"""What a load sweep on a running server means, and what to change first. Pure: a function of the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.load.measure import NO_METRICS, WAITED
from kvplan.tune.load_sweep import highest_kept, knee_of
from kvplan.units import cdiv

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvplan.tune.load_point import LoadPoint
    from kvplan.tune.load_sweep import Goal

SAID_BY_FINDINGS: Final = frozenset({NO_METRICS, WAITED})
"""Notes of a load that a finding says in more words."""
_FULL: Final = 0.9
"""From this share of the KV cache on a waiting request may wait for memory."""
_OTHERS: Final = 0.1
"""From this share on, what the server counted was not this load alone."""
_WASTED_HITS: Final = 0.05
_FASTER_FIRST_TOKENS: Final = (
    "a larger --max-num-batched-tokens (prompts are computed in fewer steps), prefix caching if prompts "
    "begin alike, or fewer users a server"
)
_FASTER_TOKENS: Final = "fewer --max-num-seqs a server, or a smaller --max-num-batched-tokens"


@dataclass(frozen=True, slots=True)
class KvArithmetic:
    """What vLLM's cache_config_info says of the KV cache, and what follows from it. None is "not said"."""

    block_size: int | None
    num_gpu_blocks: int | None
    kv_cache_tokens: int | None
    cache_dtype: str | None
    gpu_memory_utilization: float | None
    kv_cache_memory_bytes: int | None
    enable_prefix_caching: bool | None
    mean_request_tokens: int
    longest_request_tokens: int
    requests_at_mean: int | None
    """Requests of the mean length that the cache holds at once."""
    requests_at_longest: int | None
    is_exact: bool
    """The server states as many tokens as its blocks hold: every layer keeps every token, so requests are
    whole blocks. Else (layers of several kinds, or vLLM before 0.24, which states none) they are a guess."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the loads showed."""

    text: str
    change: str | None = None
    """What to change because of it."""


def kv_arithmetic(cache: Mapping[str, str], mean_tokens: int, longest_tokens: int) -> KvArithmetic | None:
    """The arithmetic of the labels of cache_config_info; None without labels.

    Args:
        cache: the labels.
        mean_tokens: of a request of the workload, when it ends.
        longest_tokens: of the workload's longest.

    Source: vLLM 0.32.0 config/cache.py::CacheConfig.metrics_info; v1/core/block_pool.py keeps one block of
    the pool as the null block.
    """
    if not cache:
        return None
    block = _whole(cache.get("effective_attention_block_size")) or _whole(cache.get("block_size"))
    blocks = _whole(cache.get("num_gpu_blocks"))
    product = blocks * block if blocks is not None and block is not None else None
    stated = _whole(cache.get("kv_cache_size_tokens"))
    tokens = stated or product

    def held(length: int) -> int | None:
        if tokens == product and blocks is not None and block is not None:
            return (blocks - 1) // cdiv(length, block)
        return None if tokens is None else tokens // length

    return KvArithmetic(
        block_size=block,
        num_gpu_blocks=blocks,
        kv_cache_tokens=tokens,
        cache_dtype=_said(cache.get("cache_dtype")),
        gpu_memory_utilization=_number(cache.get("gpu_memory_utilization")),
        kv_cache_memory_bytes=_whole(cache.get("kv_cache_memory_bytes")),
        enable_prefix_caching={"True": True, "False": False}.get(cache.get("enable_prefix_caching", "")),
        mean_request_tokens=mean_tokens,
        longest_request_tokens=longest_tokens,
        requests_at_mean=held(mean_tokens),
        requests_at_longest=held(longest_tokens),
        is_exact=stated is not None and stated == product,
    )


def findings(
    goal: Goal,
    points: Sequence[LoadPoint],
    kv: KvArithmetic | None,
    header: Mapping[str, Any],
) -> tuple[Finding, ...]:
    """What was seen, the most important first.

    Args:
        goal: target and constraints.
        points: the loads, rising.
        kv: the server's own figures.
        header: the first line of the run's journal.
    """
    shared_prefix = header["context"]["workload"]["shared_prefix_tokens"]
    return (
        *_doubts(points, header),
        *_failures(points),
        *_memory(points, kv, has_metrics=header["has_metrics"]),
        *_seats(points),
        *_latencies(goal, points),
        *_prefixes(points, kv, shared_prefix),
        *_knee(goal, points),
    )


def _doubts(points: Sequence[LoadPoint], header: Mapping[str, Any]) -> Iterator[Finding]:
    """Why the figures may not be the server's, or not of this load."""
    limited = [p for p in points if p.client_limited]
    if limited:
        where = "every load" if len(limited) == len(points) > 1 else _users(limited)
        yield Finding(
            f"At {where} the figures are the client's, not the server's: {limited[0].client_limited}.",
            "run kvplan on a machine (or cores) of its own, near the server",
        )
    if header.get("busy_before"):
        yield Finding(
            f"{header['busy_before']:.0f} requests of others were running before the first load: "
            "the figures are those of what was left."
        )
    others = [p for p in points if p.others_share is not None and p.others_share > _OTHERS]
    if others:
        share = max(p.others_share or 0.0 for p in others)
        yield Finding(
            f"At {_users(others)} up to {share:.0%} of the server's output tokens were not of this load: "
            "others used it meanwhile.",
            "measure again while nobody else uses it",
        )
    fewer = [p for p in points if p.others_share is not None and p.others_share < -_OTHERS]
    if fewer:
        yield Finding(
            f"At {_users(fewer)} /metrics counted fewer tokens than this load received: it is that of one of "
            "several replicas, so what it says of memory is not of the whole load.",
            "measure one replica at its own address",
        )


def _failures(points: Sequence[LoadPoint]) -> Iterator[Finding]:
    for point in points:
        if point.failed and point.stopped is None:
            yield Finding(
                f"{point.failed} of {point.failed + point.completed} requests failed at {point.users} users: "
                f"{point.error or 'no reason given'}.",
                "look at the server's log before anything else",
            )


def _memory(points: Sequence[LoadPoint], kv: KvArithmetic | None, *, has_metrics: bool) -> Iterator[Finding]:
    if not has_metrics:
        yield Finding(
            "The server has no vLLM /metrics: whether requests waited for memory or were preempted, the size "
            "of its KV cache and its prefix-cache hits are unknown."
        )
        return
    waited = next((p for p in points if p.waited_for_memory), None)
    preempted = next((p for p in points if p.preemptions), None)
    if waited is not None:
        yield Finding(f"Requests waited for KV cache from {waited.users} users on.", _more_memory(kv))
    if preempted is not None:
        change = None if waited is not None else _more_memory(kv)
        yield Finding(
            f"Requests were preempted ({preempted.preemptions}) from {preempted.users} users on: their "
            "prompts are computed again.",
            change,
        )
    if waited is None and preempted is None and points:
        unknown = [p for p in points if p.waited_for_memory is None or p.preemptions is None]
        if len(unknown) == len(points):
            yield Finding("Whether requests waited for KV cache could not be seen at any load.")
        else:
            peaks = [p.peak_kv_usage for p in points if p.peak_kv_usage is not None]
            used = f"; at most {max(peaks):.0%} of the KV cache was used" if peaks else ""
            yield Finding(f"No request was seen waiting for KV cache, and none was preempted{used}.")


def _more_memory(kv: KvArithmetic | None) -> str:
    """The cheapest first: memory that is there, then fewer bytes a token, then fewer seats."""
    changes = []
    utilization = None if kv is None else kv.gpu_memory_utilization
    fixed_size = kv is not None and kv.kv_cache_memory_bytes is not None
    if fixed_size:
        changes.append("a larger --kv-cache-memory-bytes (it overrides the utilisation)")
    else:
        now = "" if utilization is None else f" (now {utilization:g})"
        changes.append(f"a higher --gpu-memory-utilization{now}; kvplan tune finds how far it goes")
    dtype = None if kv is None else kv.cache_dtype
    if dtype is None or dtype in {"auto", "bfloat16", "float16"}:
        changes.append("--kv-cache-dtype fp8 (about half the bytes a token; look at answer quality first)")
    changes.append("fewer --max-num-seqs, so that requests queue instead of being preempted")
    return "; then ".join(changes)


def _seats(points: Sequence[LoadPoint]) -> Iterator[Finding]:
    """Requests that wait although there is memory: all seats are taken."""
    for point in points:
        running, usage = point.peak_running, point.peak_kv_usage
        if (
            running is not None
            and running < point.users
            and point.waiting_share
            and not point.waited_for_memory
            and usage is not None
            and usage < _FULL
        ):
            yield Finding(
                f"At {point.users} users at most {running} requests ran at once, and others waited, with "
                f"{usage:.0%} of the KV cache in use: the seats were taken, not the memory.",
                f"--max-num-seqs above {running}, if the latencies allow it",
            )
            return


def _latencies(goal: Goal, points: Sequence[LoadPoint]) -> Iterator[Finding]:
    limits = goal.constraints
    for name, field, limit, change in (
        (
            "TTFT p99",
            "p99_ttft_ms",
            limits.ttft_p99_ms,
            _FASTER_FIRST_TOKENS,
        ),
        (
            "TPOT p99",
            "p99_tpot_ms",
            limits.tpot_p99_ms,
            _FASTER_TOKENS,
        ),
        ("End-to-end p99", "p99_e2el_ms", limits.e2e_p99_ms, "fewer users a server"),
    ):
        over = next((p for p in points if limit is not None and (getattr(p, field) or 0.0) > limit), None)
        if over is not None:
            if over.users == 1:
                yield Finding(
                    f"{name} is {getattr(over, field):,.1f} ms for one user alone, above the limit of "
                    f"{limit:g} ms: no setting of the load helps.",
                    "a faster card, more of them (tensor parallelism), or a smaller or quantised model",
                )
            else:
                yield Finding(
                    f"{name} is above its limit of {limit:g} ms from {over.users} users on "
                    f"({getattr(over, field):,.1f} ms).",
                    change,
                )


def _prefixes(
    points: Sequence[LoadPoint], kv: KvArithmetic | None, shared_prefix_tokens: int
) -> Iterator[Finding]:
    known = [(p.users, p.prefix_hit_rate) for p in points if p.prefix_hit_rate is not None]
    caching = None if kv is None else kv.enable_prefix_caching
    if not known:
        return
    users, rate = known[-1]
    if shared_prefix_tokens and caching is False:
        yield Finding(
            f"Prompts share their first {shared_prefix_tokens:,} tokens, and prefix caching is off.",
            "--enable-prefix-caching",
        )
    elif shared_prefix_tokens and (rate or 0.0) < _WASTED_HITS:
        yield Finding(
            f"Prompts share their first {shared_prefix_tokens:,} tokens, but {rate:.1%} of the prompt tokens "
            f"were found in the prefix cache at {users} users.",
            "the shared part must fill whole blocks, and the cache must have room to keep them",
        )
    else:
        source = "the shared prefix" if shared_prefix_tokens else "prompts of this load are all different"
        yield Finding(f"Prefix-cache hits at {users} users: {rate:.1%} of the prompt tokens ({source}).")


def _knee(goal: Goal, points: Sequence[LoadPoint]) -> Iterator[Finding]:
    knee, kept = knee_of(points), highest_kept(goal, points)
    if knee is None:
        return
    if knee == max(p.users for p in points):
        yield Finding(f"Throughput still grew at {knee} users: the knee was not reached.")
    else:
        yield Finding(
            f"The knee is at {knee} users: within 5 % of the highest throughput; more users wait longer and "
            "get no more."
        )
    if kept is not None and kept.users > knee:
        yield Finding(f"Up to {kept.users} users everything asked for is kept.")


def _users(points: Sequence[LoadPoint]) -> str:
    return ", ".join(f"{p.users}" for p in points) + " users"


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 and int(text) else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None


def _said(text: str | None) -> str | None:
    return None if text in {None, "", "None"} else text
