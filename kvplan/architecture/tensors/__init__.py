"""The weight tensors of a model, from its config.json alone (pure).

`weight_tensors` gives every tensor that vLLM loads: names as in the checkpoint, shapes, how often, and how
tensor, pipeline and expert parallelism divide it. `kvplan.memory.weights` turns that into bytes of a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.architecture.tensors import dense
from kvplan.architecture.tensors.sheet import Sheet
from kvplan.architecture.tensors.spec import Place, Role, WeightTensor
from kvplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Place", "Role", "WeightTensor", "weight_tensors"]

_FAMILIES: Final[dict[str, Callable[[Sheet, Mapping[str, Any]], None]]] = {
    "llama": dense.llama,
    "mistral": dense.llama,
    "granite": dense.llama,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
}


def weight_tensors(config: Mapping[str, Any]) -> tuple[WeightTensor, ...]:
    """Every weight tensor that vLLM loads for the model of this config.json, unquantised.

    Raises:
        UnsupportedModelError: a family without a rule, or a config that lacks a field the rule needs.
    """
    model_type = config.get("model_type")
    family = _FAMILIES.get(str(model_type))
    if family is None:
        raise UnsupportedModelError(
            f"no rule for the weight tensors of model_type {model_type!r}",
            "give a folder with the safetensors files: their headers hold every shape",
        )
    sheet = Sheet()
    family(sheet, config)
    return tuple(sheet.tensors)
