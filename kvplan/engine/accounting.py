"""vLLM's memory share on a CPU "card": the arithmetic that vLLM does on a GPU, on a fixed size.

On CPU vLLM takes `gpu_memory_utilization` of the NUMA node's total memory (0.32.0
v1/worker/cpu_worker.py), which is neither the size of our cgroup nor even constant: within an hour 8.2 to
12.0 GiB were seen for the same node of a virtual machine. So the share is applied here to the card that
`--gpu-memory-gib` names, by vLLM's own rule for GPUs (v1/worker/gpu_worker.py::determine_available_memory),
and the result is given to vLLM as `--kv-cache-memory-bytes`, which it takes as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.engine.server import Engine


def cpu_kv_bytes(card_bytes: int, utilization: float, non_kv_bytes: int) -> int:
    """KV cache that vLLM would take of a card of this size: ceil(card x utilization) - non-KV memory.

    Args:
        card_bytes: The card.
        utilization: gpu_memory_utilization, 0 to 1.
        non_kv_bytes: What vLLM's processes use without the KV cache, from `measure_non_kv`.

    Returns:
        Bytes; zero or negative where the share does not even hold the rest (vLLM refuses to start then).

    Source: vLLM 0.32.0 v1/worker/utils.py::request_memory (the ceiling), v1/worker/gpu_worker.py.
    """
    return math.ceil(card_bytes * utilization) - non_kv_bytes


def utilization_of(card_bytes: int, kv_bytes: int, non_kv_bytes: int) -> float:
    """The utilisation at which `cpu_kv_bytes` gives this KV cache."""
    return (kv_bytes + non_kv_bytes) / card_bytes


@dataclass(frozen=True, slots=True)
class NonKvMemory:
    """Memory of vLLM's processes without the KV cache, measured at one launch."""

    ready_bytes: int
    """When it had just become ready."""
    peak_bytes: int
    """The highest sample so far. Imports and warm-up can need more than serving does."""


def measure_non_kv(engine: Engine) -> NonKvMemory | None:
    """Non-KV memory of a running CPU launch: what its cgroup or process tree holds, less its KV cache.

    vLLM fills the KV cache with zeros at start (0.32.0), so all of it is resident when the server is ready.

    Returns:
        The measurement, or None where memory can't be sampled or vLLM did not say how large its KV cache is.
    """
    settings = engine.plan.settings
    kv_bytes_per_worker = settings.kv_cache_memory_bytes or engine.launch.facts.available_kv_bytes
    used, peak = engine.used_bytes(), engine.peak_bytes()
    if kv_bytes_per_worker is None or used is None:
        return None
    num_workers = (settings.tensor_parallel_size or 1) * (settings.pipeline_parallel_size or 1)
    kv_bytes = kv_bytes_per_worker * num_workers
    return NonKvMemory(used - kv_bytes, max(used, peak or 0) - kv_bytes)
