"""Which loads a running server gets, and what is said of them: a function of the answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.tune.load_point import LoadPoint
from kvplan.tune.load_sweep import Goal, highest_kept, knee_of, next_load
from kvplan.tune.problem import Constraints
from kvplan.tune.server_findings import findings, kv_arithmetic

if TYPE_CHECKING:
    from collections.abc import Callable

NO_LIMIT = Goal(Constraints())


def point(users: int, rate: float = 100.0, **figures: Any) -> LoadPoint:
    """A load that was answered whole."""
    known: dict[str, Any] = {
        "completed": 3 * users,
        "failed": 0,
        "output_throughput": rate,
        "request_throughput": rate / 10,
        "p99_ttft_ms": 50.0,
        "p99_tpot_ms": 10.0,
        "preemptions": 0,
        "waited_for_memory": False,
    }
    return LoadPoint(users, **known | figures)


def loads_of(goal: Goal, server: Callable[[int], LoadPoint]) -> tuple[list[int], str]:
    """The loads that a server gets, in order, and why no other."""
    points: list[LoadPoint] = []
    for _ in range(40):
        step = next_load(goal, points)
        if step.users is None:
            return [p.users for p in points], step.why
        points.append(server(step.users))
    raise AssertionError("no end")


def saturating(knee: int) -> Callable[[int], LoadPoint]:
    """100 tokens/s a user up to the knee, nothing more beyond it."""
    return lambda users: point(users, 100.0 * min(users, knee))


def test_loads_double_until_two_in_a_row_bring_nothing() -> None:
    # 1, 2, 4, 8 grow; 16 and 32 do not: the knee is at 8.
    loads, why = loads_of(NO_LIMIT, saturating(8))

    assert loads == [1, 2, 4, 8, 16, 32]
    assert "the knee is at 8 users" in why


def test_one_flat_load_is_not_yet_a_knee() -> None:
    rates = {1: 100.0, 2: 200.0, 4: 201.0, 8: 500.0, 16: 505.0, 32: 500.0}
    loads, why = loads_of(NO_LIMIT, lambda users: point(users, rates[users]))

    assert loads == [1, 2, 4, 8, 16, 32]
    assert "the knee is at 8 users" in why


def test_the_limit_is_closed_in_on_between_kept_and_broken() -> None:
    # TTFT grows by 10 ms a user: 100 ms are kept up to 10 users. 8 is kept, 16 is not.
    # sqrt(8 x 16) = 11.3 -> 11 is not kept; sqrt(8 x 11) = 9.4 -> 9 is; 11 / 9 > 1.1: 10 is the third.
    goal = Goal(Constraints(ttft_p99_ms=100.0))
    loads, _ = loads_of(goal, lambda users: point(users, 100.0 * users, p99_ttft_ms=10.0 * users))

    assert loads == [1, 2, 4, 8, 16, 11, 9, 10]
    kept = highest_kept(goal, [point(u, 100.0 * u, p99_ttft_ms=10.0 * u) for u in loads])
    assert kept is not None
    assert kept.users == 10


@pytest.mark.parametrize(("knee", "expected"), [(64, [1, 2, 4, 8, 16, 24, 32, 64, 128, 256]), (2, None)])
def test_the_target_itself_is_always_a_load(knee: int, expected: list[int] | None) -> None:
    loads, _ = loads_of(Goal(Constraints(), 24), saturating(knee))

    assert 24 in loads
    if expected is not None:
        assert loads == expected


def test_a_target_beyond_the_broken_load_is_still_asked() -> None:
    goal = Goal(Constraints(tpot_p99_ms=15.0), 64)
    loads, _ = loads_of(goal, lambda users: point(users, 100.0 * users, p99_tpot_ms=5.0 * users))

    # 4 users need 20 ms; between 2 and 4 there is 3, which is just kept (15 ms).
    assert loads == [1, 2, 4, 64, 3]


def test_failed_requests_end_it() -> None:
    loads, why = loads_of(
        NO_LIMIT,
        lambda users: point(users, 100.0 * users, failed=int(users == 4), error="500: no"),
    )

    assert loads == [1, 2, 4]
    assert why == "the load of 4 users was not answered whole: 500: no"


def test_it_ends_at_1024_users() -> None:
    loads, why = loads_of(NO_LIMIT, saturating(10**6))

    assert loads[-1] == 1024
    assert "1024" in why


def test_a_server_that_counts_no_tokens_is_judged_by_requests() -> None:
    loads, _ = loads_of(
        NO_LIMIT,
        lambda users: point(users, output_throughput=None, request_throughput=float(min(users, 4))),
    )

    assert loads == [1, 2, 4, 8, 16]


def test_an_unknown_latency_keeps_no_limit() -> None:
    goal = Goal(Constraints(ttft_p99_ms=100.0, max_preemptions=0))

    assert goal.broken_by(point(1, p99_ttft_ms=None)) == ("TTFT p99 unknown",)
    assert goal.broken_by(point(1, preemptions=None)) == ("preemptions unknown",)
    assert goal.broken_by(point(1, p99_ttft_ms=101.0)) == ("TTFT p99 101.0 ms > 100 ms",)
    assert goal.broken_by(point(1, preemptions=2)) == ("2 preemptions > 0",)
    assert goal.broken_by(point(1)) == ()


def test_above_a_broken_load_nothing_counts() -> None:
    goal = Goal(Constraints(ttft_p99_ms=100.0))
    points = [point(1), point(2, p99_ttft_ms=150.0), point(4)]

    kept = highest_kept(goal, points)
    assert kept is not None
    assert kept.users == 1


def test_the_knee_is_the_smallest_load_within_5_percent_of_the_best() -> None:
    assert knee_of([point(1, 100), point(2, 190), point(4, 199), point(8, 200)]) == 4
    assert knee_of([]) is None


# What /metrics says of the KV cache


def test_requests_that_fit_are_whole_blocks_without_the_null_block() -> None:
    # 1,024 blocks of 128 tokens, one of them the null block; 320 tokens need 3 blocks: 1,023 // 3 = 341.
    labels = {
        "block_size": "128",
        "effective_attention_block_size": "128",
        "num_gpu_blocks": "1024",
        "kv_cache_size_tokens": "131072",
        "cache_dtype": "auto",
        "gpu_memory_utilization": "0.92",
        "enable_prefix_caching": "True",
        "kv_cache_memory_bytes": "None",
    }
    kv = kv_arithmetic(labels, 320, 512)

    assert kv is not None
    assert (kv.kv_cache_tokens, kv.requests_at_mean, kv.requests_at_longest) == (131_072, 341, 255)
    assert kv.is_exact
    assert (kv.gpu_memory_utilization, kv.kv_cache_memory_bytes, kv.cache_dtype) == (0.92, None, "auto")
    assert kv.enable_prefix_caching is True


def test_layers_of_several_kinds_are_counted_in_tokens() -> None:
    kv = kv_arithmetic(
        {"block_size": "16", "num_gpu_blocks": "1000", "kv_cache_size_tokens": "30000"}, 300, 1000
    )

    assert kv is not None
    assert not kv.is_exact
    assert (kv.requests_at_mean, kv.requests_at_longest) == (100, 30)


def test_without_a_stated_size_whole_blocks_are_a_guess() -> None:
    kv = kv_arithmetic({"block_size": "16", "num_gpu_blocks": "101"}, 160, 320)

    assert kv is not None
    assert (kv.kv_cache_tokens, kv.requests_at_mean, kv.requests_at_longest) == (1616, 10, 5)
    assert not kv.is_exact


@pytest.mark.parametrize(
    "labels",
    [
        {"block_size": "None", "num_gpu_blocks": "None"},
        {"block_size": "-1", "num_gpu_blocks": "1e9", "gpu_memory_utilization": "nan"},
        {"block_size": "9" * 400, "num_gpu_blocks": "0", "enable_prefix_caching": "maybe"},
    ],
)
def test_labels_that_make_no_sense_are_unknown(labels: dict[str, str]) -> None:
    kv = kv_arithmetic(labels, 100, 100)

    assert kv is not None
    assert (kv.kv_cache_tokens, kv.requests_at_mean, kv.gpu_memory_utilization) == (None, None, None)
    assert kv_arithmetic({}, 100, 100) is None


# What it means

HEADER: dict[str, Any] = {
    "has_metrics": True,
    "busy_before": 0,
    "context": {"workload": {"shared_prefix_tokens": 0}},
}


def said(points: list[LoadPoint], goal: Goal = NO_LIMIT, header: dict[str, Any] = HEADER) -> str:
    kv = kv_arithmetic({"block_size": "16", "num_gpu_blocks": "100", "cache_dtype": "auto"}, 32, 32)
    found = findings(goal, points, kv, header)
    return "\n".join(f"{f.text} => {f.change}" for f in found)


def test_without_metrics_memory_is_unknown_not_fine() -> None:
    text = said([point(1, waited_for_memory=None, preemptions=None)], header={**HEADER, "has_metrics": False})

    assert "are unknown" in text
    assert "No request was seen waiting" not in text


def test_waiting_for_memory_names_the_cheapest_change_first() -> None:
    text = said([point(8), point(16, waited_for_memory=True)])

    assert "waited for KV cache from 16 users on" in text
    assert text.index("--gpu-memory-utilization") < text.index("--kv-cache-dtype fp8")


def test_full_seats_are_told_from_full_memory() -> None:
    text = said([point(16, peak_running=8, waiting_share=0.9, peak_kv_usage=0.3)])

    assert "the seats were taken, not the memory" in text
    assert "--max-num-seqs above 8" in text


def test_tokens_of_others_and_of_other_replicas_are_noticed() -> None:
    # We got 1,000 tokens. The server counted 2,000: half were somebody's. It counted 500: there is another.
    others = point(4, output_tokens=1000, server_output_tokens=2000)
    replica = point(4, output_tokens=1000, server_output_tokens=500)

    assert "50% of the server's output tokens were not of this load" in said([others])
    assert "one of several replicas" in said([replica])
    assert "others" not in said([point(4, output_tokens=1000, server_output_tokens=1010)])


def test_a_limit_that_one_user_breaks_is_not_a_matter_of_load() -> None:
    text = said([point(1, p99_tpot_ms=60.0)], Goal(Constraints(tpot_p99_ms=50.0)))

    assert "one user alone" in text
    assert "a faster card" in text


def test_a_late_client_is_said_first() -> None:
    limited = replace(point(4, waited_for_memory=True), client_limited="the load client used 99% of a core")

    assert said([limited]).startswith("At 4 users the figures are the client's")


def test_a_shared_prefix_that_is_not_found_is_a_finding() -> None:
    header = {**HEADER, "context": {"workload": {"shared_prefix_tokens": 1000}}}
    missed = point(4, prefix_cache_queries=10_000, prefix_cache_hits=0)

    assert "0.0% of the prompt tokens were found" in said([missed], header=header)
