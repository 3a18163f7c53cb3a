"""Which rule writes the tensors of which `model_type`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from kvplan.architecture.tensors.sheet import Sheet
from kvplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvplan.architecture.tensors.spec import WeightTensor

    Family = Callable[[Sheet, Mapping[str, Any]], None]
    Tower = Callable[[Sheet, Mapping[str, Any], Mapping[str, Any]], None]

_FAMILIES: Final[Mapping[str, str]] = {
    # model_type -> module.function of this package: a start imports the one that its model needs
    "baichuan": "classic.baichuan",
    "bamba": "hybrid.bamba",
    "chatglm": "classic.chatglm",
    "cohere": "dense.cohere",
    "cohere2": "dense.cohere",
    "deepseek_v2": "mla.deepseek",
    "deepseek_v3": "mla.deepseek",
    "deepseek_v32": "mla.deepseek",
    "deepseek_v4": "deepseek_v4.deepseek_v4",
    "dots1": "moe.dots1",
    "ernie4_5": "dense.ernie",
    "ernie4_5_moe": "moe.ernie_moe",
    "exaone4": "dense.exaone4",
    "falcon": "classic.falcon",
    "falcon_h1": "hybrid.falcon_h1",
    "gemma": "dense.gemma",
    "gemma2": "dense.gemma2",
    "gemma3_text": "dense.gemma3",
    "gemma4_text": "gemma4.gemma4",
    "glm": "dense.glm",
    "glm4": "dense.glm",
    "glm4_moe": "moe.glm4_moe",
    "glm4_moe_lite": "mla.deepseek",
    "glm_moe_dsa": "mla.deepseek",
    "gpt2": "classic.gpt2",
    "gpt_neox": "classic.gpt_neox",
    "gpt_oss": "moe.gpt_oss",
    "granite": "dense.llama",
    "granitemoe": "moe.granite_moe",
    "granitemoehybrid": "hybrid.granite_hybrid",
    "granitemoeshared": "moe.granite_moe",
    "hunyuan_v1_dense": "dense.qwen3",
    "internlm2": "classic.internlm2",
    "jamba": "hybrid.jamba",
    "kimi_k2": "mla.deepseek",
    "kimi_linear": "kimi.kimi",
    "llama": "dense.llama",
    "llama4_text": "moe.llama4",
    "mamba2": "hybrid.mamba2_only",
    "minimax_m2": "moe.minimax_m2",
    "ministral": "dense.llama",
    "ministral3": "dense.llama",
    "mistral": "dense.llama",
    "mixtral": "moe.mixtral",
    "mpt": "classic.mpt",
    "nemotron": "dense.nemotron",
    "nemotron-nas": "dense.nemotron_nas",
    "nemotron_h": "hybrid.nemotron_h",
    "olmo2": "dense.olmo2",
    "olmo3": "dense.olmo2",
    "olmoe": "moe.olmoe",
    "opt": "classic.opt",
    "phi": "classic.phi",
    "phi3": "dense.phi3",
    "phi3small": "classic.phi3_small",
    "phimoe": "moe.phi_moe",
    "qwen2": "dense.qwen2",
    "qwen2_5_vl_text": "dense.qwen2",
    "qwen2_moe": "moe.qwen_moe",
    "qwen2_vl_text": "dense.qwen2",
    "qwen3": "dense.qwen3",
    "qwen3_5_moe_text": "hybrid.qwen3_next",
    "qwen3_5_text": "hybrid.qwen3_next",
    "qwen3_moe": "moe.qwen_moe",
    "qwen3_omni_moe_text": "moe.qwen_moe",
    "qwen3_next": "hybrid.qwen3_next",
    "qwen3_vl_moe_text": "moe.qwen_moe",
    "qwen3_vl_text": "dense.qwen3",
    "seed_oss": "dense.llama",
    "smollm3": "dense.smollm3",
    "starcoder2": "dense.starcoder2",
}

_TOWERS: Final[Mapping[str, tuple[str, str]]] = {
    "gemma3": ("vision.gemma3", "gemma3_text"),
    "gemma4": ("vision.gemma4", "gemma4_text"),
    "kimi_k25": ("vision.moonvit", "kimi_k2"),
    "kimi_k3": ("vision.moonvit_k3", "kimi_linear"),
    "kimi_vl": ("vision.moonvit", "deepseek_v3"),
    "llama4": ("vision.llama4", "llama4_text"),
    "llava": ("vision.llava", "llama"),
    "llava_next": ("vision.llava", "llama"),
    "mistral3": ("vision.pixtral", "mistral"),
    "qwen2_5_vl": ("vision.qwen2_5_vl", "qwen2"),
    "qwen2_vl": ("vision.qwen2_vl", "qwen2"),
    "qwen3_5": ("vision.qwen3_vl", "qwen3_5_text"),
    "qwen3_5_moe": ("vision.qwen3_vl", "qwen3_5_moe_text"),
    "qwen3_omni_moe": ("vision.qwen3_omni", "qwen3_moe"),
    "qwen3_vl": ("vision.qwen3_vl", "qwen3"),
    "qwen3_vl_moe": ("vision.qwen3_vl", "qwen3_moe"),
}
"""Model type -> the tower, and the text model where `text_config` names none."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's part of a config.json, with its model_type and the outer tie_word_embeddings."""
    model_type = str(config.get("model_type"))
    if model_type not in _TOWERS:
        return config
    config = _inner(config)
    text = dict(config.get("text_config") or config)
    if config.get("text_config") is None or text.get("model_type") is None:
        text["model_type"] = _TOWERS[model_type][1]
    if config.get("tie_word_embeddings") is not None:
        text.setdefault("tie_word_embeddings", config["tie_word_embeddings"])
    return text


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that vLLM serves: of an omni model its thinker."""
    thinker = config.get("thinker_config")
    return config if thinker is None else {**thinker, "model_type": config["model_type"]}


def weight_tensors(config: Mapping[str, Any]) -> tuple[WeightTensor, ...]:
    """Every weight tensor that vLLM loads for the model of this config.json, unquantised.

    Names are the checkpoint's, without the prefix that wrappers put before the text model.

    Raises:
        UnsupportedModelError: a family without a rule, or a config that lacks a field the rule needs.
    """
    sheet = Sheet()
    text = text_config(config)
    tower = _TOWERS.get(str(config.get("model_type")))
    if tower is not None:
        tower_rule: Tower = _rule(tower[0])
        tower_rule(sheet, _inner(config), text)
    family = _FAMILIES.get(str(text.get("model_type")))
    if family is None:
        raise UnsupportedModelError(
            f"no rule for the weight tensors of model_type {text.get('model_type')!r}",
            "give a folder with the safetensors files: their headers hold every shape",
        )
    family_rule: Family = _rule(family)
    family_rule(sheet, text)
    return tuple(sheet.tensors)


def _rule(name: str) -> Any:
    """The function `module.function` of this package; its module is imported when a model needs it."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), function)
