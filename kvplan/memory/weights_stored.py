"""What the files say beside the config: formats from safetensors headers, totals from an index (pure)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.architecture.module_names import NameSet
from kvplan.architecture.tensors.families import text_config
from kvplan.memory.weights_modules import DTYPE_BYTES, Rank, merged_tensors, rank_modules
from kvplan.record import FrozenRecord
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.architecture.quantization import QuantizationPlan
    from kvplan.architecture.stored_weights import StoredWeights
    from kvplan.architecture.tensors import WeightTensor

_CLOSE: Final = 0.001
"""Share of the file that may differ without a word: buffers, scalar scales, headers counted in."""


class StoredVerdict(FrozenRecord):
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
    notes: list[str] = []
    loaded = [t for t in tensors if t.stored]
    expected = _file_bytes(loaded, plan)
    total = stored.total_bytes
    scale = 1
    if plan is None or plan.online:
        wide = 2 * expected
        if abs(total - wide) < abs(total - expected):
            scale, expected = 2, wide
            if DTYPE_BYTES[dtype] == 2:
                notes.append(f"float32 files ({format_gib(total)}) loaded as {dtype}")
        elif DTYPE_BYTES[dtype] == 4:
            notes.append(f"16-bit files ({format_gib(total)}) loaded as float32")
    rest = total - expected
    for what, bytes_in_file in _not_loaded(config, tensors, plan):
        size = scale * bytes_in_file
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


def _file_bytes(tensors: Sequence[WeightTensor], plan: QuantizationPlan | None) -> int:
    """Bytes of these tensors in a checkpoint of 16-bit values, quantised layers in their file's layout."""
    if plan is None or plan.online:
        return sum(t.elements * (DTYPE_BYTES["int32"] if t.dtype == "int32" else 2) for t in tensors)
    merged = merged_tensors(tensors, plan)
    modules = rank_modules(merged, _WHOLE)
    size = sum(m.created * m.copies * (1 if m.layers is None else len(m.layers)) for m in modules)
    if plan.method == "gptq":
        # g_idx, an int32 for each input of each matrix: stored, and dropped or never made by vLLM.
        packed = [one for one in merged if one.form is not None]
        size += sum(
            4 * tensor.shape[-1] * tensor.count * len(one.layers or (0,))
            for one in packed
            for tensor in one.parts
        )
    return size


def _not_loaded(
    config: Mapping[str, Any], tensors: Sequence[WeightTensor], plan: QuantizationPlan | None
) -> list[tuple[str, int]]:
    """What a file may hold that vLLM does not load, with its bytes."""
    text = text_config(config)
    first = next((t for t in tensors if t.role == "vocab" and t.place in {"ends", "every", "first"}), None)
    one = 2 * first.elements if first else 0
    tied = not any(
        t.role == "vocab" and t.name.endswith(("lm_head.weight", "output.weight")) for t in tensors
    )
    found = [("tied head repeated", one)] if tied else []
    default = 1 if text.get("model_type") in _MTP_FAMILIES else 0
    layers = next((int(text[key]) for key in _MTP_KEYS if text.get(key)), default)
    if layers:
        # One more of the last decoder layer, the projection that joins two hidden states, three norms.
        last = max((max(t.layers) for t in tensors if t.layers), default=-1)
        layer = [dataclasses.replace(t, layers=(last,)) for t in tensors if t.layers and last in t.layers]
        hidden = text.get("hidden_size") or 0
        joins = 2 * (2 * hidden * hidden + 3 * hidden)
        sizes = {_file_bytes(layer, plan), _file_bytes(layer, None)}
        found += [
            ("multi-token prediction layer", layers * (size + joins) + copies * one)
            for size in sorted(sizes)
            for copies in (0, 1, 2)
        ]
    return found


_MTP_KEYS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_MTP_FAMILIES: Final = frozenset({"deepseek_v3", "deepseek_v32", "glm4_moe", "qwen3_next"})
"""Families whose files have such a layer although the config may not say."""
_WHOLE: Final = Rank(1, 1, False, 2, (9, 0), (0, 32, 0))  # noqa: FBT003  # no expert parallelism
