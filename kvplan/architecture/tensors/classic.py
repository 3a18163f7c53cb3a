"""Families with names of their own: GPT-2, OPT, Falcon, MPT, Baichuan, ChatGLM, InternLM2, GPT-NeoX, Phi."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.dense import embedding, flag, gated_mlp, head_size, output, plain_mlp
from kvplan.architecture.tensors.sheet import optional, query_key_value, refuse, required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.tensors.sheet import Sheet


def gpt2(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """GPT-2: learnt positions, layer norms, biases everywhere; always tied."""
    hidden = required(config, "n_embd", "hidden_size")
    heads = required(config, "n_head", "num_attention_heads")
    inner = config.get("n_inner") or 4 * hidden
    sheet.outside("every")
    sheet.tensor("wte.weight", (required(config, "vocab_size"), hidden), "vocab")
    sheet.tensor("wpe.weight", (required(config, "n_positions", "max_position_embeddings"), hidden))
    layer = "h.{layer}."
    sheet.at(range(required(config, "n_layer", "num_hidden_layers")))
    sheet.fused(f"{layer}attn.c_attn", query_key_value(heads, heads, hidden // heads), hidden, bias=True)
    sheet.linear(f"{layer}attn.c_proj", hidden, hidden, "row", bias=True)
    plain_mlp(sheet, hidden, inner, (f"{layer}mlp.c_fc", f"{layer}mlp.c_proj"), bias=True)
    for name in ("ln_1", "ln_2"):
        sheet.norm(layer + name, hidden, bias=True)
    sheet.outside("every").norm("ln_f", hidden, bias=True)


def opt(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """OPT: learnt positions (two more than the length), a projection where the embedding is narrower."""
    hidden = required(config, "hidden_size")
    width = optional(config, "word_embed_proj_dim", hidden)
    bias = flag(config, "enable_bias", default=True)
    affine = flag(config, "layer_norm_elementwise_affine", default=True)
    prefix = "model.decoder."
    sheet.outside("every")
    sheet.tensor(f"{prefix}embed_tokens.weight", (required(config, "vocab_size"), width), "vocab")
    sheet.tensor(f"{prefix}embed_positions.weight", (required(config, "max_position_embeddings") + 2, hidden))
    if width != hidden:
        sheet.linear(f"{prefix}project_in", hidden, width)
        sheet.linear(f"{prefix}project_out", width, hidden)
    if not flag(config, "tie_word_embeddings", default=True):
        sheet.outside("last").tensor("lm_head.weight", (required(config, "vocab_size"), width), "vocab")
    layer = f"{prefix}layers.{{layer}}."
    sheet.at(range(required(config, "num_hidden_layers")))
    module = f"{layer}self_attn.qkv_proj"
    for name in ("q_proj", "k_proj", "v_proj"):
        sheet.linear(f"{layer}self_attn.{name}", hidden, hidden, "column", bias=bias, module=module)
    sheet.linear(f"{layer}self_attn.out_proj", hidden, hidden, "row", bias=bias)
    names = (f"{layer}fc1", f"{layer}fc2")
    plain_mlp(sheet, hidden, required(config, "ffn_dim"), names, bias=bias)
    if affine:
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            sheet.norm(layer + name, hidden, bias=True)
        if flag(config, "do_layer_norm_before", default=True):
            sheet.outside("every").norm(f"{prefix}final_layer_norm", hidden, bias=True)


def falcon(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Falcon: one fused projection with 1, 8 or as many KV heads as heads; one or two norms; tied."""
    hidden = required(config, "hidden_size")
    heads = required(config, "num_attention_heads", "n_head")
    new = flag(config, "new_decoder_architecture")
    if new:
        kv_heads = optional(config, "num_kv_heads", heads)
    else:
        kv_heads = 1 if flag(config, "multi_query", default=True) else heads
    bias = flag(config, "bias")
    prefix = "transformer."
    layer = f"{prefix}h.{{layer}}."
    tied = flag(config, "tie_word_embeddings", default=True)
    sheet.outside("every")
    sheet.tensor(f"{prefix}word_embeddings.weight", (required(config, "vocab_size"), hidden), "vocab")
    sheet.at(range(required(config, "num_hidden_layers", "n_layer")))
    parts = query_key_value(heads, kv_heads, hidden // heads)
    sheet.fused(f"{layer}self_attention.query_key_value", parts, hidden, bias=bias)
    sheet.linear(f"{layer}self_attention.dense", hidden, hidden, "row", bias=bias)
    names = (f"{layer}mlp.dense_h_to_4h", f"{layer}mlp.dense_4h_to_h")
    plain_mlp(sheet, hidden, optional(config, "ffn_hidden_size", 4 * hidden), names, bias=bias)
    two = optional(config, "num_ln_in_parallel_attn", 2 if new else 1) == 2
    if two and new:
        norms: tuple[str, ...] = ("ln_attn", "ln_mlp")
    elif flag(config, "parallel_attn", default=True):
        norms = ("input_layernorm",)
    else:
        norms = ("input_layernorm", "post_attention_layernorm")
    for name in norms:
        sheet.norm(layer + name, hidden, bias=True)
    sheet.outside("every").norm(f"{prefix}ln_f", hidden, bias=True)
    if not tied:
        sheet.outside("last").tensor("lm_head.weight", (required(config, "vocab_size"), hidden), "vocab")


def mpt(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """MPT: ALiBi, so no positions; tied."""
    hidden, heads = required(config, "d_model"), required(config, "n_heads")
    own = optional(config, "attn_config", {})
    if own.get("qk_ln") or not own.get("alibi"):
        raise refuse(config, "qk_ln or learnt positions")
    kinds = {"multihead_attention": heads, "multiquery_attention": 1}
    kv_heads = own.get("kv_n_heads") or kinds.get(own.get("attn_type", "multihead_attention"), heads)
    bias = not flag(config, "no_bias")
    layer = "transformer.blocks.{layer}."
    sheet.outside("every")
    sheet.tensor("transformer.wte.weight", (required(config, "vocab_size"), hidden), "vocab")
    sheet.at(range(required(config, "n_layers")))
    parts = query_key_value(heads, kv_heads, hidden // heads)
    sheet.fused(f"{layer}attn.Wqkv", parts, hidden, bias=bias)
    sheet.linear(f"{layer}attn.out_proj", hidden, hidden, "row", bias=bias)
    names = (f"{layer}ffn.up_proj", f"{layer}ffn.down_proj")
    plain_mlp(sheet, hidden, optional(config, "expansion_ratio", 4) * hidden, names, bias=bias)
    for name in ("norm_1", "norm_2"):
        sheet.norm(layer + name, hidden, bias=bias)
    sheet.outside("every").norm("transformer.norm_f", hidden, bias=bias)


def baichuan(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Baichuan 1 and 2: Llama with q, k, v in one tensor."""
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    embedding(sheet, config)
    layer = "model.layers.{layer}."
    sheet.at(range(required(config, "num_hidden_layers")))
    sheet.fused(f"{layer}self_attn.W_pack", query_key_value(heads, heads, hidden // heads), hidden)
    sheet.linear(f"{layer}self_attn.o_proj", hidden, hidden, "row")
    gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{layer}mlp.")
    for name in ("input_layernorm", "post_attention_layernorm"):
        sheet.norm(layer + name, hidden)
    output(sheet, config, tied=flag(config, "tie_word_embeddings"))


def chatglm(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """ChatGLM 2, 3 and GLM-4-9B under their own names."""
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    kv_heads = required(config, "multi_query_group_num") if config.get("multi_query_attention") else heads
    vocab = required(config, "padded_vocab_size", "vocab_size")
    bias = flag(config, "add_bias_linear")
    qkv_bias = bias or flag(config, "add_qkv_bias")
    if not flag(config, "rmsnorm", default=True):
        raise refuse(config, "rmsnorm false")
    prefix = "transformer."
    sheet.outside("every").tensor(f"{prefix}embedding.word_embeddings.weight", (vocab, hidden), "vocab")
    layer = f"{prefix}encoder.layers.{{layer}}."
    sheet.at(range(required(config, "num_layers")))
    parts = query_key_value(heads, kv_heads, optional(config, "kv_channels", hidden // heads))
    sheet.fused(f"{layer}self_attention.query_key_value", parts, hidden, bias=qkv_bias)
    sheet.linear(f"{layer}self_attention.dense", hidden, hidden, "row", bias=bias)
    intermediate = required(config, "ffn_hidden_size")
    sheet.linear(f"{layer}mlp.dense_h_to_4h", 2 * intermediate, hidden, "column", bias=bias)
    sheet.linear(f"{layer}mlp.dense_4h_to_h", hidden, intermediate, "row", bias=bias)
    for name in ("input_layernorm", "post_attention_layernorm"):
        sheet.norm(layer + name, hidden)
    if flag(config, "post_layer_norm", default=True):
        sheet.outside("every").norm(f"{prefix}encoder.final_layernorm", hidden)
    sheet.outside("every").tensor(f"{prefix}output_layer.weight", (vocab, hidden), "vocab")


def internlm2(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """InternLM2 and 2.5: Llama under other names, q, k, v in one tensor."""
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    kv_heads = optional(config, "num_key_value_heads", heads)
    size = head_size(config)
    bias = flag(config, "bias")
    embedding(sheet, config, everywhere=True, name="model.tok_embeddings")
    layer = "model.layers.{layer}."
    sheet.at(range(required(config, "num_hidden_layers")))
    sheet.fused(f"{layer}attention.wqkv", query_key_value(heads, kv_heads, size), hidden, bias=bias)
    sheet.linear(f"{layer}attention.wo", hidden, heads * size, "row", bias=bias)
    names = ("w1", "w3", "w2")
    gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{layer}feed_forward.", names=names)
    for name in ("attention_norm", "ffn_norm"):
        sheet.norm(layer + name, hidden)
    output(
        sheet,
        config,
        tied=flag(config, "tie_word_embeddings"),
        head="output",
        norm_everywhere=True,
        head_everywhere=True,
    )


def gpt_neox(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """GPT-NeoX and Pythia."""
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    bias = flag(config, "attention_bias", default=True)
    tied = flag(config, "tie_word_embeddings")
    vocab = required(config, "vocab_size")
    prefix = "gpt_neox."
    sheet.outside("every").tensor(f"{prefix}embed_in.weight", (vocab, hidden), "vocab")
    layer = f"{prefix}layers.{{layer}}."
    sheet.at(range(required(config, "num_hidden_layers")))
    parts = query_key_value(heads, heads, hidden // heads)
    sheet.fused(f"{layer}attention.query_key_value", parts, hidden, bias=bias)
    sheet.linear(f"{layer}attention.dense", hidden, hidden, "row", bias=bias)
    names = (f"{layer}mlp.dense_h_to_4h", f"{layer}mlp.dense_4h_to_h")
    plain_mlp(sheet, hidden, required(config, "intermediate_size"), names, bias=True)
    for name in ("input_layernorm", "post_attention_layernorm"):
        sheet.norm(layer + name, hidden, bias=True)
    sheet.outside("every").norm(f"{prefix}final_layer_norm", hidden, bias=True)
    if not tied:
        sheet.outside("every").tensor("embed_out.weight", (vocab, hidden), "vocab")


def phi(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Phi-1, 1.5 and 2: one layer norm a layer, biases everywhere, on the head too."""
    hidden = required(config, "hidden_size")
    if flag(config, "qk_layernorm") or flag(config, "tie_word_embeddings"):
        raise refuse(config, "qk_layernorm or tied embeddings")
    heads = required(config, "num_attention_heads")
    size = head_size(config)
    embedding(sheet, config, everywhere=True)
    layer = "model.layers.{layer}."
    sheet.at(range(required(config, "num_hidden_layers")))
    module = f"{layer}self_attn.qkv_proj"
    for name in ("q_proj", "k_proj", "v_proj"):
        sheet.linear(f"{layer}self_attn.{name}", heads * size, hidden, "column", bias=True, module=module)
    sheet.linear(f"{layer}self_attn.dense", hidden, heads * size, "row", bias=True)
    names = (f"{layer}mlp.fc1", f"{layer}mlp.fc2")
    plain_mlp(sheet, hidden, required(config, "intermediate_size"), names, bias=True)
    sheet.norm(f"{layer}input_layernorm", hidden, bias=True)
    sheet.outside("every").norm("model.final_layernorm", hidden, bias=True)
    sheet.outside("every").linear(
        "lm_head", required(config, "vocab_size"), hidden, "vocab", bias=True, quantizable=False
    )


def phi3_small(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Phi-3-small: layer norms, biases, gate and up in one tensor; tied."""
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    kv_heads = optional(config, "num_key_value_heads", heads)
    intermediate = required(config, "ff_intermediate_size")
    bias = True
    embedding(sheet, config, tied=True, everywhere=True)
    layer = "model.layers.{layer}."
    sheet.at(range(required(config, "num_hidden_layers")))
    parts = query_key_value(heads, kv_heads, hidden // heads)
    sheet.fused(f"{layer}self_attn.query_key_value", parts, hidden, bias=bias)
    sheet.linear(f"{layer}self_attn.dense", hidden, hidden, "row", bias=bias)
    sheet.linear(f"{layer}mlp.up_proj", 2 * intermediate, hidden, "column", bias=bias)
    sheet.linear(f"{layer}mlp.down_proj", hidden, intermediate, "row", bias=bias)
    for name in ("input_layernorm", "post_attention_layernorm"):
        sheet.norm(layer + name, hidden, bias=True)
    sheet.outside("every").norm("model.final_layernorm", hidden, bias=True)
