"""Output of bench and workload, as files: `pytest tests/golden --update-golden` rewrites them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.load.measure import Measurement
from kvplan.load.records import ClientHealth
from kvplan.load.server_metrics import MetricsSample, ServerSide
from kvplan.load.statistics import LoadSummary
from kvplan.load.workload import load_workload
from kvplan.report.bench import render_bench
from kvplan.report.workload import render_workload

GOLDEN = Path(__file__).parent / "bench"


def measurement(users: int, *, answered: bool = True) -> Measurement:
    """Round figures that grow with the number of users; nothing but failures if not answered."""
    latencies = {
        f"{statistic}_{name}_ms": base * factor * users if answered else None
        for name, base in (("ttft", 12.0), ("tpot", 1.5), ("itl", 1.5), ("e2el", 200.0))
        for statistic, factor in (("mean", 1.0), ("std", 0.1), ("p50", 0.9), ("p95", 1.5), ("p99", 2.0))
    }
    summary = LoadSummary(
        completed=4 * users if answered else 0,
        failed=1 if answered else 4 * users,
        unfinished=0,
        concurrency=users,
        duration=10.0,
        total_input_tokens=6000 * users if answered else None,
        total_output_tokens=2048 * users if answered else None,
        request_throughput=0.4 * users if answered else None,
        output_throughput=204.8 * users if answered else None,
        total_token_throughput=804.8 * users if answered else None,
        wrong_lengths=0,
        errors=(
            ("500 Internal Server Error: EngineCore encountered an issue", 1 if answered else 4 * users),
        ),
        client_limited=None,
        miscounted=0,
        **latencies,
    )
    server = ServerSide(
        samples=(MetricsSample(0.5, users, 0, 0.25),),
        peak_running=users,
        peak_waiting=2,
        peak_kv_cache_usage=0.03 * users,
        preemptions=0,
        prefix_cache_queries=6000 * users,
        prefix_cache_hits=1500 * users,
        prompt_tokens=6000 * users,
        generation_tokens=2048 * users,
        mean_queue_time_ms=4.2,
        kv_cache_tokens=66_000,
        waited_for_memory=users > 16,
        waiting_share=0.0,
    )
    return Measurement(
        summary=summary,
        server=server if answered else None,
        client=ClientHealth(0.12, 0.2, 1.1, 9.0),
        workload="articles-32x1500x512",
        seed=0,
        salt=7,
        started_at="2026-08-01T10:00:00+00:00",
        steady_s=(0.5, 9.0),
        warmup_requests=2 * users,
        warmup_waves_ms=(15.0, 1.5),
        first_quarter_slowdown=1.02,
        stopped=None,
    )


def bench(output_format: str, *measurements: Measurement) -> str:
    return render_bench(measurements, "http://127.0.0.1:8000", "qwen2-7b", output_format)


def workload(name: str, output_format: str) -> str:
    return render_workload(load_workload(name), (), output_format)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("one.txt", lambda: bench("text", measurement(32))),
        ("one.json", lambda: bench("json", measurement(32))),
        ("sweep.txt", lambda: bench("text", measurement(8), measurement(32))),
        ("sweep.md", lambda: bench("markdown", measurement(8), measurement(32))),
        ("nothing-answered.txt", lambda: bench("text", measurement(4, answered=False))),
        ("workload-rag.txt", lambda: workload("rag", "text")),
        ("workload-agent.md", lambda: workload("agent", "markdown")),
        ("workload-chat.json", lambda: workload("chat", "json")),
    ],
)
def test_the_output_is_the_one_that_was_looked_at(
    name: str, printed: object, pytestconfig: pytest.Config
) -> None:
    text = printed() + "\n"  # type: ignore[operator]
    path = GOLDEN / name
    if pytestconfig.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    assert text == path.read_text()
