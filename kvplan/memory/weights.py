"""Bytes of model weights on each GPU, as vLLM loads them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.architecture.tensors import WeightTensor, weight_tensors
from kvplan.errors import UnsupportedModelError
from kvplan.memory.interval import Interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.architecture.stored_weights import StoredWeights
    from kvplan.config.version import VllmVersion

_BYTES: Final = {"bfloat16": 2, "float16": 2, "half": 2, "auto": 2, "float32": 4, "float": 4}


@dataclass(frozen=True, slots=True)
class WeightsPerGpu:
    """What the weights take on one GPU. Sizes in bytes."""

    bytes: Interval
    """Of the heaviest pipeline stage and rank."""
    per_stage: tuple[Interval, ...]
    parameters: int | None
    """Of the whole model as published, None where a quantised file hides it."""
    exact: bool
    source: Literal["config", "index", "safetensors", "profile", "estimate"]
    explanation: str
    notes: tuple[str, ...] = ()
    allocated: Interval = Interval(0, 0, 0)
    """What loading leaves allocated on the fullest GPU, as in vLLM's "Model loading took": the weights, their
    buffers (rotary tables), and what the CUDA allocator rounds up."""


def stage_layers(layers: int, pipeline_parallel_size: int) -> tuple[int, ...]:
    """How many decoder layers each pipeline stage runs; the remainder goes to the stages before the last.

    Source: vLLM 0.32.0 `distributed/utils.py::get_pp_indices`.
    """
    stages = [layers // pipeline_parallel_size] * pipeline_parallel_size
    for i in range(2, layers % pipeline_parallel_size + 2):
        stages[-i] += 1
    return tuple(stages)


def _held(tensor: WeightTensor, first: int, end: int, stage: int, stages: int) -> int:
    """How many tensors of this pattern one pipeline stage holds."""
    if tensor.layers is not None:
        return tensor.count * sum(first <= layer < end for layer in tensor.layers)
    at_first, at_last = stage == 0, stage == stages - 1
    here = {"first": at_first, "last": at_last, "ends": at_first or at_last}.get(tensor.place, True)
    return tensor.count * here


def _stage_bytes(
    tensors: Sequence[WeightTensor],
    dtype_bytes: int,
    tp: int,
    window: tuple[int, int],
    stage: tuple[int, int],
) -> int:
    return sum(
        _held(t, *window, *stage)
        * math.prod(t.local_shape(tp))
        * (_BYTES[t.dtype] if t.dtype else dtype_bytes)
        for t in tensors
    )


def weights_per_gpu(
    config: Mapping[str, Any],
    stored: StoredWeights | None,  # noqa: ARG001  # read in the next step
    *,
    dtype: str,
    quantization: str | None,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    enable_expert_parallel: bool = False,  # noqa: ARG001  # read in the next step
    data_parallel_size: int = 1,  # noqa: ARG001  # read in the next step
    cpu_offload_bytes: int = 0,  # noqa: ARG001  # read in the next step
    vllm_version: VllmVersion,  # noqa: ARG001  # read in the next step
) -> WeightsPerGpu:
    """Weight bytes per GPU.

    Raises:
        UnsupportedModelError: no rule for the model's tensors or for its quantisation.
    """
    if quantization is not None or config.get("quantization_config"):
        raise UnsupportedModelError("quantised weights are not computed yet")
    tensors = weight_tensors(config)
    parameters = sum(t.elements for t in tensors)
    layers = max((max(t.layers) + 1 for t in tensors if t.layers), default=0)
    stages = stage_layers(layers, pipeline_parallel_size)
    starts = [sum(stages[:i]) for i in range(len(stages))]
    sizes = [
        _stage_bytes(
            tensors,
            _BYTES[dtype],
            tensor_parallel_size,
            (start, start + size),
            (i, pipeline_parallel_size),
        )
        for i, (start, size) in enumerate(zip(starts, stages, strict=True))
    ]
    per_stage = tuple(Interval.exactly(size) for size in sizes)
    return WeightsPerGpu(
        bytes=max(per_stage, key=lambda stage: stage.mid),
        per_stage=per_stage,
        parameters=parameters,
        exact=True,
        source="config",
        explanation=f"{parameters:,} parameters x {_BYTES[dtype]} B over {tensor_parallel_size}"
        f" x {pipeline_parallel_size} GPUs = {max(sizes):,} B on the fullest",
        allocated=Interval.exactly(max(sizes)),
    )
