"""Records of a load -> the figures that `vllm bench serve` prints, under its names. Pure.

Definitions are those of vLLM 0.32.0 benchmarks/serve.py, calculate_metrics: only whole answers count; TPOT is
(E2EL - TTFT) / (output tokens - 1) of a request; ITL pools the gaps of all requests; throughput is over the
whole duration, ramps included; percentiles interpolate linearly; std is that of the population.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.load.records import LoadResult


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Figures of one load. None is "unknown", never 0: a P99 of no requests must not pass a limit."""

    completed: int
    """Answers that came whole."""
    failed: int
    unfinished: int
    """Requests in flight when the load was stopped."""
    concurrency: int | None
    duration: float
    """Seconds."""
    total_input_tokens: int | None
    total_output_tokens: int | None
    request_throughput: float | None
    """Answers per second."""
    output_throughput: float | None
    """Answer tokens per second."""
    total_token_throughput: float | None
    """Prompt and answer tokens per second."""
    mean_ttft_ms: float | None
    std_ttft_ms: float | None
    p50_ttft_ms: float | None
    p95_ttft_ms: float | None
    p99_ttft_ms: float | None
    mean_tpot_ms: float | None
    std_tpot_ms: float | None
    p50_tpot_ms: float | None
    p95_tpot_ms: float | None
    p99_tpot_ms: float | None
    mean_itl_ms: float | None
    std_itl_ms: float | None
    p50_itl_ms: float | None
    p95_itl_ms: float | None
    p99_itl_ms: float | None
    mean_e2el_ms: float | None
    std_e2el_ms: float | None
    p50_e2el_ms: float | None
    p95_e2el_ms: float | None
    p99_e2el_ms: float | None
    wrong_lengths: int
    """Whole answers whose tokens, as the server counted them, are not as many as were asked for."""
    errors: tuple[tuple[str, int], ...]
    """What failed requests said, most frequent first, and how often."""
    client_limited: str | None
    """Why these are the client's figures rather than the server's; None when they are the server's."""
    miscounted: int = 0
    """Whole answers whose tokens the server counted in a way that cannot be true."""

    def as_dict(self) -> dict[str, Any]:
        """Flat JSON types, with `median_*` beside `p50_*` as vLLM writes both."""
        flat = dataclasses.asdict(self)
        return {
            name: value
            for key, kept in flat.items()
            for name, value in (
                [(key, kept), (key.replace("p50_", "median_", 1), kept)]
                if key.startswith("p50_")
                else [(key, kept)]
            )
        }


def summarize(result: LoadResult) -> LoadSummary:
    """The summary of a load, warm-up apart.

    Raises:
        MissingDependencyError: numpy is not installed.
    """
    whole = [record for record in result.records if record.ok]
    failed = [record for record in result.records if not record.ok]
    input_tokens = sum(r.input_len if r.prompt_tokens is None else r.prompt_tokens for r in whole)
    output_tokens = _total([r.output_tokens for r in whole])
    latencies = {
        **_distribution("ttft_ms", [r.ttft_s for r in whole if r.ttft_s is not None]),
        **_distribution("tpot_ms", [r.tpot_s for r in whole if r.tpot_s is not None]),
        **_distribution("itl_ms", [gap for r in whole if not r.came_at_once for gap in r.itl_s]),
        **_distribution("e2el_ms", [r.e2e_s for r in whole if r.e2e_s is not None]),
    }
    return LoadSummary(
        completed=len(whole),
        failed=len(failed),
        unfinished=result.unfinished,
        concurrency=result.concurrency,
        duration=result.duration_s,
        total_input_tokens=input_tokens if whole else None,
        total_output_tokens=output_tokens,
        request_throughput=len(whole) / result.duration_s if whole else None,
        output_throughput=None if output_tokens is None else output_tokens / result.duration_s,
        total_token_throughput=(
            None if output_tokens is None else (input_tokens + output_tokens) / result.duration_s
        ),
        wrong_lengths=sum(r.output_tokens is not None and r.output_tokens != r.output_len for r in whole),
        errors=tuple(Counter(r.error or "" for r in failed).most_common(5)),
        client_limited=result.client.limits(latencies["p50_itl_ms"]) if whole else None,
        miscounted=sum(r.claimed_tokens is not None for r in whole),
        **latencies,
    )


def _total(counts: Sequence[int | None]) -> int | None:
    """The sum; None when there is nothing to sum or the server did not count all."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _distribution(name: str, values_s: Sequence[float]) -> dict[str, float | None]:
    """Mean, std and percentiles in milliseconds, under their flat names."""
    statistics = ("mean", "std", "p50", "p95", "p99")
    if not values_s:
        return dict.fromkeys((f"{statistic}_{name}" for statistic in statistics), None)
    try:
        import numpy as np
    except ImportError as error:
        raise MissingDependencyError(
            "statistics of a load need numpy", "pip install 'kvplan-tuner[tune]'"
        ) from error
    values_ms = 1000 * np.asarray(values_s, dtype=np.float64)
    figures = (values_ms.mean(), values_ms.std(), *np.percentile(values_ms, (50, 95, 99)))
    return {f"{statistic}_{name}": float(x) for statistic, x in zip(statistics, figures, strict=True)}
