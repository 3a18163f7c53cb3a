"""Weights of a family without a rule, from safetensors headers alone (pure).

The headers give every size and dtype; what they do not give is how vLLM would divide the tensors. On one GPU
the answer is exact, on several an interval: between everything divided and nothing.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from kvplan.memory.interval import Interval
from kvplan.memory.weights_modules import DTYPE_BYTES
from kvplan.record import FrozenRecord
from kvplan.units import cdiv

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.stored_weights import StoredWeights

_FLOATS: Final = {"BF16", "F16", "F32", "F64"}
_SIZES: Final = {"BOOL": 1, "I8": 1, "U8": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8}
_KEPT: Final = r"scale|A_log|correction_bias"
"""Small tensors that vLLM keeps in the dtype of the file."""
_NOT_LOADED: Final = r"(^|\.)(mtp|nextn)\b|rotary_emb|inv_freq|masked_bias"
_LAYER: Final = r"\b(?:layers|h|blocks)\.(\d+)\."
_WHOLE_ALLOCATION: Final = 1.02
"""Rotary tables and whole allocator blocks were at most this much on measured starts (docs/weights.md)."""


class HeaderWeights(FrozenRecord):
    """Bytes of each pipeline stage on one rank."""

    per_stage: tuple[Interval, ...]
    allocated_per_stage: tuple[Interval, ...]
    parameters: int | None
    notes: tuple[str, ...]


def weights_from_headers(
    config: Mapping[str, Any],
    stored: StoredWeights,
    *,
    dtype: str,
    tensor_parallel_size: int,
    stages: tuple[int, ...],
) -> HeaderWeights:
    """Bytes per GPU from the headers.

    Args:
        config: config.json, for the number of layers and tied embeddings.
        stored: the headers.
        dtype: what floating-point tensors become.
        tensor_parallel_size: ranks that divide each layer.
        stages: decoder layers of each pipeline stage.
    """
    text = config.get("text_config") or config
    layers = int(text.get("num_hidden_layers") or sum(stages))
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    whole = [0] * len(stages)
    divided = [0] * len(stages)
    notes: list[str] = []
    integers = False
    parameters = 0
    for name, (kind, shape) in (stored.tensors or {}).items():
        if not _is_loaded(name, layers, tied=tied):
            notes.append(f"{name} in the files: not loaded")
            continue
        size = math.prod(shape) * _loaded_bytes(name, kind, dtype)
        integers = integers or kind not in _FLOATS
        parameters += math.prod(shape)
        share = cdiv(size, tensor_parallel_size) if len(shape) > 1 else size
        for stage in _stages_of(name, stages):
            whole[stage] += size
            divided[stage] += share
    low = [cdiv(size, tensor_parallel_size) for size in whole]
    per_stage = tuple(Interval(a, b, c) for a, b, c in zip(low, divided, whole, strict=True))
    allocated = tuple(
        Interval(stage.low, stage.mid, int(stage.high * _WHOLE_ALLOCATION)) for stage in per_stage
    )
    if len(notes) > _FEW:
        notes = [f"{len(notes)} tensors of the files are not loaded, {notes[0].split()[0]} first"]
    if tensor_parallel_size > 1 or len(stages) > 1:
        notes.append("no rule says how vLLM divides this family: the interval spans all or nothing")
    return HeaderWeights(per_stage, allocated, None if integers else parameters, tuple(notes))


_FEW: Final = 3


def _is_loaded(name: str, layers: int, *, tied: bool) -> bool:
    layer = re.search(_LAYER, name)
    beyond = layer is not None and "vis" not in name and int(layer[1]) >= layers
    head = tied and name.endswith("lm_head.weight")
    return not (beyond or head or re.search(_NOT_LOADED, name))


def _loaded_bytes(name: str, kind: str, dtype: str) -> int:
    if kind in _FLOATS and not re.search(_KEPT, name):
        return DTYPE_BYTES[dtype]
    if kind in _FLOATS:
        return {"F32": 4, "F64": 8}.get(kind, 2)
    return _SIZES.get(kind, 1)


def _stages_of(name: str, stages: tuple[int, ...]) -> list[int]:
    """The stages that hold a tensor: its layer's, or (embeddings, heads, towers) all of them."""
    layer = re.search(_LAYER, name)
    if layer is None or "vis" in name:
        return list(range(len(stages)))
    end = 0
    for stage, count in enumerate(stages):
        end += count
        if int(layer[1]) < end:
            return [stage]
    return [len(stages) - 1]
