"""What a judged launch comes to, in the figures that people compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.config.version import format_vllm_version
from kvplan.gate.result import Numbers

if TYPE_CHECKING:
    from kvplan.memory.estimate import Estimate


def numbers(estimate: Estimate) -> Numbers:
    """The figures of one estimate, at the expected values."""
    settings = estimate.settings
    price = estimate.gpu.usd_per_hour
    gpus = estimate.num_gpus * settings.data_parallel_size
    return Numbers(
        gpu=estimate.gpu.name,
        num_gpus=gpus,
        vllm_version=format_vllm_version(settings.vllm_version),
        max_model_len=estimate.max_model_len,
        starts=estimate.verdict.starts,
        start_probability=estimate.verdict.probability,
        kv_tokens=max(estimate.capacity.tokens.mid, 0) * settings.data_parallel_size,
        max_requests=at_once(estimate, estimate.capacity.worst_case.mid),
        headroom_bytes=headroom_bytes(estimate),
        kv_spare_bytes=estimate.budget.available_kv_bytes.mid - estimate.verdict.needed_bytes,
        usd_per_hour=None if price is None else price * gpus,
    )


def at_once(estimate: Estimate, of_memory: int) -> int:
    """Requests that run at once where memory holds `of_memory`: bounded by max_num_seqs, of all DP ranks."""
    settings = estimate.settings
    return min(max(of_memory, 0), settings.max_num_seqs) * settings.data_parallel_size


def headroom_bytes(estimate: Estimate) -> int:
    """Expected free bytes of the card beyond what vLLM plans with and what it does not count."""
    overhead = estimate.overhead
    planned = estimate.gpu.total_bytes - estimate.budget.line("unrequested").bytes.mid
    uncounted = overhead.outside_budget.mid + overhead.cuda_graphs_outside.mid
    return estimate.gpu.total_bytes - planned - uncounted
