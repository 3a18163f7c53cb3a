"""Prompt and answer lengths from vLLM's own Prometheus histograms: a scraped text, or a server's /metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

INPUT_HISTOGRAM: Final = "vllm:request_prompt_tokens"
OUTPUT_HISTOGRAM: Final = "vllm:request_generation_tokens"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of lengths, as Prometheus keeps them."""

    buckets: tuple[tuple[float, int], ...]
    """(upper bound, requests at most that long), ascending; the last bound is infinite."""
    total_tokens: float

    @property
    def count(self) -> int:
        """Requests."""
        return self.buckets[-1][1]

    def as_lengths(self, max_model_len: int | None) -> dict[str, Any]:
        """The `input` or `output` entry of a workload: percentiles at the bucket bounds, mean, min and max.

        Args:
            max_model_len: no length is above it, if known; else the last bucket's bound is the longest.

        Raises:
            InputError: requests lie above the last bound and nothing says how long they are.
        """
        filled = [
            (low, high, below, upto)
            for (low, below), (high, upto) in zip([(0.0, 0), *self.buckets[:-1]], self.buckets, strict=True)
            if upto > below
        ]
        top = filled[-1][1]
        if math.isinf(top) and max_model_len is None:
            raise InputError(
                "some requests are longer than the histogram's last bucket", "give --max-model-len"
            )
        most = int(min(top, max_model_len or math.inf))
        least = int(filled[0][0]) + 1
        mean = min(max(self.total_tokens / self.count, least), most)
        lengths: dict[str, Any] = {"min": min(least, most)}
        for _, high, _, upto in filled[:-1]:
            share = 100 * upto / self.count
            lengths[f"p{share:.2f}".rstrip("0").rstrip(".")] = min(int(high), most)
        return {**lengths, "max": most, "mean": round(mean, 1)}


def read_histograms(text: str, source: str, model: str | None = None) -> tuple[Histogram, Histogram]:
    """The histograms of prompts and answers, of one model.

    Args:
        text: Prometheus text.
        source: file or URL, for messages.
        model: `model_name` label; None if there is one only.

    Raises:
        InputError: no such histograms, no request in them yet, or several models and none named.
    """
    samples = _samples(text, source)
    models = sorted({labels.get("model_name", "") for _, labels, _ in samples})
    if not models:
        raise InputError(
            f"{source}: no {INPUT_HISTOGRAM} or {OUTPUT_HISTOGRAM} histogram", "is it the /metrics of vLLM?"
        )
    if model is None and len(models) > 1:
        raise InputError(f"{source}: several models: {', '.join(models)}", "name one with --model")
    if model is not None and model not in models:
        raise InputError(f"{source}: no model {model!r}", f"models: {', '.join(models)}")
    chosen = [s for s in samples if s[1].get("model_name", "") == (model or models[0])]
    found = tuple(_histogram(chosen, name, source) for name in (INPUT_HISTOGRAM, OUTPUT_HISTOGRAM))
    return found[0], found[1]


def fetch_text(url: str, api_key: str | None = None) -> str:
    """The Prometheus text of a server; `/metrics` is added to an address without a path.

    Raises:
        InputError: it does not answer with one.
    """
    import httpx

    address = url if httpx.URL(url).path not in {"", "/"} else f"{url.rstrip('/')}/metrics"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(address, headers=headers, timeout=10.0)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(f"{address}: {error or type(error).__name__}", "is the server up?") from error
    if answer.status_code != 200:
        raise InputError(
            f"{address} answered {answer.status_code}",
            "give the address of vLLM's /metrics, and --api-key if it asks for one",
        )
    return answer.text


def _samples(text: str, source: str) -> list[tuple[str, Mapping[str, str], float]]:
    """Samples of the two histograms, whatever else there is."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise MissingDependencyError(
            "reading Prometheus text needs prometheus-client", "pip install 'kvplan-tuner[tune]'"
        ) from error
    wanted = tuple(
        f"{name}_{part}"
        for name in (INPUT_HISTOGRAM, OUTPUT_HISTOGRAM)
        for part in ("bucket", "sum", "count")
    )
    # Only their lines: a metric that the parser dislikes elsewhere must not matter.
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    try:
        families: Iterable[Any] = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError as error:
        raise InputError(
            f"{source}: not Prometheus text: {error}", "save the whole answer of vLLM's /metrics"
        ) from error
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


def _histogram(samples: Sequence[tuple[str, Mapping[str, str], float]], name: str, source: str) -> Histogram:
    """One histogram, summed over engines."""
    buckets: dict[float, int] = {}
    total = 0.0
    for sample, labels, value in samples:
        if sample == f"{name}_bucket":
            bound = float(labels.get("le", "inf"))
            buckets[bound] = buckets.get(bound, 0) + int(value)
        elif sample == f"{name}_sum":
            total += value
    ordered = tuple(sorted(buckets.items()))
    if not ordered or not ordered[-1][1]:
        raise InputError(f"{source}: {name} has counted no request yet", "send it some requests first")
    return Histogram(ordered, total)
