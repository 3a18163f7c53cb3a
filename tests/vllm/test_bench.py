"""The load client against real vLLM: what it counts is what vLLM counts."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.load.lengths import LengthSample
from kvplan.load.records import ClientHealth, Endpoint, LoadResult, RequestRecord
from kvplan.load.statistics import summarize
from kvplan.load.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.engine.server import Engine

pytestmark = pytest.mark.vllm

BLOCK = 128


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """vLLM with room for 16 blocks of 128 tokens, one of which is vLLM's null block."""
    from kvplan.engine.demo_model import make_demo_model
    from kvplan.engine.plan import LaunchPlan
    from kvplan.engine.server import running_engine

    model = make_demo_model(
        tmp_path_factory.mktemp("model"), num_hidden_layers=2, hidden_size=128, head_dim=32
    )
    # 2 x 2 layers x 2 KV heads x 32 x 2 B = 512 B a token.
    settings = ServingConfig(
        max_model_len=1024,
        max_num_seqs=16,
        block_size=BLOCK,
        kv_cache_memory_bytes=16 * BLOCK * 512,
        enforce_eager=True,
        enable_prefix_caching=True,
    )
    plan = LaunchPlan(str(model), settings, "cpu", tmp_path_factory.mktemp("vllm"))
    with running_engine(plan) as running:
        yield running


def measure(engine: Engine, workload: Workload, **given: Any) -> Any:
    from kvplan.load.measure import measure_load

    endpoint = Endpoint(engine.base_url, engine.served_model_name, engine.api_key)
    return asyncio.run(measure_load(endpoint, workload, **given))


def test_tokens_are_those_that_vllm_counted(engine: Engine) -> None:
    workload = Workload((LengthSample(50, 20), LengthSample(200, 7)))

    measured = measure(engine, workload, concurrency=4, num_requests=16, warmup_requests=4)

    # 8 of each: 8 x (50 + 200) in, 8 x (20 + 7) out.
    assert measured.summary.completed == 16
    assert (measured.summary.total_input_tokens, measured.summary.total_output_tokens) == (2000, 216)
    assert measured.summary.wrong_lengths == 0
    assert measured.server is not None
    assert (measured.server.prompt_tokens, measured.server.generation_tokens) == (2000, 216)
    assert measured.server.preemptions == 0


def test_fresh_prompts_hit_nothing_and_a_shared_prefix_hits_whole_blocks(engine: Engine) -> None:
    fresh = Workload((LengthSample(300, 2),))
    shared = Workload((LengthSample(300, 2),), shared_prefix_tokens=2 * BLOCK)

    without = measure(engine, fresh, concurrency=1, num_requests=6, warmup_requests=1).server
    with_prefix = measure(engine, shared, concurrency=1, num_requests=6, warmup_requests=1).server

    assert (without.prefix_cache_queries, without.prefix_cache_hits) == (1800, 0)
    # The warm-up has filled the cache: two whole blocks of each of the six prompts are found.
    assert (with_prefix.prefix_cache_queries, with_prefix.prefix_cache_hits) == (1800, 6 * 2 * BLOCK)


def test_the_turns_of_a_conversation_find_what_was_said_before(engine: Engine) -> None:
    workload = Workload((LengthSample(200, 100), LengthSample(400, 100), LengthSample(600, 100)), turns=3)

    server = measure(engine, workload, concurrency=1, num_requests=3, warmup_requests=0).server

    # Turn 2 repeats 200 + 100 tokens: 2 whole blocks; turn 3 400 + 100: 3 whole blocks. The last token
    # of an answer is never computed, so 299 and 499 are in the cache, in as many whole blocks.
    assert server.prefix_cache_hits == (2 + 3) * BLOCK


def test_a_cache_that_is_too_small_for_its_users_is_seen(engine: Engine) -> None:
    # 8 users x (500 + 100) tokens is 8 x 5 blocks; the cache has 15.
    workload = Workload.fixed(500, 100)

    measured = measure(engine, workload, concurrency=8, num_requests=64, warmup_requests=0, max_num_seqs=16)

    assert measured.summary.completed == 64
    assert measured.server.kv_cache_tokens == 16 * BLOCK
    # Three fit at once; the others wait for their end, for a third of an answer's time and longer.
    answering_ms = measured.summary.mean_e2el_ms - measured.summary.mean_ttft_ms
    assert measured.server.mean_queue_time_ms > answering_ms / 3
    # Gauges are sampled twice a second and a busy server answers late: they may have seen nothing, but never
    # enough to deny it.
    assert measured.server.waited_for_memory is not False


def test_logprobs_are_asked_for_and_change_no_count(engine: Engine) -> None:
    workload = Workload((LengthSample(50, 20),), logprobs=20)

    measured = measure(engine, workload, concurrency=2, num_requests=4, warmup_requests=0)
    refused = measure(
        engine, replace(workload, logprobs=21), concurrency=1, num_requests=1, warmup_requests=0
    )

    assert (measured.summary.completed, measured.summary.total_output_tokens) == (4, 80)
    # vLLM's default max_logprobs is 20: its own refusal shows that they were asked for.
    assert refused.summary.failed == 1
    assert "21" in refused.summary.errors[0][0]


def test_a_prompt_longer_than_the_model_is_a_failed_request_with_vllms_reason(engine: Engine) -> None:
    measured = measure(engine, Workload.fixed(2000, 10), concurrency=2, num_requests=2, warmup_requests=0)

    assert (measured.summary.completed, measured.summary.failed) == (0, 2)
    assert "1024" in measured.summary.errors[0][0]
    assert measured.summary.p99_ttft_ms is None


def test_statistics_are_vllms_own() -> None:
    serve = pytest.importorskip("vllm.benchmarks.serve")
    requests = pytest.importorskip("vllm.benchmarks.lib.endpoint_request_func")
    rng = random.Random(3)
    records = []
    for number in range(50):
        gaps = tuple(rng.expovariate(100) for _ in range(rng.randint(0, 40)))
        ttft = rng.expovariate(5)
        records.append(
            RequestRecord(
                number=number,
                start_s=rng.random(),
                input_len=rng.randint(1, 500),
                output_len=1 + len(gaps),
                prompt_tokens=rng.randint(1, 500),
                output_tokens=1 + len(gaps),
                ttft_s=ttft,
                itl_s=gaps,
                e2e_s=ttft + sum(gaps),
                error="500" if number % 7 == 0 else None,
            )
        )
    outputs = [
        requests.RequestFuncOutput(
            success=r.ok,
            latency=r.e2e_s,
            output_tokens=r.output_tokens,
            ttft=r.ttft_s,
            itl=list(r.itl_s),
            prompt_len=r.prompt_tokens,
            start_time=r.start_s,
            error=r.error or "",
        )
        for r in records
    ]
    metrics, _ = serve.calculate_metrics([], outputs, 12.5, None, [50.0, 95.0, 99.0], {})

    ours = summarize(
        LoadResult(tuple(records), (), 12.5, 4, 0, 0, ClientHealth(0.1, 0.0, 0.0, 0.0), None)
    ).as_dict()

    for name in ("completed", "failed", "request_throughput", "output_throughput", "total_token_throughput"):
        assert math.isclose(ours[name], getattr(metrics, name)), name
    for latency in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"):
        for statistic in ("mean", "median", "std"):
            name = f"{statistic}_{latency}"
            assert math.isclose(ours[name], getattr(metrics, name)), name
        for percentile, value in getattr(metrics, f"percentiles_{latency}"):
            assert math.isclose(ours[f"p{percentile:.0f}_{latency}"], value), (percentile, latency)
