"""Kimi Linear and Kimi K3: Kimi delta attention beside latent attention.

K3 has gates of full rank, an output gate on latent attention too, and experts in a narrower space.

Source: vLLM 0.32.0 `vllm/models/kimi_k3/nvidia/{model,kda,mla}.py`; the published config.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.dense import embedding, flag, gated_mlp, output
from kvplan.architecture.tensors.moe import LAYER, NORMS, experts
from kvplan.architecture.tensors.sheet import optional, required

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.architecture.tensors.sheet import Sheet


def kimi(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Kimi Linear, and the text part of Kimi K3."""
    own = required(config, "linear_attn_config")
    hidden, layers = required(config, "hidden_size"), range(required(config, "num_hidden_layers"))
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    # The lists count layers from 1.
    _delta_attention(sheet, config, [i - 1 for i in own["kda_layers"]])
    _latent_attention(sheet, config, [i - 1 for i in own["full_attn_layers"]])
    sheet.at(layers)
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    if config.get("attn_res_block_size"):
        for block in ("self_attention", "mlp"):
            sheet.norm(f"{LAYER}{block}_res_norm", hidden)
            sheet.tensor(f"{LAYER}{block}_res_proj.weight", (1, hidden))
        sheet.outside("last").norm("model.output_attn_res_norm", hidden)
        sheet.tensor("model.output_attn_res_proj.weight", (1, hidden))
    first = required(config, "first_k_dense_replace")
    gated_mlp(sheet.at(layers[:first]), hidden, required(config, "intermediate_size"), f"{LAYER}mlp.")
    _mixture(sheet, config, layers[first:])
    output(sheet, config, tied=tied)


def _delta_attention(sheet: Sheet, config: Mapping[str, Any], layers: Sequence[int]) -> None:
    own, hidden = config["linear_attn_config"], config["hidden_size"]
    heads, size = own["num_heads"], own["head_dim"]
    width = heads * size
    prefix = f"{LAYER}self_attn."
    module = f"{prefix}in_proj_qkvgfab"
    sheet.at(layers)
    for name in ("q_proj", "k_proj", "v_proj"):
        sheet.linear(prefix + name, width, hidden, "column", module=module)
    if own.get("use_full_rank_gate"):
        sheet.linear(f"{prefix}g_proj", width, hidden, "column", module=module)
    else:
        sheet.linear(f"{prefix}g_a_proj", size, hidden, module=module)
        sheet.linear(f"{prefix}g_b_proj", width, size, "column")
    sheet.linear(f"{prefix}f_a_proj", size, hidden, module=module)
    sheet.linear(f"{prefix}b_proj", heads, hidden, "column", module=module)
    sheet.linear(f"{prefix}f_b_proj", width, size, "column")
    kernel = own["short_conv_kernel_size"]
    for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
        shape = (width, 1, kernel)
        sheet.tensor(f"{prefix}{name}.weight", shape, "column", dtype="float32", module=f"{prefix}conv1d")
    sheet.tensor(f"{prefix}dt_bias", (width,), "column", dtype="float32")
    sheet.tensor(f"{prefix}A_log", (heads,), "column", dtype="float32")
    sheet.norm(f"{prefix}o_norm", size)
    sheet.linear(f"{prefix}o_proj", hidden, width, "row")


def _latent_attention(sheet: Sheet, config: Mapping[str, Any], layers: Sequence[int]) -> None:
    hidden, heads = config["hidden_size"], required(config, "num_attention_heads")
    nope, rope = required(config, "qk_nope_head_dim"), required(config, "qk_rope_head_dim")
    value, rank = required(config, "v_head_dim"), required(config, "kv_lora_rank")
    q_rank = config.get("q_lora_rank")
    prefix = f"{LAYER}self_attn."
    gated = bool(config.get("mla_use_output_gate"))
    module = f"{prefix}fused_qkv_a_g_proj" if q_rank else ""
    sheet.at(layers)
    if q_rank:
        sheet.linear(f"{prefix}q_a_proj", q_rank, hidden, module=module)
        sheet.norm(f"{prefix}q_a_layernorm", q_rank)
        sheet.linear(f"{prefix}q_b_proj", heads * (nope + rope), q_rank, "column")
    else:
        sheet.linear(f"{prefix}q_proj", heads * (nope + rope), hidden, "column")
    sheet.linear(f"{prefix}kv_a_proj_with_mqa", rank + rope, hidden, module=module)
    if gated:
        sheet.linear(f"{prefix}g_proj", heads * value, hidden, "column", module=module)
    sheet.norm(f"{prefix}kv_a_layernorm", rank)
    sheet.linear(f"{prefix}kv_b_proj", heads * (nope + value), rank, "column")
    sheet.linear(f"{prefix}o_proj", hidden, heads * value, "row")


def _mixture(sheet: Sheet, config: Mapping[str, Any], layers: Sequence[int]) -> None:
    hidden, number = config["hidden_size"], required(config, "num_experts")
    size = required(config, "moe_intermediate_size")
    narrow = config.get("routed_expert_hidden_size") or hidden
    prefix = f"{LAYER}block_sparse_moe."
    sheet.at(layers)
    sheet.tensor(f"{prefix}gate.weight", (number, hidden))
    sheet.tensor(f"{prefix}gate.e_score_correction_bias", (number,), dtype="float32")
    if narrow != hidden:
        sheet.linear(f"{prefix}routed_expert_down_proj", narrow, hidden, quantizable=False)
        sheet.linear(f"{prefix}routed_expert_up_proj", hidden, narrow, quantizable=False)
        if flag(config, "latent_moe_use_norm"):
            sheet.norm(f"{prefix}routed_expert_norm", narrow)
    experts(sheet, f"{prefix}experts.", number, narrow, size, names=("w1", "w3", "w2"))
    shared = size * optional(config, "num_shared_experts", 0)
    gated_mlp(sheet, hidden, shared, f"{prefix}shared_experts.")
