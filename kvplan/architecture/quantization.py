"""How a quantised checkpoint keeps its linear layers: read from `quantization_config`, no files (pure).

Sources: vLLM 0.32.0 `model_executor/layers/quantization/` (auto_awq, auto_gptq, fp8, fbgemm_fp8,
compressed_tensors, modelopt, mxfp4, online) and 0.19.1 (bitsandbytes, dropped in 0.28): which parameters a
linear layer gets, and in which type.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from kvplan.architecture.module_names import NameSet
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.record import FrozenRecord
from kvplan.units import cdiv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvplan.config.version import VllmVersion

WHOLE_ROW: Final = -1
"""As `group`: one scale for all inputs of an output."""
WHOLE_TENSOR: Final = 0
"""As `group`: one scale for the whole matrix."""


class WeightFormat(NamedTuple):
    """What is kept for the weight of a linear layer: values, scales and zero points."""

    name: str
    bits: int
    group: int
    """Inputs that share a scale; `WHOLE_ROW` or `WHOLE_TENSOR`."""
    rows: int = 1
    """Outputs that share a scale (128 for block-scaled FP8)."""
    scale_bytes: int | None = None
    """Bytes of a scale; None is the model's dtype."""
    zero_bits: int = 0
    """Bits of a zero point; 0 is none."""
    symmetric: bool = False
    """Whether the zero points are all the same: some kernels drop them."""
    scales_per_scale: int = 0
    """Scales that share a float32 because they are quantised themselves (bitsandbytes); 0: they are not."""
    marlin_scales: bool = False
    """Whether Marlin, on cards without FP8 arithmetic, keeps a scale of the model's dtype for each output."""

    def sizes(self, outputs: int, inputs: int, parts: int, dtype_bytes: int) -> tuple[int, ...]:
        """Bytes of the values, the scales and the zero points of one matrix.

        Args:
            outputs: rows of the matrix on this rank.
            inputs: columns on this rank.
            parts: matrices that vLLM merged into it (q, k and v): each brings its own tensor-wide scales.
            dtype_bytes: of the model's dtype.
        """
        values = cdiv(outputs * inputs * self.bits, 8)
        scale = self.scale_bytes or dtype_bytes
        if self.group == WHOLE_TENSOR:
            return values, parts * scale
        groups = 1 if self.group == WHOLE_ROW else cdiv(inputs, self.group)
        zeros = cdiv(outputs * groups * self.zero_bits, 8)
        scales = cdiv(outputs, self.rows) * groups
        outer = 4 * cdiv(scales, self.scales_per_scale) if self.scales_per_scale else 0
        return (values, scales * scale, *(size for size in (outer, zeros) if size))


def grouped(bits: int, group: int, *, zeros: bool, name: str, symmetric: bool = False) -> WeightFormat:
    """Integers in groups: AWQ, GPTQ, packed compressed-tensors."""
    return WeightFormat(name, bits, group or WHOLE_ROW, zero_bits=bits if zeros else 0, symmetric=symmetric)


FP8_TENSOR: Final = WeightFormat(
    "FP8, one scale a tensor", 8, WHOLE_TENSOR, scale_bytes=8, marlin_scales=True
)
FP8_CHANNEL: Final = WeightFormat("FP8, one scale an output", 8, WHOLE_ROW, scale_bytes=4, marlin_scales=True)
INT8_CHANNEL: Final = WeightFormat("INT8, one scale an output", 8, WHOLE_ROW, scale_bytes=4)
MXFP4: Final = WeightFormat("MXFP4", 4, 32, scale_bytes=1)
MXFP8: Final = WeightFormat("MXFP8", 8, 32, scale_bytes=1)
NVFP4: Final = WeightFormat("NVFP4", 4, 16, scale_bytes=1)
NF4: Final = WeightFormat("bitsandbytes 4-bit", 4, 64, scale_bytes=4)
NF4_DOUBLE: Final = WeightFormat(
    "bitsandbytes 4-bit, scales in 8 bits", 4, 64, scale_bytes=1, scales_per_scale=256
)
_SCALES_DEQUANTISED: Final = (0, 9, 2)
"""From here on vLLM turns doubly quantised scales into float32 when it loads (pull request 19742)."""


