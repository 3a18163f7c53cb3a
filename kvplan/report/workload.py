"""A workload as people read it: its lengths, and what else the file says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kvplan.load.workload import ClosedLoop, Poisson, Workload
from kvplan.load.workload_file import read_workload
from kvplan.report.table import prose, render_table
from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

SCHEMA: Final = "kvplan.workload-summary/1"
_QUANTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def summary_of(workload: Workload) -> dict[str, Any]:
    """The workload's figures as JSON types; lengths in tokens."""

    def lengths(mean: float, quantile: Callable[[float], int], longest: int) -> dict[str, Any]:
        quantiles = {name: quantile(q) for name, q in _QUANTILES.items()}
        return {"mean": round(mean, 1), **quantiles, "longest": longest}

    return {
        "schema": SCHEMA,
        "name": workload.name,
        "source": workload.source,
        "input_len": lengths(
            workload.mean_input_len, workload.input_len_quantile, workload.longest_input_len
        ),
        "output_len": lengths(
            workload.mean_output_len, workload.output_len_quantile, workload.longest_output_len
        ),
        "total_len": lengths(
            workload.mean_total_len, workload.total_len_quantile, workload.longest_total_len
        ),
        "arrivals": _arrivals(workload),
        "turns": workload.turns,
        "shared_prefix_tokens": workload.shared_prefix_tokens,
        "logprobs": workload.logprobs,
        "dependence": workload.dependence,
    }


def render_workload(workload: Workload, notes: Sequence[str], output_format: str) -> str:
    """The summary as `text`, `markdown` or `json`."""
    summary = summary_of(workload)
    if output_format == "json":
        return json.dumps({**summary, "notes": list(notes)}, indent=2)
    markdown = output_format == "markdown"
    rows = [
        [title, *(f"{value:,.0f}" for value in summary[key].values())]
        for title, key in (("prompt", "input_len"), ("answer", "output_len"), ("total", "total_len"))
    ]
    facts = [
        f"from: {workload.source}",
        f"arrivals: {summary['arrivals']}",
        workload.turns > 1 and f"conversations of {workload.turns} requests",
        workload.shared_prefix_tokens
        and f"the first {workload.shared_prefix_tokens:,} tokens of every prompt are the same",
        workload.logprobs is not None
        and f"every request asks for the log-probabilities of {workload.logprobs} tokens at each place",
        workload.dependence == "comonotone"
        and "prompts and answers were given apart: the longest prompts are taken to get the longest answers",
        workload.dependence == "independent"
        and "prompts and answers were given apart, and are taken to be independent",
        *(f"note: {note}" for note in notes),
    ]
    bullet = "- " if markdown else ""
    return "\n\n".join(
        [
            visible(f"## {workload.name}" if markdown else workload.name),
            render_table(["tokens", *summary["total_len"]], rows, markdown=markdown),
            "\n".join(prose(visible(f"{bullet}{fact}"), markdown=markdown) for fact in facts if fact),
        ]
    )


def render_presets(presets: Mapping[str, Path], output_format: str) -> str:
    """All presets, one a line: mean prompt and answer, P95 and longest in total."""
    workloads = [read_workload(path) for path in presets.values()]
    if output_format == "json":
        return json.dumps({"schema": SCHEMA, "presets": [summary_of(w) for w in workloads]}, indent=2)
    rows = [
        [
            w.name,
            f"{w.mean_input_len:,.0f}",
            f"{w.mean_output_len:,.0f}",
            f"{w.total_len_quantile(0.95):,}",
            f"{w.longest_total_len:,}",
            f"{w.shared_prefix_tokens:,}",
            str(w.turns),
        ]
        for w in workloads
    ]
    header = ["preset", "prompt", "answer", "P95 total", "longest", "shared prefix", "turns"]
    return render_table(header, rows, markdown=output_format == "markdown")


def _arrivals(workload: Workload) -> str:
    arrivals = workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        users = (
            "users, as many as --concurrency or --target-concurrency says"
            if arrivals.users is None
            else f"{arrivals.users} users"
        )
        thinking = f", who think for {arrivals.think_time_s:g} s" if arrivals.think_time_s else ""
        return users + thinking
    if isinstance(arrivals, Poisson):
        return f"{arrivals.requests_per_s:g} requests/s at random"
    return f"a trace of {len(arrivals.times_s)} requests over {arrivals.times_s[-1]:.0f} s"
