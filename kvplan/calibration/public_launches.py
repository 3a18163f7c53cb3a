"""Launches that others measured and published: one JSON line each, read into what the fit needs.

The file in the repository is tests/data/launches.jsonl; any file of the same keys will do.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.serving import ServingConfig
from kvplan.errors import FailureClass, InputError
from kvplan.foreign import read_text
from kvplan.units import bytes_from_gib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FLAGS: Final = {
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_dtype": "kv_cache_dtype",
    "block_size": "block_size",
    "enforce_eager": "enforce_eager",
    "kv_cache_memory_bytes": "kv_cache_memory_bytes",
    "dtype": "dtype",
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
}
_NOT_VLLM_ALONE: Final = re.compile(r"\bfork\b|vgpu|other process|shared[ _]card", re.IGNORECASE)
_ODD: Final = re.compile(
    r"split_does_not_add_up|one_rank_of_several|peak_includes_weights|weights_offloaded|multi_node|\bwsl\b"
)
MEMORY_FAILURES: Final = frozenset(
    {
        FailureClass.KV_TOO_SMALL,
        FailureClass.NO_KV_MEMORY,
        FailureClass.OOM_WEIGHTS,
        FailureClass.OOM_PROFILE,
        FailureClass.OOM_CUDAGRAPH,
        FailureClass.OOM_SAMPLER,
    }
)


@dataclass(frozen=True, slots=True)
class PublicLaunch:
    """One published launch. Sizes in bytes per GPU, None where nothing was printed."""

    id: str
    source: str
    """Launches of one post or one measuring project share it."""
    url: str
    model: str | None
    gpu: str | None
    vllm_version: str | None
    vllm_inferred: str | None
    """A release of the same rules, where only the time and the figures say which it was."""
    engine: str
    """`V0` or `V1`, as it ran."""
    serving: ServingConfig
    quantization: str | None
    flags_complete: bool
    outcome: str
    failure: str | None
    gpu_total_bytes: int | None
    weights_bytes: int | None
    activation_bytes: int | None
    non_torch_bytes: int | None
    cudagraph_bytes: int | None
    cudagraph_estimate_bytes: int | None
    kv_cache_bytes: int | None
    free_at_start_bytes: int | None
    """Of the first snapshot: the card less the CUDA context and what was made before it."""
    other_flags: str
    remarks: str
    why_outside: str | None
    """Why the model misses it, where that was found out."""

    @property
    def is_fit_material(self) -> bool:
        """Its figures are of the launch described: whole command, default engine, alone, and they add up."""
        version = self.vllm_version or self.vllm_inferred or ""
        if (self.engine == "V0") != version.startswith(("0.6", "0.7")):
            return False
        return (
            self.flags_complete and not _NOT_VLLM_ALONE.search(self.remarks) and not _ODD.search(self.remarks)
        )

    @property
    def is_usable(self) -> bool:
        """Named model and card, whole command, a release's accounting, vLLM alone on the card."""
        named = bool(self.model and self.gpu and not self.gpu.startswith("unnamed"))
        complete = self.flags_complete and (self.vllm_version or "")[:1].isdigit()
        if not (named and complete) or _NOT_VLLM_ALONE.search(self.remarks):
            return False
        if self.outcome == "failed":
            return self.failure in MEMORY_FAILURES
        return self.kv_cache_bytes is not None


def read_public_launches(path: Path) -> tuple[PublicLaunch, ...]:
    """Every launch of a file.

    Raises:
        InputError: no such file, or a line that is not a launch.
    """
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError as error:
        raise InputError(f"{path} cannot be read: no such file", "give --launches FILE") from error
    launches = []
    for number, line in enumerate(lines, 1):
        try:
            launches.append(_launch(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}:{number}: not a launch: {error}",
                "one JSON object a line, keys as in docs/calibration.md",
            ) from error
    return tuple(launches)


def _launch(record: Mapping[str, Any]) -> PublicLaunch:
    remarks = record.get("remarks") or ()
    return PublicLaunch(
        id=record["id"],
        source=record.get("source", record["id"]),
        url=record.get("url", ""),
        model=record.get("model"),
        gpu=record.get("gpu"),
        vllm_version=record.get("vllm"),
        vllm_inferred=record.get("vllm_inferred"),
        engine=record.get("engine", "V1"),
        serving=ServingConfig(
            **{flag: record[key] for key, flag in _FLAGS.items() if record.get(key) is not None}
        ),
        quantization=record.get("quantization"),
        flags_complete=bool(record.get("flags_complete")),
        outcome=record["outcome"],
        failure=record.get("failure"),
        gpu_total_bytes=_bytes(record, "gpu_total_gib"),
        weights_bytes=_bytes(record, "weights_gib"),
        activation_bytes=_tightest_stage_peak(record),
        non_torch_bytes=_bytes(record, "non_torch_gib"),
        cudagraph_bytes=_bytes(record, "cudagraph_gib"),
        cudagraph_estimate_bytes=_bytes(record, "cudagraph_estimate_gib"),
        kv_cache_bytes=_bytes(record, "kv_cache_gib"),
        free_at_start_bytes=_bytes(record, "free_at_start_gib"),
        other_flags=record.get("other_flags") or "",
        why_outside=record.get("why_outside"),
        remarks=" ".join(remarks) if isinstance(remarks, list) else f"{remarks} {record.get('notes', '')}",
    )


def _bytes(record: Mapping[str, Any], key: str) -> int | None:
    value = record.get(key)
    return None if value is None else bytes_from_gib(value)


def _tightest_stage_peak(record: Mapping[str, Any]) -> int | None:
    """Of pipeline stages the last, which samples, is the tightest; the headline figure is the first's."""
    stages = record.get("stage_peak_gib")
    return bytes_from_gib(max(stages)) if stages else _bytes(record, "activation_peak_gib")