def fp8_block(rows: int, columns: int, scale_bytes: int = 4) -> WeightFormat:
    """Block-scaled FP8, as DeepSeek stores it."""
    return WeightFormat(
        f"FP8, {rows} x {columns} blocks", 8, columns, rows, scale_bytes=scale_bytes, marlin_scales=True
    )


FROM_NAME: Final = "kvplan_from_name"
"""Key of a `quantization_config` that a checkpoint's name was taken to mean: nobody read its own. The value
says whether all recipes of the format leave the same layers alone (`standard`) or not (`varies`)."""


class QuantizationPlan(FrozenRecord):
    """Which linear layers are quantised and how. The first rule that names a layer decides."""

    method: str
    default: WeightFormat | None
    """For layers that no rule names; None keeps them as they are."""
    experts: WeightFormat | None
    """The same for routed experts."""
    rules: tuple[tuple[NameSet, WeightFormat | None], ...] = ()
    head: WeightFormat | None = None
    """Of the output head, which stays as it is unless the file says otherwise."""
    online: bool = False
    """Quantised by vLLM while it loads an unquantised checkpoint."""
    from_name: Literal["standard", "varies"] | None = None
    """Concluded from the checkpoint's name, see `FROM_NAME`; None: the checkpoint's own."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    def split(
        self, name: str, layers: Sequence[int] | None, *, expert: bool
    ) -> list[tuple[tuple[int, ...] | None, WeightFormat | None]]:
        """The layers of a module pattern by the format that they have."""
        fallback = self.experts if expert else self.default
        if layers is None:
            for names, rule in self.rules:
                if names.matches(name):
                    return [(None, rule)]
            return [(None, fallback)]
        rest = list(layers)
        found: list[tuple[tuple[int, ...] | None, WeightFormat | None]] = []
        for names, rule in self.rules:
            mine = names.matching_layers(name, rest)
            if mine:
                found.append((tuple(mine), rule))
                rest = [layer for layer in rest if layer not in mine]
        if rest:
            found.append((tuple(rest), fallback))
        return found


def _ignored(*lists: Sequence[str] | None) -> tuple[tuple[NameSet, WeightFormat | None], ...]:
    entries = [entry for names in lists for entry in names or ()]
    return ((NameSet(entries), None),) if entries else ()


def _awq(quant: Mapping[str, Any]) -> QuantizationPlan:
    bits = int(quant.get("bits") or quant.get("w_bit") or 4)
    group = int(quant.get("group_size") or quant.get("q_group_size") or 128)
    zeros = bool(quant.get("zero_point", True))
    name = f"AWQ, {bits} bits in groups of {group}"
    form = grouped(bits, group, zeros=zeros, name=name)
    return QuantizationPlan("awq", form, form, _ignored(quant.get("modules_to_not_convert")))


def _gptq(quant: Mapping[str, Any]) -> QuantizationPlan:
    bits, group = int(quant["bits"]), int(quant.get("group_size", -1))
    name = f"GPTQ, {bits} bits in groups of {group}"
    # The file always has zero points, also symmetric ones.
    form = grouped(bits, group, zeros=True, symmetric=quant.get("sym", True), name=name)
    rules = list(_ignored(quant.get("modules_to_not_convert")))
    for pattern, change in (quant.get("dynamic") or {}).items():
        names = NameSet([f"re:{pattern[2:] if pattern[:2] in ('+:', '-:') else pattern}"])
        if pattern.startswith("-:"):
            rules.append((names, None))
        else:
            own = grouped(
                int(change.get("bits", bits)),
                int(change.get("group_size", group)),
                zeros=True,
                symmetric=change.get("sym", quant.get("sym", True)),
                name=name,
            )
            rules.append((names, own))
    head = form if quant.get("lm_head") else None
    return QuantizationPlan("gptq", form, form, tuple(rules), head=head)


def _autoround(quant: Mapping[str, Any]) -> QuantizationPlan:
    """AutoRound: GPTQ's or AWQ's packing, with exceptions by name."""
    bits, group = int(quant["bits"]), int(quant.get("group_size", -1))
    if quant.get("data_type", "int") != "int":
        raise _unsupported(quant, f"data_type {quant['data_type']}")
    name = f"AutoRound, {bits} bits in groups of {group}"
    form = grouped(bits, group, zeros=True, symmetric=quant.get("sym", True), name=name)
    rules = []
    for key, own in (quant.get("extra_config") or {}).items():
        mine = int(own.get("bits", bits))
        size = int(own.get("group_size", group))
        other = None if mine >= 16 else grouped(mine, size, zeros=True, symmetric=True, name=name)
        rules.append((NameSet([key if not set(key) & set("*\\^$|") else f"re:{key}"]), other))
    return QuantizationPlan("auto-round", form, form, tuple(rules))


def _fp8(quant: Mapping[str, Any]) -> QuantizationPlan:
    block = quant.get("weight_block_size")
    scale_bytes = 1 if quant.get("scale_fmt") == "ue8m0" and quant.get("expert_dtype") else 4
    form = fp8_block(block[0], block[1], scale_bytes=scale_bytes) if block else FP8_TENSOR
    experts = MXFP4 if quant.get("expert_dtype") == "fp4" else form
    rules = _ignored(quant.get("ignored_layers"), quant.get("modules_to_not_convert"))
    return QuantizationPlan("fp8", form, experts, rules)


def _fbgemm(quant: Mapping[str, Any]) -> QuantizationPlan:
    rules = _ignored(quant.get("modules_to_not_convert"))
    return QuantizationPlan("fbgemm_fp8", FP8_CHANNEL, FP8_CHANNEL, rules)


def _mxfp4(quant: Mapping[str, Any]) -> QuantizationPlan:
    """gpt-oss: only the experts, whatever the list of exceptions says."""
    del quant
    return QuantizationPlan("mxfp4", None, MXFP4)


def _bitsandbytes(quant: Mapping[str, Any]) -> QuantizationPlan:
    form = NF4_DOUBLE if quant.get("scales_in_8_bits") else NF4
    if quant.get("load_in_8bit"):
        form = INT8_CHANNEL
    rules = _ignored(quant.get("llm_int8_skip_modules"))
    return QuantizationPlan("bitsandbytes", form, form, rules)


def _experts_int8(quant: Mapping[str, Any]) -> QuantizationPlan:
    del quant
    return QuantizationPlan("experts_int8", None, INT8_CHANNEL, online=True)


_ALGORITHMS: Final[Mapping[str, WeightFormat]] = {
    "FP8": FP8_TENSOR,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL,
    "FP8_PB_WO": fp8_block(128, 128),
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "NVFP4_SVD": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "MXFP8": MXFP8,
    "W4A8_MXFP4_FP8": MXFP4,
}


def _modelopt(quant: Mapping[str, Any]) -> QuantizationPlan:
    inner = quant.get("quantization") or quant
    algorithm = str(inner.get("quant_algo", "")).upper()
    ignored = _ignored(inner.get("exclude_modules"), inner.get("ignore"))
    if algorithm == "MIXED_PRECISION":
        by_format: dict[str, list[str]] = {}
        for name, own in (inner.get("quantized_layers") or {}).items():
            by_format.setdefault(str(own.get("quant_algo", "")).upper(), []).append(name)
        if not by_format:
            raise _unsupported(quant, "MIXED_PRECISION without quantized_layers")
        rules = tuple((NameSet(names), _algorithm(quant, key)) for key, names in by_format.items())
        head = next((form for names, form in rules if names.matches("lm_head")), None)
        return QuantizationPlan("modelopt", None, None, (*ignored, *rules), head=head)
    form = _algorithm(quant, algorithm)
    return QuantizationPlan("modelopt", form, form, ignored)


def _algorithm(quant: Mapping[str, Any], algorithm: str) -> WeightFormat:
    if algorithm not in _ALGORITHMS:
        raise _unsupported(quant, f"quant_algo {algorithm or 'missing'}")
    return _ALGORITHMS[algorithm]


def _compressed_tensors(quant: Mapping[str, Any]) -> QuantizationPlan:
    by_name: list[tuple[NameSet, WeightFormat | None]] = []
    default: WeightFormat | None = None
    for group in (quant.get("config_groups") or {}).values():
        if group.get("weights") is None:
            continue
        form = _scheme(quant, group)
        named = [target for target in group.get("targets") or () if target not in _CLASSES]
        if named:
            by_name.append((NameSet(named), form))
        if len(named) < len(group.get("targets") or ()):
            default = form
    if not by_name and default is None:
        raise _unsupported(quant, "no config_groups with weights")
    ignored = quant.get("ignore") or []
    head = next((form for names, form in by_name if names.matches("lm_head")), None)
    if default is not None and "lm_head" not in ignored and not NameSet(ignored).matches("lm_head"):
        head = head or default
    rules = (*_ignored(ignored), *by_name)
    return QuantizationPlan("compressed-tensors", default, default, rules, head=head)


_CLASSES: Final = frozenset({"Linear", "FusedMoE", "MoE"})


def _scheme(  # one return a scheme reads best
    quant: Mapping[str, Any], group: Mapping[str, Any]
) -> WeightFormat:
    """The format of one config group.

    Raises:
        UnsupportedModelError: a scheme without a rule.
    """
    weights = group["weights"]
    bits, kind, strategy = int(weights["num_bits"]), weights.get("type", "int"), weights.get("strategy")
    layout = str(group.get("format") or quant.get("format") or "")
    size = weights.get("group_size")
    if quant.get("sparsity_config", {}) and quant["sparsity_config"].get("format", "dense") != "dense":
        raise _unsupported(quant, f"sparsity format {quant['sparsity_config']['format']}")
    if kind == "float" and bits == 4:
        return MXFP4 if "mxfp4" in layout or size == 32 else NVFP4
    if kind == "float" and bits == 8:
        if "mxfp8" in layout:
            return MXFP8
        if strategy == "block":
            return fp8_block(*weights["block_structure"])
        if strategy in {"tensor", "channel"}:
            return FP8_TENSOR if strategy == "tensor" else FP8_CHANNEL
    if kind == "int" and "pack" in layout:
        symmetric = weights.get("symmetric", True)
        name = f"INT{bits}, packed" + (f" in groups of {size}" if size else "")
        return grouped(bits, int(size or -1), zeros=not symmetric, name=name)
    if kind == "int" and bits == 8 and strategy in {"channel", "tensor"}:
        return INT8_CHANNEL
    raise _unsupported(quant, f"{kind}{bits} weights with strategy {strategy}")


def _unsupported(quant: Mapping[str, Any], what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"no rule for quant_method {quant.get('quant_method')!r} with {what}",
        "give a folder with the safetensors files: their headers hold every size",
    )


_METHODS: Final[Mapping[str, Callable[[Mapping[str, Any]], QuantizationPlan]]] = {
    "auto-round": _autoround,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "experts_int8": _experts_int8,
    "fbgemm_fp8": _fbgemm,
    "fp8": _fp8,
    "gptq": _gptq,
    "intel/auto-round": _autoround,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
    "nvfp4": _modelopt,
}

_ONLINE: Final[Mapping[str, tuple[WeightFormat | None, WeightFormat]]] = {
    "bitsandbytes": (NF4, NF4),
    "experts_int8": (None, INT8_CHANNEL),
    "fp8": (FP8_TENSOR, FP8_TENSOR),
    "fp8_per_block": (fp8_block(128, 128), fp8_block(128, 128)),
    "fp8_per_channel": (FP8_CHANNEL, FP8_CHANNEL),
    "fp8_per_tensor": (FP8_TENSOR, FP8_TENSOR),
    "int8_per_channel_weight_only": (INT8_CHANNEL, INT8_CHANNEL),
    "mxfp8": (MXFP8, MXFP8),
    "nvfp4_per_token": (NVFP4, NVFP4),
    "ptpc_fp8": (FP8_CHANNEL, FP8_CHANNEL),
}
"""Flag values that quantise an unquantised checkpoint while it loads: (linear layers, routed experts)."""

_SAME_AS: Final[Mapping[str, str]] = {
    "auto_awq": "awq",
    "auto_gptq": "gptq",
    "awq_marlin": "awq",
    "gpt_oss_mxfp4": "mxfp4",
    "gptq_marlin": "gptq",
    "inc": "auto-round",
    "modelopt_fp4": "modelopt",
    "modelopt_mixed": "modelopt",
    "moe_wna16": "",
}
"""Flag values that choose a kernel for a checkpoint of another method's name ("" fits any)."""


