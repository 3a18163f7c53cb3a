"""Gemma 4: sliding and global layers of different head sizes, shared KV, per-layer embeddings, mixtures.

Source: vLLM 0.32.0 `model_executor/models/gemma4.py`; the published config.json files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.dense import GEMMA_NORMS, embedding, flag, gated_mlp, output
from kvplan.architecture.tensors.moe import LAYER
from kvplan.architecture.tensors.sheet import optional, required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.tensors.sheet import Sheet


def gemma4(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """The text part of Gemma 4."""
    hidden = required(config, "hidden_size")
    kinds = required(config, "layer_types")
    layers = range(required(config, "num_hidden_layers"))
    shared_from = len(layers) - optional(config, "num_kv_shared_layers", 0)
    tied = flag(config, "tie_word_embeddings", default=True)
    embedding(sheet, config, tied=tied, everywhere=True)
    _per_layer_embedding(sheet, config, len(layers))
    for full in (False, True):
        mine = [i for i in layers if (kinds[i] == "full_attention") == full]
        for shared in (False, True):
            sheet.at([i for i in mine if (i >= shared_from) == shared])
            _attention(sheet, config, full=full, shared=shared)
    for wide in (False, True):
        at = [i for i in layers if (i >= shared_from > 0 and flag(config, "use_double_wide_mlp")) == wide]
        size = required(config, "intermediate_size") * (2 if wide else 1)
        gated_mlp(sheet.at(at), hidden, size, f"{LAYER}mlp.")
    sheet.at(layers)
    for name in GEMMA_NORMS:
        sheet.norm(LAYER + name, hidden)
    # A buffer in vLLM, a tensor in the file: one value, so it is counted among the buffers.
    if flag(config, "enable_moe_block"):
        _mixture(sheet, config)
    output(sheet, config, tied=tied, norm_everywhere=True)


def _attention(sheet: Sheet, config: Mapping[str, Any], *, full: bool, shared: bool) -> None:
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    size = required(config, "head_dim")
    kv_heads = optional(config, "num_key_value_heads", heads)
    same = False
    if full:
        size = optional(config, "global_head_dim", 512)
        same = flag(config, "attention_k_eq_v")
        kv_heads = (config.get("num_global_key_value_heads") if same else None) or kv_heads
    prefix = f"{LAYER}self_attn."
    bias = flag(config, "attention_bias")
    module = f"{prefix}qkv_proj"
    sheet.linear(f"{prefix}q_proj", heads * size, hidden, "column", bias=bias, module=module)
    if not shared:
        kv = {"heads": kv_heads, "bias": bias, "module": module}
        sheet.linear(f"{prefix}k_proj", kv_heads * size, hidden, "kv", **kv)
        # Where K and V are the same, the file holds one and vLLM fills both parts of qkv_proj with it.
        sheet.linear(f"{prefix}v_proj", kv_heads * size, hidden, "kv", stored=not same, **kv)
        sheet.norm(f"{prefix}k_norm", size)
    sheet.linear(f"{prefix}o_proj", hidden, heads * size, "row", bias=bias)
    sheet.norm(f"{prefix}q_norm", size)


def _per_layer_embedding(sheet: Sheet, config: Mapping[str, Any], layers: int) -> None:
    width = optional(config, "hidden_size_per_layer_input", 0)
    if not width:
        return
    hidden = required(config, "hidden_size")
    vocab = required(config, "vocab_size_per_layer_input")
    sheet.outside("every")
    sheet.tensor("model.embed_tokens_per_layer.weight", (vocab, layers * width), "vocab")
    sheet.linear("model.per_layer_model_projection", layers * width, hidden, "column")
    sheet.norm("model.per_layer_projection_norm", width)
    sheet.at(range(layers))
    sheet.linear(f"{LAYER}per_layer_input_gate", width, hidden)
    sheet.linear(f"{LAYER}per_layer_projection", hidden, width)
    sheet.norm(f"{LAYER}post_per_layer_input_norm", hidden)


def _mixture(sheet: Sheet, config: Mapping[str, Any]) -> None:
    hidden, count = required(config, "hidden_size"), required(config, "num_experts")
    size = required(config, "moe_intermediate_size", "expert_intermediate_size")
    sheet.tensor(f"{LAYER}router.scale", (hidden,))
    sheet.tensor(f"{LAYER}router.per_expert_scale", (count,))
    sheet.tensor(f"{LAYER}router.proj.weight", (count, hidden))
    prefix = f"{LAYER}experts."
    fused = {"count": count, "quantizable": True}
    sheet.tensor(f"{prefix}gate_up_proj", (2 * size, hidden), "expert_column", module=f"{prefix}w13", **fused)
    sheet.tensor(f"{prefix}down_proj", (hidden, size), "expert_row", module=f"{prefix}w2", **fused)
    for name in (
        "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2",
        "pre_feedforward_layernorm_2",
    ):
        sheet.norm(LAYER + name, hidden)
