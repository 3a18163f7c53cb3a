"""Launch: the record that every real start of vLLM leaves, whether it worked or not (`kvplan.launch/1`).

The journal, the calibration store and parsed logs hold the same record: one JSON line, sizes in bytes,
unknown is null.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.errors import FailureClass

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = "kvplan.launch/1"


@dataclass(frozen=True, slots=True)
class StartupFacts:
    """What vLLM printed (or the cgroup said) during one start; None where it printed nothing."""

    vllm_version: str | None = None
    attention_backend: str | None = None
    weights_bytes: int | None = None
    weights_load_s: float | None = None
    available_kv_bytes: int | None = None
    kv_cache_tokens: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    cudagraph_bytes: int | None = None
    """Actual size of the captured graphs (the last "Graph capturing finished")."""
    cudagraph_estimate_bytes: int | None = None
    activation_peak_bytes: int | None = None
    non_torch_bytes: int | None = None
    compile_s: float | None = None
    needed_bytes: int | None = None
    """Of a failure: what vLLM said it needs (KV for one request, or the requested share)."""
    available_bytes: int | None = None
    """Of a failure: what vLLM said there is."""
    estimated_max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of vLLM."""

    outcome: Literal["started", "failed"]
    settings: Mapping[str, Any]
    """The flags given to vLLM (`ServingConfig.given()`)."""
    device: Literal["cuda", "cpu"]
    model: str
    gpu: str | None = None
    gpu_total_bytes: int | None = None
    """The card, or on CPU the size of the memory cgroup that stands for it."""
    memory_limit: Literal["gpu", "cgroup", "rss", "none"] = "none"
    """What really bounds the memory: a card, a kernel-enforced cgroup, our watching the RSS, or nothing."""
    failure: FailureClass | None = None
    phase: str | None = None
    """Where it was when it failed: weights, profile, kv_cache, cudagraph, sampler, serving."""
    decisive_line: str | None = None
    exit_status: int | None = None
    oom_kill_count: int | None = None
    """The cgroup's own counter of kernel OOM kills during this launch; None without a cgroup."""
    facts: StartupFacts = field(default_factory=StartupFacts)
    ready_s: float | None = None
    """Seconds from exec to ready."""
    peak_bytes: int | None = None
    """Highest memory use seen (NVML of our processes, or cgroup / process tree RSS)."""
    log_path: str | None = None
    started_at: str | None = None
    """UTC, ISO 8601."""
    schema: str = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Launch:
        """The record back from JSON; keys that a newer kvplan added are ignored.

        Raises:
            ValueError: not a `kvplan.launch/1` record.
        """
        if record.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} record: schema is {record.get('schema')!r}")
        known = {f.name for f in dataclasses.fields(cls)}
        values = {k: v for k, v in record.items() if k in known}
        facts_known = {f.name for f in dataclasses.fields(StartupFacts)}
        values["facts"] = StartupFacts(
            **{k: v for k, v in record.get("facts", {}).items() if k in facts_known}
        )
        if values.get("failure") is not None:
            values["failure"] = FailureClass(values["failure"])
        return cls(**values)
