"""Layers of models that cache latents: MLA (DeepSeek V2/V3, Kimi), with an indexer (V3.2, GLM-5), V4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.architecture.attention_families import HEADS_NAMES, LAYER_COUNT_NAMES, head_geometry
from kvplan.architecture.layers import DeepseekV4Attention, FullAttention, Layer, Mla, MlaIndexer
from kvplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from kvplan.architecture.config_fields import ConfigFields


def latent(fields: ConfigFields, *, sparse: bool = False) -> Mla:
    """The MLA cache of one layer."""
    return Mla(
        num_heads=fields.integer(*HEADS_NAMES),
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        sparse=sparse,
    )


def mla(fields: ConfigFields) -> tuple[Layer, ...]:
    """Every layer MLA; `num_key_value_heads` says nothing about the cache here."""
    if fields.get("index_topk") is not None:
        return sparse_mla(fields)
    return ((latent(fields),),) * fields.integer(*LAYER_COUNT_NAMES)


def deepseek_v1(fields: ConfigFields) -> tuple[Layer, ...]:
    """DeepSeek-MoE (V1): ordinary keys and values."""
    heads, kv_heads, head_dim = head_geometry(fields)
    return ((FullAttention(heads, kv_heads, head_dim, head_dim),),) * fields.integer(*LAYER_COUNT_NAMES)


def sparse_mla(fields: ConfigFields) -> tuple[Layer, ...]:
    """MLA with an indexer, in every layer (V3.2) or every `index_topk_freq`-th (GLM-5.2 on).

    Source: vLLM 0.32.0 models/deepseek_v32/attention.py::DeepseekV32Attention.__init__.
    """
    cache = latent(fields, sparse=True)
    indexer = MlaIndexer(fields.integer("index_head_dim"))
    frequency = fields.integer("index_topk_freq", default=1)
    offset = fields.integer("index_skip_topk_offset", default=2)
    pattern = fields.get("index_topk_pattern")

    def shares(index: int) -> bool:
        if pattern is not None:
            return index < len(pattern) and str(pattern[index]) == "S"
        return max(index - offset + 1, 0) % frequency != 0

    return tuple(
        (cache,) if shares(index) else (indexer, cache) for index in range(fields.integer(*LAYER_COUNT_NAMES))
    )


def deepseek_v4(fields: ConfigFields) -> tuple[Layer, ...]:
    """A window of latents in each layer, compressed latents of two densities in most.

    Raises:
        UnsupportedModelError: a compression ratio other than 0, 1, 4 or 128.
    """
    count = fields.integer(*LAYER_COUNT_NAMES)
    ratios = fields.sequence("compress_ratios")[:count]
    bad = next((ratio for ratio in ratios if ratio not in {0, 1, 4, 128}), None)
    if bad is not None or len(ratios) < count:
        raise UnsupportedModelError(
            f"config.json of {fields.architecture}: `compress_ratios` "
            + (f"has {bad!r}, which no rule covers" if bad is not None else "does not name every layer"),
            "compare the file with the model's own on the hub; families.py says how to add a rule",
        )
    return tuple(
        (
            DeepseekV4Attention(
                num_heads=fields.integer(*HEADS_NAMES),
                head_dim=fields.integer("head_dim"),
                index_head_dim=fields.integer("index_head_dim"),
                window=fields.integer("sliding_window"),
                compress_ratio=int(ratio),
            ),
        )
        for ratio in ratios
    )
