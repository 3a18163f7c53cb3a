"""What the files say beside the config: formats from safetensors headers, totals from an index (pure)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.architecture.module_names import NameSet
from kvplan.architecture.tensors.families import text_config
from kvplan.memory.weights_modules import DTYPE_BYTES
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.architecture.quantization import QuantizationPlan
    from kvplan.architecture.stored_weights import StoredWeights
    from kvplan.architecture.tensors import WeightTensor

_STORED_BYTES: Final = {
    "BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I8": 1, "U8": 1, "I16": 2, "I32": 4, "I64": 8, "BOOL": 1,
}  # fmt: skip
_CLOSE: Final = 0.001
"""Share of the file that may differ without a word: buffers, scalar scales, headers counted in."""


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """How the files agree with the config's arithmetic."""

    source: Literal["config", "index", "safetensors", "profile"]
    notes: tuple[str, ...] = ()
    unexplained: int = 0
    """Bytes of the files that nothing accounts for; negative where the arithmetic has more."""


def header_plan(plan: QuantizationPlan | None, stored: StoredWeights) -> QuantizationPlan | None:
    """The plan, corrected by the headers: a weight stored in 16 or 32 bits is not quantised."""
    if plan is None or plan.online or stored.tensors is None:
        return plan
    plain = [
        name.removesuffix(".weight")
        for name, (dtype, shape) in stored.tensors.items()
        if name.endswith(".weight") and dtype in {"BF16", "F16", "F32"} and len(shape) > 1
    ]
    return dataclasses.replace(plan, rules=((NameSet(plain), None), *plan.rules)) if plain else plan


def compare_with_stored(
    config: Mapping[str, Any],
    tensors: Sequence[WeightTensor],
    plan: QuantizationPlan | None,
    stored: StoredWeights | None,
    dtype: str,
) -> StoredVerdict:
    """Whether the files hold what the config's arithmetic says, and what they hold besides."""
    if stored is None:
        return StoredVerdict("config")
    source = stored.kind
    if plan is not None and not plan.online:
        return StoredVerdict(source)
    notes: list[str] = []
    counted = sum(t.elements for t in tensors if t.stored)
    expected = sum(t.elements * _file_bytes(t, 2) for t in tensors if t.stored)
    total = stored.total_bytes
    wide = sum(t.elements * 4 for t in tensors if t.stored)
    if abs(total - wide) < abs(total - expected) and DTYPE_BYTES[dtype] == 2:
        notes.append(f"float32 files ({format_gib(total)}) loaded as {dtype}")
        expected = wide
    elif DTYPE_BYTES[dtype] == 4 and abs(total - expected) < abs(total - wide):
        notes.append(f"16-bit files ({format_gib(total)}) loaded as float32")
    width = expected / counted
    rest = total - expected
    for what, elements in _not_loaded(config, tensors):
        size = round(elements * width)
        if size and abs(rest - size) <= max(_CLOSE * size, _CLOSE * expected):
            notes.append(f"{what} in the files: not loaded ({format_gib(size)})")
            rest -= size
            break
    if abs(rest) <= _CLOSE * expected:
        return StoredVerdict(source, tuple(notes))
    notes.append(
        f"the files hold {format_gib(abs(rest))} {'more' if rest > 0 else 'less'} than the config's tensors;"
        " the interval admits it"
    )
    return StoredVerdict(source, tuple(notes), unexplained=rest)


def _file_bytes(tensor: WeightTensor, width: int) -> int:
    """Bytes a value in a 16-bit checkpoint: what vLLM keeps in float32 is mostly stored so too."""
    return DTYPE_BYTES[tensor.dtype] if tensor.dtype == "int32" else width


def _not_loaded(config: Mapping[str, Any], tensors: Sequence[WeightTensor]) -> list[tuple[str, int]]:
    """What a file may hold that vLLM does not load, with its number of values."""
    text = text_config(config)
    vocabulary = next(
        (t for t in tensors if t.role == "vocab" and t.place in {"ends", "every", "first"}), None
    )
    one = vocabulary.elements if vocabulary else 0
    tied = not any(
        t.role == "vocab" and t.name.endswith(("lm_head.weight", "output.weight")) for t in tensors
    )
    found = [("tied head repeated", one)] if tied else []
    layers = next((int(text[key]) for key in _MTP_KEYS if text.get(key)), 0)
    last = max((max(t.layers) for t in tensors if t.layers), default=-1)
    layer = sum(math.prod(t.shape) * t.count for t in tensors if t.layers and last in t.layers)
    hidden = text.get("hidden_size") or 0
    if layers:
        # One more decoder layer, the projection that joins two hidden states, three norms.
        module = layers * (layer + 2 * hidden * hidden + 3 * hidden)
        found += [("multi-token prediction layer", module + copies * one) for copies in (0, 1, 2)]
    return found


_MTP_KEYS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
