"""A sheet on which the families write their tensors: the words they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.spec import Place, Role, WeightTensor
from kvplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Sheet:
    """Collects the tensors of one model."""

    def __init__(self, layers: Sequence[int] = ()) -> None:
        self.tensors: list[WeightTensor] = []
        self.layers: tuple[int, ...] | None = tuple(layers)
        """The decoder layers that the next tensors are in; None for outside of them."""
        self.count = 1
        self.place: Place = "layer"

    def tensor(self, name: str, shape: tuple[int, ...], role: Role = "replicated", **more: Any) -> None:
        """One pattern, in the layers that the sheet is at."""
        if self.layers != ():
            more = {"layers": self.layers, "count": self.count, "place": self.place} | more
            self.tensors.append(WeightTensor(name, shape, role, **more))

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
        self.tensor(f"{name}.weight", (outputs, inputs), role, **{"quantizable": True} | more)
        if bias:
            module = more.get("module", "")
            bias_role: Role = {"row": "replicated", "expert_row": "expert"}.get(role, role)  # type: ignore[assignment]
            more = more | {"module": f"{module}.bias" if module else ""}
            self.tensor(f"{name}.bias", (outputs,), bias_role, **more)

    def norm(self, name: str, size: int, *, bias: bool = False) -> None:
        """A normalisation's scale (and shift), held by every rank."""
        self.tensor(f"{name}.weight", (size,))
        if bias:
            self.tensor(f"{name}.bias", (size,))

    def at(self, layers: Sequence[int] | None, *, place: Place = "layer", count: int = 1) -> Sheet:
        """The same sheet, the pen on other layers."""
        self.layers = None if layers is None else tuple(layers)
        self.place, self.count = place, count
        return self


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
        f"config.json of a {config.get('model_type', 'model without model_type')!r} has no {names}",
        "give the complete config.json, or a folder with the safetensors files",
    )


def optional(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """The config's value, or the default where it is missing or null."""
    value = config.get(key)
    return default if value is None else value