def stored_quantization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The checkpoint's own `quantization_config`, wherever the config keeps it; None if unquantised."""
    text = config.get("text_config") or {}
    quant = (
        config.get("quantization_config")
        or config.get("compression_config")
        or text.get("quantization_config")
    )
    if not quant:
        return None
    if config.get("expert_dtype"):
        quant = {**quant, "expert_dtype": config["expert_dtype"]}
    return dict(quant)


def quantization_plan(
    config: Mapping[str, Any], quantization: str | None, vllm_version: VllmVersion
) -> QuantizationPlan | None:
    """How the linear layers are kept, from the checkpoint's config and the flag; None if as they are.

    Args:
        config: config.json.
        quantization: vLLM's `--quantization`, None where it was not given.
        vllm_version: decides what that version still supports.

    Raises:
        UnsupportedModelError: a method without a rule.
        InputError: a flag that this checkpoint cannot be loaded with.
    """
    quant = stored_quantization(config)
    if quant is None:
        return _online_plan(quantization, vllm_version)
    method = str(quant.get("quant_method") or ("modelopt" if "quantization" in quant else "")).lower()
    _check_version(method, vllm_version)
    if method not in _METHODS:
        known = ", ".join(sorted(_METHODS))
        raise UnsupportedModelError(
            f"no rule for quant_method {method or 'missing'!r}",
            f"known: {known}; a folder with the safetensors files gives every size",
        )
    wanted = _SAME_AS.get(quantization or "", quantization or "")
    if wanted and wanted not in {method, _SAME_AS.get(method, method)} and not _kin(wanted, method):
        raise InputError(
            f"--quantization {quantization} does not fit the checkpoint, which is {method}",
            "leave the flag out: vLLM reads the method from config.json",
        )
    if method == "bitsandbytes" and quant.get("bnb_4bit_use_double_quant"):
        quant = {**quant, "scales_in_8_bits": vllm_version < _SCALES_DEQUANTISED}
    plan = _METHODS[method](quant)
    return plan if FROM_NAME not in quant else dataclasses.replace(plan, from_name=quant[FROM_NAME])


