"""Measurements of a running server as text, Markdown or JSON: one load, or a sweep over numbers of users."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from kvplan.report.table import render_table
from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.load.measure import Measurement

SCHEMA: Final = "kvplan.bench/1"
_UNKNOWN: Final = "n/a"


def render_bench(measurements: Sequence[Measurement], url: str, model: str, output_format: str) -> str:
    """The measurements in the order given, as `text`, `markdown` or `json`."""
    if output_format == "json":
        document = {
            "schema": SCHEMA,
            "url": url,
            "model": model,
            "measurements": [measurement.as_dict() for measurement in measurements],
        }
        return json.dumps(document, indent=2, allow_nan=False)
    markdown = output_format == "markdown"
    title = visible(f"{model} at {url}, {measurements[0].workload}")
    blocks = [f"## {title}" if markdown else title]
    if len(measurements) == 1:
        blocks += _one(measurements[0], markdown=markdown)
    else:
        blocks += [_sweep(measurements, markdown=markdown)]
    for measurement in measurements:
        label = "" if len(measurements) == 1 else f"{_users(measurement)}: "
        notes = [visible(f"{'- ' if markdown else 'note: '}{label}{note}") for note in measurement.notes]
        errors = [
            visible(f"{'- ' if markdown else 'failed: '}{label}{count} x {text}")
            for text, count in measurement.summary.errors
        ]
        blocks += ["\n".join([*errors, *notes])] if errors or notes else []
    return "\n\n".join(blocks)


def _one(measurement: Measurement, *, markdown: bool) -> list[str]:
    summary, server = measurement.summary, measurement.server
    counts = (
        f"{summary.completed} of {summary.completed + summary.failed + summary.unfinished} requests answered "
        f"in {summary.duration:.1f} s by {_users(measurement)}"
    )
    rates = [
        ["requests/s", _number(summary.request_throughput, 2)],
        ["output tokens/s", _number(summary.output_throughput, 1)],
        ["all tokens/s", _number(summary.total_token_throughput, 1)],
    ]
    latencies = [
        [name, *(_number(getattr(summary, f"{stat}_{key}_ms"), 1) for stat in _STATISTICS)]
        for name, key in (
            ("TTFT", "ttft"),
            ("TPOT", "tpot"),
            ("ITL", "itl"),
            ("E2EL", "e2el"),
        )
    ]
    blocks = [
        counts,
        render_table(["throughput", ""], rates, markdown=markdown),
        render_table(["ms", *_STATISTICS], latencies, markdown=markdown),
    ]
    if server is not None:
        hits = _share(server.prefix_cache_hits, server.prefix_cache_queries)
        rows = [
            ["peak running", _number(server.peak_running)],
            ["peak waiting", _number(server.peak_waiting)],
            ["mean queue time ms", _number(server.mean_queue_time_ms, 1)],
            ["peak KV cache use", _percent(server.peak_kv_cache_usage)],
            ["KV cache tokens", _number(server.kv_cache_tokens)],
            ["preemptions", _number(server.preemptions)],
            ["prefix cache hits", _percent(hits)],
            ["waited for memory", {True: "yes", False: "no", None: _UNKNOWN}[server.waited_for_memory]],
        ]
        blocks.append(render_table(["server", ""], rows, markdown=markdown))
    return blocks


_STATISTICS: Final = ("mean", "p50", "p95", "p99", "std")


def _sweep(measurements: Sequence[Measurement], *, markdown: bool) -> str:
    header = [
        "users",
        "answered",
        "failed",
        "out tok/s",
        "TTFT p50",
        "p99 ms",
        "TPOT p50",
        "p99 ms",
        "peak KV",
        "preempted",
        "waited",
    ]
    rows = []
    for measurement in measurements:
        summary, server = measurement.summary, measurement.server
        rows.append(
            [
                _number(summary.concurrency),
                _number(summary.completed),
                _number(summary.failed),
                _number(summary.output_throughput, 1),
                _number(summary.p50_ttft_ms, 1),
                _number(summary.p99_ttft_ms, 1),
                _number(summary.p50_tpot_ms, 1),
                _number(summary.p99_tpot_ms, 1),
                _percent(server.peak_kv_cache_usage if server else None),
                _number(server.preemptions if server else None),
                {True: "yes", False: "no", None: _UNKNOWN}[server.waited_for_memory if server else None],
            ]
        )
    return render_table(header, rows, left=(), markdown=markdown)


def _users(measurement: Measurement) -> str:
    users = measurement.summary.concurrency
    if users is None:
        return "arrivals of their own"
    return "1 user" if users == 1 else f"{users} users"


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{share:.1%}"


def _number(value: float | None, digits: int = 0) -> str:
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"
