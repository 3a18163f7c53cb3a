"""WeightTensor: one kind of weight tensor of a model, and how vLLM divides it over ranks and stages."""

from __future__ import annotations

import math
from typing import Literal

from kvplan.record import FrozenRecord
from kvplan.units import cdiv, round_up

Role = Literal["column", "row", "vocab", "kv", "replicated", "expert", "expert_column", "expert_row"]
"""How tensor parallelism divides a tensor.

column: along its first axis. row: along its last. vocab: along its first, padded to a multiple of 64.
kv: along its first in whole heads, which are replicated once there are more ranks than heads.
replicated: every rank holds it. expert*: one of many experts, whole (or its rows, or its columns) under
tensor parallelism; under expert parallelism whole experts are divided instead.
"""

Place = Literal["layer", "first", "last", "ends", "every"]
"""Which pipeline stages hold a tensor: those of its layers, the first, the last, both ends, all."""

VOCAB_PADDING = 64
"""vLLM 0.32.0 `model_executor/layers/vocab_parallel_embedding.py::DEFAULT_VOCAB_PADDING_SIZE`."""


class WeightTensor(FrozenRecord):
    """Tensors of one name pattern and shape, in all the layers that have them."""

    name: str
    """As in the checkpoint; `{layer}`, `{expert}` and `{block}` stand for numbers."""
    shape: tuple[int, ...]
    """Of one tensor: (out features, in features) for a matrix."""
    role: Role = "replicated"
    layers: tuple[int, ...] | None = None
    """The decoder layers that hold it; None for what is in no decoder layer."""
    count: int = 1
    """How many a layer (experts), or how many in all where there are no decoder layers."""
    place: Place = "layer"
    quantizable: bool = False
    """Whether it is the weight of a linear layer that a quantised checkpoint may store in fewer bits."""
    dtype: str | None = None
    """None is the model's dtype; a name where vLLM keeps another one."""
    heads: int = 0
    """For role kv: into how many heads (or groups) its first axis falls."""
    stored: bool = True
    """False for a second copy that vLLM makes of a stored tensor (V where K and V are the same)."""
    module: str = ""
    """The layer's parameter in vLLM that it becomes part of: same name, one allocation (`qkv_proj`)."""

    @property
    def elements(self) -> int:
        """Values in all the tensors of this pattern in the whole model, undivided."""
        return math.prod(self.shape) * self.total

    @property
    def total(self) -> int:
        """How many tensors of this pattern the whole model has."""
        return self.count * (len(self.layers) if self.layers is not None else 1)

    def local_shape(self, tensor_parallel_size: int) -> tuple[int, ...]:
        """The shape that one tensor-parallel rank holds (expert parallelism off).

        Source: vLLM 0.32.0 `model_executor/layers/linear.py` (Column-, Row-, QKVParallelLinear) and
        `vocab_parallel_embedding.py::VocabParallelEmbedding`.
        """
        tp = tensor_parallel_size
        first, *rest = self.shape
        match self.role:
            case "column" | "expert_column":
                return (cdiv(first, tp), *rest)
            case "row" | "expert_row":
                return (*self.shape[:-1], cdiv(self.shape[-1], tp))
            case "vocab":
                return (cdiv(round_up(first, VOCAB_PADDING), tp), *rest)
            case "kv":
                return (first // self.heads * max(1, cdiv(self.heads, tp)), *rest)
            case _:
                return self.shape