def _kin(wanted: str, method: str) -> bool:
    """Names for the same thing: vLLM spells what a config calls modelopt as nvfp4 or fp4, and so on."""
    alike = ({"modelopt", "modelopt_fp4", "nvfp4"}, {"auto-round", "intel/auto-round"}, {"fp8", "fbgemm_fp8"})
    return any(wanted in names and method in names for names in alike)


def _online_plan(quantization: str | None, vllm_version: VllmVersion) -> QuantizationPlan | None:
    if quantization in {None, "", "none"}:
        return None
    _check_version(str(quantization), vllm_version)
    if quantization in _ONLINE:
        linear, experts = _ONLINE[quantization]
        if quantization == "bitsandbytes" and vllm_version < _SCALES_DEQUANTISED:
            # model_loader/loader.py of those versions: `quantize_4bit(..., compress_statistics=True)`.
            linear = experts = NF4_DOUBLE
        return QuantizationPlan(str(quantization), linear, experts, online=True)
    if quantization in _METHODS or quantization in _SAME_AS:
        raise InputError(
            f"--quantization {quantization} needs a checkpoint that was quantised so; this one is not",
            "leave the flag out, or choose one that vLLM applies while loading: fp8",
        )
    raise UnsupportedModelError(
        f"no rule for --quantization {quantization}", f"known: {', '.join(sorted(_ONLINE))}"
    )


def _check_version(method: str, vllm_version: VllmVersion) -> None:
    if method == "bitsandbytes" and vllm_version >= (0, 28, 0):
        raise UnsupportedModelError(
            "vLLM 0.28.0 dropped bitsandbytes", "use vLLM 0.27 or older, or another checkpoint"
        )
