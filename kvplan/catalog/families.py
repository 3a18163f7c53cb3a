"""Renamed and quantised checkpoints: whose geometry they have, said by the name alone.

Most checkpoints on the hub are copies or quantisations of a few hundred models and keep the model's whole
name. A name is taken for a known model only if it equals that model's name word for word once the
organisation and a known quantisation suffix are gone: another size, generation or variant is another model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.catalog.names import model_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NOT_LINEAR: Final = [
    "lm_head",
    "re:.*(vision|visual).*",
    "re:.*multi_modal_projector.*",
    "re:.*mlp\\.gate$",
]
"""What the usual recipes leave as it is: the head, vision towers, the router of a mixture of experts."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """A checkpoint format that a name's suffix stands for."""

    says: str
    config: Mapping[str, Any]
    """The `quantization_config` that checkpoints of this format have."""
    standard: bool = True
    """False where recipes differ in which layers they leave alone, so that sizes differ by some percent."""


@dataclass(frozen=True, slots=True)
class FamilyName:
    """A checkpoint's name taken apart."""

    model: str
    """The name of the model, without organisation and quantisation, as `family_key` writes it."""
    quantization: Quantization | None


def family_key(name: str) -> str:
    """`"meta-llama/Meta-Llama-3.1-8B"` -> `"llama-3.1-8b"`: without organisation and words of no weight."""
    bare = model_key(name).rpartition("/")[2]
    return re.sub(r"-(hf|bf16|fp16)$", "", re.sub(r"^meta-(?=llama)", "", bare))


def take_apart(name: str) -> FamilyName:
    """The model and the quantisation that a checkpoint's name says."""
    key = family_key(name)
    for pattern, make in _SUFFIXES:
        match = pattern.search(key)
        if match:
            organisation = model_key(name).rpartition("/")[0]
            return FamilyName(family_key(key[: match.start()]), make(organisation))
    return FamilyName(key, None)


def matching_ids(wanted: str, ids: Iterable[str]) -> list[str]:
    """The ids (with an organisation) whose model has this `family_key`."""
    return [model for model in ids if "/" in model and family_key(model) == wanted]


def _awq(_: str) -> Quantization:
    return Quantization(
        "AWQ, 4 bits, groups of 128",
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    )


def _gptq(bits: int) -> Quantization:
    return Quantization(
        f"GPTQ, {bits} bits, groups of 128",
        {"quant_method": "gptq", "bits": bits, "group_size": 128, "desc_act": False, "sym": True},
    )


def _auto_round(_: str) -> Quantization:
    return Quantization(
        "AutoRound, 4 bits, groups of 128",
        {
            "quant_method": "auto-round",
            "bits": 4,
            "group_size": 128,
            "sym": True,
            "packing_format": "auto_round:auto_gptq",
        },
        standard=False,
    )


def _fp8(organisation: str) -> Quantization:
    if organisation in {"redhatai", "neuralmagic"}:
        return _compressed("FP8, one scale a tensor", "float-quantized", 8, "float", "tensor", "tensor")
    if organisation == "nvidia":
        return Quantization("FP8 of ModelOpt", {"quant_method": "modelopt", "quant_algo": "FP8"})
    return Quantization(
        "FP8, blocks of 128 x 128",
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
    )


def _fp8_dynamic(_: str) -> Quantization:
    return _compressed("FP8, one scale a channel", "float-quantized", 8, "float", "channel", "token")


def _w8a8(_: str) -> Quantization:
    return _compressed("INT8 weights and activations", "int-quantized", 8, "int", "channel", "token")


def _w4a16(_: str) -> Quantization:
    return _compressed("INT4 weights, groups of 128", "pack-quantized", 4, "int", "group", None)


def _w8a16(_: str) -> Quantization:
    return _compressed("INT8 weights", "pack-quantized", 8, "int", "channel", None)


def _nvfp4(organisation: str) -> Quantization:
    if organisation == "nvidia":
        config: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": _NOT_LINEAR}
        return Quantization("NVFP4 of ModelOpt, groups of 16", config, standard=False)
    made = _compressed("NVFP4, groups of 16", "nvfp4-pack-quantized", 4, "float", "tensor_group", None)
    return Quantization(made.says, made.config, standard=False)


def _bitsandbytes(_: str) -> Quantization:
    return Quantization(
        "bitsandbytes NF4",
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": "bfloat16",
        },
        standard=False,
    )


def _compressed(
    says: str, layout: str, bits: int, kind: str, strategy: str, activations: str | None
) -> Quantization:
    """compressed-tensors with one group of weights: all linear layers but those of `_NOT_LINEAR`."""
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False}
    if strategy in {"group", "tensor_group"}:
        weights["group_size"] = 128 if strategy == "group" else 16
    inputs = activations and {
        "num_bits": bits,
        "type": kind,
        "strategy": activations,
        "symmetric": True,
        "dynamic": activations == "token",
    }
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    return Quantization(
        f"{says} (compressed-tensors)",
        {
            "quant_method": "compressed-tensors",
            "format": layout,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": _NOT_LINEAR,
        },
    )


_SUFFIXES: Final = [
    (re.compile(pattern + "$"), make)
    for pattern, make in (
        (r"-(awq-int4|int4-awq|awq-4bit|awq)", _awq),
        (r"-(gptq-int4|gptq-4bit|int4-gptq)", lambda _: _gptq(4)),
        (r"-(gptq-int8|gptq-8bit)", lambda _: _gptq(8)),
        (r"-(autoround-int4|int4-autoround)", _auto_round),
        (r"-fp8-dynamic", _fp8_dynamic),
        (r"-fp8", _fp8),
        (r"(-quantized\.w8a8|-w8a8|-quantized-w8a8)", _w8a8),
        (r"(-quantized\.w4a16|-w4a16|-quantized-w4a16)", _w4a16),
        (r"(-quantized\.w8a16|-w8a16|-quantized-w8a16)", _w8a16),
        (r"-nvfp4", _nvfp4),
        (r"(-unsloth)?-bnb-4bit", _bitsandbytes),
    )
]
"""Suffixes that name one format. `-GPTQ` alone does not say the bits, `-GGUF` is no format of vLLM's own."""
