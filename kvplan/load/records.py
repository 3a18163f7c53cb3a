"""What one load leaves: a record for each request, and how the client itself did. Seconds, tokens."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Final

_BUSY_SHARE: Final = 0.85
"""Above this share of one core the client's own work delays what it measures."""
_LATE_MS: Final = 5.0
"""A loop that is this late at its 99th percentile moves a millisecond-scale latency visibly."""
_LATE_SHARE: Final = 0.25
"""... or this share of the median gap between tokens."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server: where it is and what to say to it."""

    base_url: str
    """Without `/v1`: `http://127.0.0.1:8000`."""
    model: str
    """The served model name."""
    api_key: str | None = field(default=None, repr=False)
    verify_tls: bool = True
    ca_file: str | None = None
    """Certificates (PEM) to trust instead of the system's."""

    def at(self, path: str) -> str:
        """The address of a path of this server: `/metrics`."""
        return f"{self.base_url.rstrip('/')}{path}"

    def hide(self, text: str) -> str:
        """What the server said, without the key: some repeat it when they complain."""
        if not self.api_key:
            return text
        return text.replace(self.api_key, "***").replace(json.dumps(self.api_key)[1:-1], "***")


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that ended, well or not. Times are seconds; None is "did not happen" or "not said"."""

    number: int
    """Its place in the workload's order; -1, -2, ... for warm-up requests."""
    start_s: float
    """When it was sent, from the start of the load."""
    input_len: int
    """Prompt tokens that were sent."""
    output_len: int
    """Answer tokens that were asked for."""
    prompt_tokens: int | None = None
    """Prompt tokens that the server counted."""
    output_tokens: int | None = None
    """Answer tokens that the server counted; None too where its count cannot be true (`claimed_tokens`)."""
    ttft_s: float | None = None
    """From sending to the first chunk with a token."""
    itl_s: tuple[float, ...] = ()
    """Gaps between successive chunks with tokens."""
    e2e_s: float | None = None
    """From sending to the last chunk with a token."""
    error: str | None = None
    """Why it failed; None for an answer that came whole."""
    claimed_tokens: int | None = None
    """A count that cannot be true: more than was asked for and than chunks came, or 0 although some came."""

    @property
    def ok(self) -> bool:
        """The answer came whole."""
        return self.error is None

    @property
    def came_at_once(self) -> bool:
        """All its tokens were read at one moment, so that nothing can be said of the gaps between them."""
        return self.ttft_s is not None and self.e2e_s is not None and self.e2e_s <= self.ttft_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per answer token after the first; None where nothing can be said.

        That is for failed answers, those of one token, and those that came all at once (behind a proxy that
        collects the stream): the time between their tokens is unknown, not 0.
        """
        if self.ttft_s is None or self.e2e_s is None or not self.output_tokens or self.output_tokens < 2:
            return None
        if self.came_at_once:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON types."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """Whether the client could keep up with what it measured."""

    cpu_share: float
    """CPU time of this process over wall time while the load ran; 1.0 is one core."""
    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    """How late the event loop ran a timer: what the client may have added to a latency."""
    loop_lag_max_ms: float

    def limits(self, median_itl_ms: float | None) -> str | None:
        """Why these figures are the client's rather than the server's; None when they are the server's."""
        if self.cpu_share >= _BUSY_SHARE:
            return (
                f"the load client used {self.cpu_share:.0%} of a core: it was the bottleneck, not the server"
            )
        late = max(_LATE_MS, _LATE_SHARE * (median_itl_ms or 0.0))
        if self.loop_lag_p99_ms > late:
            return (
                f"the load client ran up to {self.loop_lag_p99_ms:.1f} ms late (P99) with "
                f"{self.cpu_share:.0%} of a core: something else kept it from its CPU"
            )
        return None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All that one load gave."""

    records: tuple[RequestRecord, ...]
    """In the order in which they ended, warm-up apart."""
    warmup_records: tuple[RequestRecord, ...]
    duration_s: float
    """From the first request's start to the last one's end, warm-up apart."""
    concurrency: int | None
    """Users of the closed loop; None where requests arrived on their own."""
    seed: int
    salt: int
    """What, beside the seed, drew the prompts: another run has other prompts, so no accidental cache hits."""
    client: ClientHealth
    steady_s: tuple[float, float] | None
    """From when every user had its first token until the first user ran out of requests; None if never."""
    all_busy_until_s: float | None = None
    """When the first user ran out of requests."""
    warmup_waves_ms: tuple[float | None, ...] = ()
    """Median time per token of each wave of the warm-up."""
    unfinished: int = 0
    """Requests that were in flight when the load was stopped; they are in no record."""
    stopped: str | None = None
    """Why the load ended before its requests did."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is; given to `on_progress` about four times a second."""

    warming_up: bool
    elapsed_s: float
    completed: int
    failed: int
    in_flight: int
    token_events: int
    """Chunks with tokens that came so far: a count of tokens unless the server bundles them."""
