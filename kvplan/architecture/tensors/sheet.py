"""A sheet on which the families write their tensors: the words they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.architecture.tensors.spec import Place, Role, WeightTensor
from kvplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BIAS_ROLE: Final[dict[str, Role]] = {"row": "replicated", "expert_row": "expert"}
"""The bias of a layer whose inputs are divided is added once, so each rank keeps all of it."""


class Sheet:
    """Collects the tensors of one model; `at` says where the next ones are."""

    def __init__(self) -> None:
        self.tensors: list[WeightTensor] = []
        self._layers: tuple[int, ...] | None = None
        self._place: Place = "every"
        self._count = 1

    def at(self, layers: Sequence[int]) -> Sheet:
        """The next tensors are in these decoder layers."""
        self._layers, self._place, self._count = tuple(layers), "layer", 1
        return self

    def outside(self, place: Place, count: int = 1) -> Sheet:
        """The next tensors are outside the decoder layers, `count` of each (the blocks of a vision tower)."""
        self._layers, self._place, self._count = None, place, count
        return self

    def tensor(self, name: str, shape: tuple[int, ...], role: Role = "replicated", **more: Any) -> None:
        """One pattern, where the sheet is at; nothing where a dimension or the list of layers is empty."""
        if self._layers == () or 0 in shape:
            return
        where = {"layers": self._layers, "count": self._count, "place": self._place}
        self.tensors.append(WeightTensor(name, shape, role, **{**where, **more}))

    def linear(
        self,
        name: str,
        outputs: int,
        inputs: int,
        role: Role = "replicated",
        *,
        bias: bool = False,
        **more: Any,
    ) -> None:
        """A linear layer's weight, and its bias, which follows the outputs."""
        self.tensor(f"{name}.weight", (outputs, inputs), role, **{"quantizable": True, **more})
        if bias:
            module = f"{more['module']}.bias" if more.get("module") else ""
            self.tensor(
                f"{name}.bias",
                (outputs,),
                _BIAS_ROLE.get(role, role),
                **{**more, "module": module, "quantizable": False},
            )

    def fused(
        self, name: str, parts: Sequence[Part], inputs: int, *, bias: bool = False, **more: Any
    ) -> None:
        """One tensor of the checkpoint whose rows are divided in different ways, part by part."""
        module = more.pop("module", name.rsplit(".", 1)[-1])
        for outputs, role, heads in parts:
            self.linear(name, outputs, inputs, role, bias=bias, heads=heads, module=module, **more)

    def norm(self, name: str, *shape: int, bias: bool = False) -> None:
        """A normalisation's scale (and shift), held by every rank."""
        self.tensor(f"{name}.weight", shape)
        if bias:
            self.tensor(f"{name}.bias", shape)


Part = tuple[int, Role, int]
"""Outputs, how they are divided, and (for role kv) into how many heads they fall."""


def query_key_value(heads: int, kv_heads: int, head_dim: int, value_dim: int = 0) -> tuple[Part, Part, Part]:
    """The three parts of a fused attention projection."""
    return (
        (heads * head_dim, "column", 0),
        (kv_heads * head_dim, "kv", kv_heads),
        (kv_heads * (value_dim or head_dim), "kv", kv_heads),
    )


def required(config: Mapping[str, Any], *keys: str) -> Any:
    """The first of `keys` that the config gives.

    Raises:
        UnsupportedModelError: none of them is there.
    """
    for key in keys:
        if config.get(key) is not None:
            return config[key]
    names = " or ".join(keys)
    raise UnsupportedModelError(
        f"config.json of model_type {config.get('model_type')!r} has no {names}",
        "give the complete config.json, or a folder with the safetensors files",
    )


def optional(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """The config's value, or the default where it is missing or null."""
    value = config.get(key)
    return default if value is None else value


def refuse(config: Mapping[str, Any], what: str) -> UnsupportedModelError:
    """The error for a variant of a known family that has no rule."""
    return UnsupportedModelError(
        f"no rule for the weight tensors of model_type {config.get('model_type')!r} with {what}",
        "give a folder with the safetensors files: their headers hold every shape",
    )
