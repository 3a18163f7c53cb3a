"""CUDA-graph memory: how many graphs, over how many layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.memory.overhead.hardware_facts import is_hopper_or_newer_datacentre
from kvplan.units import GIB, cdiv

if TYPE_CHECKING:
    from kvplan.memory.overhead.coefficients import Coefficients
    from kvplan.memory.overhead.eras import Era
    from kvplan.memory.overhead.inputs import OverheadInputs


def largest_captured(facts: OverheadInputs) -> int:
    """The largest batch that is captured.

    Source: vLLM 0.32.0 config/vllm.py::_set_cudagraph_sizes.
    """
    if facts.vllm_version < (0, 8, 0):
        return min(facts.max_num_seqs, 256)
    ceiling = 1024 if facts.architecture == "GptOssForCausalLM" else 512
    decode_tokens = 1 + facts.num_speculative_tokens
    return min(2 * facts.max_num_seqs * decode_tokens, ceiling, facts.max_num_batched_tokens)


def captured_sizes(facts: OverheadInputs, largest: int | None = None) -> int:
    """How many batch sizes are captured: 1, 2, 4, then steps of 8 to 256, then of 16.

    Args:
        facts: the launch.
        largest: the largest batch; default: the launch's own.

    Source: as above; before 0.12 steps of 8 all the way (67 to 512), V0 the same to 256 (35).
    """
    version = facts.vllm_version
    if largest is None:
        largest = largest_captured(facts)
    small = sum(size <= largest for size in (1, 2, 4))
    if version < (0, 12, 0):
        return small + largest // 8
    return small + min(largest, 248) // 8 + max(0, (largest - 256) // 16 + 1 if largest >= 256 else 0)


def captured_graphs(facts: OverheadInputs) -> int:
    """Piecewise graphs, and from 0.11 beside them full ones for batches that only decode.

    Source: vLLM 0.23.0 prints "PIECEWISE=51 (largest=512), FULL=35 (largest=256)" for 256 sequences.
    """
    piecewise = captured_sizes(facts)
    if facts.vllm_version < (0, 11, 0):
        return piecewise
    decode = facts.max_num_seqs * (1 + facts.num_speculative_tokens)
    return piecewise + captured_sizes(facts, min(largest_captured(facts), decode))


def graph_bytes(facts: OverheadInputs, era: Era, fitted: Coefficients) -> int:
    """Memory that the captured graphs keep on one GPU."""
    if not era.graphs_captured:
        return 0
    layers = cdiv(facts.num_layers, facts.pipeline_parallel_size)
    weight = fitted.graph_experts_factor if facts.moe is not None else 1.0
    nodes = layers * weight * captured_graphs(facts)
    start = fitted.graph_pool_gib + (fitted.graph_hopper_gib if is_hopper_or_newer_datacentre(facts) else 0.0)
    rows = fitted.graph_rows_per_layer * layers * largest_captured(facts)
    kept = rows * facts.hidden_size * facts.dtype_bytes
    return round(start * GIB + fitted.graph_kib_per_layer * 1024 * nodes + kept)
