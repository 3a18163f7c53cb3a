"""The weight tensors of a model, from its config.json alone (pure).

`weight_tensors` gives every tensor that vLLM loads: names as in the checkpoint, shapes, how often, and how
tensor, pipeline and expert parallelism divide it. `kvplan.memory.weights` turns that into bytes of a GPU.
"""

from __future__ import annotations

from kvplan.architecture.tensors.families import weight_tensors
from kvplan.architecture.tensors.spec import Place, Role, WeightTensor

__all__ = ["Place", "Role", "WeightTensor", "weight_tensors"]
