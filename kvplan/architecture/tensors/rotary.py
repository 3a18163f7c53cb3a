"""Tables of sines and cosines that vLLM keeps beside the weights, one for each kind of rotary embedding.

They count: Llama 4 Scout's takes 2.5 GiB, Gemma 3's two 0.56 GiB. They are not weights (no file holds them),
but "Model loading took" includes them.

Source: vLLM 0.32.0 `model_executor/layers/rotary_embedding/__init__.py::get_rope` and the classes it makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.architecture.tensors.dense import GEMMA3_DEFAULTS, flag
from kvplan.architecture.tensors.families import text_config
from kvplan.architecture.tensors.sheet import optional

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.config.version import VllmVersion

_NONE: Final = frozenset({"gpt2", "jamba", "kimi_linear", "mamba2", "mpt", "nemotron_h", "opt"})
"""Families without rotary positions."""
_FLOAT32: Final = frozenset({"deepseek_v32", "deepseek_v4", "gpt_oss"})
"""Families whose tables stay in float32."""
_VISION_ROWS: Final = 8192
"""`model_executor/models/qwen2_5_vl.py`: the table of the tower."""


def rotary_tables(config: Mapping[str, Any], dtype_bytes: int, vllm_version: VllmVersion) -> tuple[int, ...]:
    """Bytes of each table that one GPU keeps, whatever the parallelism.

    Args:
        config: config.json.
        dtype_bytes: of the model's dtype.
        vllm_version: multimodal tables were four times as long up to 0.31.
    """
    text = text_config(config)
    kind = str(text.get("model_type"))
    tables = list(_vision_tables(config, dtype_bytes))
    if kind in _NONE or (kind == "granitemoehybrid" and text.get("position_embedding_type") != "rope"):
        return tuple(tables)
    size = 4 if kind in _FLOAT32 else dtype_bytes
    for rows, width in _text_tables(kind, text, vllm_version):
        tables.append(rows * width * size)
    return tuple(tables)


def _text_tables(kind: str, text: Mapping[str, Any], version: VllmVersion) -> list[tuple[int, int]]:
    if kind == "gemma3_text":
        return _gemma3(text)
    if kind == "gemma4_text":
        rows = optional(text, "max_position_embeddings", 131072)
        return [(rows, int(text["head_dim"])), (rows, int(optional(text, "global_head_dim", 512)))]
    rows, width = _plain(kind, text, version)
    if kind in {"deepseek_v32", "deepseek_v4"}:
        return [(rows, width)] * 2
    return [(rows, width)]


def _gemma3(text: Mapping[str, Any]) -> list[tuple[int, int]]:
    rows = int(optional(text, "max_position_embeddings", 131072))
    width = int(optional(text, "head_dim", GEMMA3_DEFAULTS["head_dim"]))
    scaling = text.get("rope_scaling") or (text.get("rope_parameters") or {}).get("full_attention") or {}
    factor = float(scaling.get("factor") or 1)
    return [(rows, width), (int(rows * factor), width)]


def _plain(kind: str, text: Mapping[str, Any], version: VllmVersion) -> tuple[int, int]:
    """Rows and width of the one table of most families."""
    rows = int(text.get("max_position_embeddings") or text.get("seq_length") or _DEFAULT_ROWS.get(kind, 0))
    width = _width(kind, text)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    how = scaling.get("rope_type") or scaling.get("type") or "default"
    if "mrope_section" in scaling:
        # From 0.32 the models whose positions never exceed the token count keep one length, not four.
        short = version >= (0, 32, 0) and kind.startswith(("qwen3",))
        return rows * (1 if short else 4), width
    original = int(scaling.get("original_max_position_embeddings") or rows)
    factor = float(scaling.get("factor") or 1)
    if how in {"yarn", "deepseek_yarn"}:
        return int(original * factor), width
    if how == "linear":
        return int(rows * factor), width
    if how == "dynamic" and "factor" in scaling:
        return int(rows * factor) if version < (0, 11, 0) else rows, width
    if how in {"longrope", "su"}:
        return int(text.get("original_max_position_embeddings") or original) + rows, width
    return rows, width


_DEFAULT_ROWS: Final[Mapping[str, int]] = {"falcon": 2048, "phi3small": 8192}


def _width(kind: str, text: Mapping[str, Any]) -> int:
    if text.get("qk_rope_head_dim"):
        return int(text["qk_rope_head_dim"])
    if kind == "chatglm":
        return int(text.get("kv_channels") or text["hidden_size"] // text["num_attention_heads"]) // 2
    if text.get("rotary_dim"):
        return int(text["rotary_dim"])
    heads = text.get("num_attention_heads") or text.get("n_head") or 1
    size = text.get("head_dim") or (text.get("hidden_size") or 0) // heads
    scaling = text.get("rope_parameters") or {}
    part = text.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or text.get("rotary_pct")
    default = {"phi": 0.5, "glm": 0.5, "glm4": 0.5, "glm4_moe": 0.5}.get(kind, 1.0)
    return int(size * (part or default))


def _vision_tables(config: Mapping[str, Any], dtype_bytes: int) -> list[int]:
    vision = (config.get("thinker_config") or config).get("vision_config") or {}
    kind = str(config.get("model_type"))
    if kind in {
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_omni_moe",
    }:
        width = vision.get("hidden_size" if kind != "qwen2_vl" else "embed_dim") or 1280
        heads = vision.get("num_heads") or 16
        return [_VISION_ROWS * (width // heads // 2) * dtype_bytes]
    if kind == "llama4" and vision and not flag(config, "text_only"):
        rows = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
        half = vision["hidden_size"] // vision["num_attention_heads"] // 2
        return [rows * half * 8]
    return []


def is_latent_attention(config: Mapping[str, Any]) -> bool:
    """Whether the model caches a latent (MLA): DeepSeek V2 to V4, Kimi K2, GLM-5."""
    return bool(text_config(config).get("kv_lora_rank"))
