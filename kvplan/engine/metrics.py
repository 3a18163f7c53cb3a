"""vLLM's /metrics as a typed snapshot; a name or a value that is not understood is None, never an error."""

from __future__ import annotations

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
_MOST: Final = 10**15
"""From here on nothing that vLLM counts is meant: it is a server's fault, or somebody's joke."""
_ROUNDING: Final = 1e-6
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
        """A whole number of cache_config_info; None if it is missing, none, or one that no cache has."""
        text = self.cache_config.get(label, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)) else None


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
                elif (attribute := wanted.get(sample.name)) is not None:
                    values.setdefault(attribute, []).append(sample.value)
    except (ValueError, KeyError, IndexError):
        # The parser is strict; what it had read before the garbage is good.
        pass
    # Of several engines one that is not plausible makes the whole unknown.
    combined = {
        attribute: max(found) if attribute in _LARGEST_OF_ENGINES else sum(found)
        for attribute, found in values.items()
        if all(_is_plausible(attribute, value) for value in found)
    }
    return MetricsSnapshot(**combined, cache_config=cache)


def _is_plausible(attribute: str, value: float) -> bool:
    """Whether vLLM may have meant it: a share is one, and nothing is negative, endless or no number."""
    return 0 <= value <= (1 + _ROUNDING if attribute in _LARGEST_OF_ENGINES else _MOST)


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
