"""vLLM's /metrics as a typed snapshot; a name or a value that is not understood is None, never an error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES: Final = 16 << 20
"""A larger answer is not vLLM's."""

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    # The second name until 0.11.
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions_total": ("vllm:num_preemptions_total",),
    # The second name 0.7 to 0.11; both count tokens.
    "prefix_cache_queries_total": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_cache_hits_total": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prompt_tokens_total": ("vllm:prompt_tokens_total",),
    "generation_tokens_total": ("vllm:generation_tokens_total",),
    "queue_time_s_total": ("vllm:request_queue_time_seconds_sum",),
    "queue_time_requests_total": ("vllm:request_queue_time_seconds_count",),
}
_LARGEST_OF_ENGINES: Final = frozenset({"kv_cache_usage"})
_CACHE_INFO: Final = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What vLLM counted since its start, and where it stands; summed over the engines of a server.

    Source: names and history from vLLM 0.6.6 to 0.32.0, engine/metrics.py and v1/metrics/loggers.py.
    """

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    """0 to 1, of the fullest engine: what requests hold. Cached blocks of finished requests count as free."""
    preemptions_total: float | None = None
    prefix_cache_queries_total: float | None = None
    """Tokens."""
    prefix_cache_hits_total: float | None = None
    """Tokens."""
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    queue_time_s_total: float | None = None
    """Seconds that requests waited before their first step; of `queue_time_requests_total` requests."""
    queue_time_requests_total: float | None = None
    cache_config: Mapping[str, str] = field(default_factory=dict)
    """Labels of cache_config_info: block_size, num_gpu_blocks, cache_dtype, kv_cache_size_tokens (0.24+) …"""

    def cache_int(self, label: str) -> int | None:
        """A whole number of cache_config_info; None if it is missing or none."""
        text = self.cache_config.get(label, "")
        return int(text) if text.isdecimal() else None


def parse_metrics(text: str) -> MetricsSnapshot:
    """The snapshot; whatever follows a line that is no Prometheus text is not read."""
    from prometheus_client.parser import text_string_to_metric_families

    wanted = {name: attribute for attribute, names in _NAMES.items() for name in names}
    values: dict[str, list[float]] = {}
    cache: dict[str, str] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _CACHE_INFO:
                    cache = dict(sample.labels)
                elif (attribute := wanted.get(sample.name)) is not None and math.isfinite(sample.value):
                    values.setdefault(attribute, []).append(sample.value)
    except (ValueError, KeyError, IndexError):
        # The parser is strict; what it had read before the garbage is good.
        pass
    combined = {
        attribute: max(found) if attribute in _LARGEST_OF_ENGINES else sum(found)
        for attribute, found in values.items()
    }
    # A sum of finite numbers may still be none: unknown, because JSON has no infinity.
    finite = {attribute: value for attribute, value in combined.items() if math.isfinite(value)}
    return MetricsSnapshot(**finite, cache_config=cache)


def scrape(base_url: str, api_key: str | None = None, timeout_s: float = 5.0) -> MetricsSnapshot | None:
    """The snapshot of a running server; None if it does not answer."""
    import httpx

    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        with (
            httpx.Client(timeout=timeout_s, trust_env=False) as client,
            client.stream("GET", f"{base_url}/metrics", headers=headers) as answer,
        ):
            if answer.status_code != 200:
                return None
            body = bytearray()
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    return None
    except (httpx.HTTPError, httpx.InvalidURL):
        return None
    return parse_metrics(body.decode("utf-8", "replace"))
