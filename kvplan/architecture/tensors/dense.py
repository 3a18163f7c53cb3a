"""Decoders with softmax attention and one feed-forward block a layer, in the families that share Llama's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.sheet import Sheet, optional, required

if TYPE_CHECKING:
    from collections.abc import Mapping

Config = "Mapping[str, Any]"


def head_dim(config: Mapping[str, Any]) -> int:
    """Values a head, explicit or hidden size divided by heads."""
    return int(
        config.get("head_dim") or required(config, "hidden_size") // required(config, "num_attention_heads")
    )


def embedding(sheet: Sheet, vocab: int, hidden: int, *, tied: bool, prefix: str = "model.") -> None:
    """The token embedding; a tied one is held by the last pipeline stage too, as its head."""
    sheet.at(None, place="ends" if tied else "first")
    sheet.tensor(f"{prefix}embed_tokens.weight", (vocab, hidden), "vocab")


def output(
    sheet: Sheet, vocab: int, hidden: int, *, tied: bool, prefix: str = "model.", head: str = ""
) -> None:
    """The final norm, and the head where it is a tensor of its own."""
    sheet.at(None, place="last")
    sheet.norm(f"{prefix}norm", hidden)
    if not tied:
        sheet.tensor(f"{head}lm_head.weight", (vocab, hidden), "vocab")


def attention(
    sheet: Sheet,
    config: Mapping[str, Any],
    prefix: str,
    *,
    bias: bool = False,
    out_bias: bool = False,
    query_key_norm: bool = False,
) -> None:
    """Grouped-query attention: q, k, v and o, as separate tensors that vLLM merges into qkv_proj."""
    hidden = required(config, "hidden_size")
    heads = required(config, "num_attention_heads")
    kv_heads = optional(config, "num_key_value_heads", heads)
    size = head_dim(config)
    sheet.linear(f"{prefix}q_proj", heads * size, hidden, "column", bias=bias, module="qkv_proj")
    for name in ("k_proj", "v_proj"):
        sheet.linear(
            f"{prefix}{name}", kv_heads * size, hidden, "kv", bias=bias, heads=kv_heads, module="qkv_proj"
        )
    sheet.linear(f"{prefix}o_proj", hidden, heads * size, "row", bias=out_bias)
    if query_key_norm:
        sheet.norm(f"{prefix}q_norm", size)
        sheet.norm(f"{prefix}k_norm", size)


def gated_mlp(sheet: Sheet, hidden: int, intermediate: int, prefix: str, *, bias: bool = False) -> None:
    """gate, up and down; vLLM merges the first two."""
    for name in ("gate_proj", "up_proj"):
        sheet.linear(f"{prefix}{name}", intermediate, hidden, "column", bias=bias, module="gate_up_proj")
    sheet.linear(f"{prefix}down_proj", hidden, intermediate, "row", bias=bias)


def llama_like(
    sheet: Sheet,
    config: Mapping[str, Any],
    *,
    bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    query_key_norm: bool = False,
    tied: bool = False,
    layer_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    prefix: str = "model.",
    head: str = "",
) -> None:
    """Llama and the families that differ from it in biases, norms and tied embeddings only."""
    hidden = required(config, "hidden_size")
    vocab = required(config, "vocab_size")
    tied = bool(optional(config, "tie_word_embeddings", tied))
    embedding(sheet, vocab, hidden, tied=tied, prefix=prefix)
    sheet.at(range(required(config, "num_hidden_layers")))
    layer = f"{prefix}layers.{{layer}}."
    attention(
        sheet, config, f"{layer}self_attn.", bias=bias, out_bias=out_bias, query_key_norm=query_key_norm
    )
    gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{layer}mlp.", bias=mlp_bias)
    for name in layer_norms:
        sheet.norm(layer + name, hidden)
    output(sheet, vocab, hidden, tied=tied, prefix=prefix, head=head)


def llama(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Llama 1 to 3, Yi, TinyLlama, SmolLM2, DeepSeek-R1-Distill-Llama; Mistral and Granite have the same tensors."""
    bias = bool(optional(config, "attention_bias", default=False))
    mlp_bias = bool(optional(config, "mlp_bias", default=False))
    llama_like(sheet, config, bias=bias, out_bias=bias, mlp_bias=mlp_bias)


def qwen2(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Qwen2, Qwen2.5, QwQ: Llama with biases on q, k and v."""
    llama_like(sheet, config, bias=True)


def qwen3(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Qwen3: no biases, but a norm on each query and key head."""
    bias = bool(optional(config, "attention_bias", default=False))
    llama_like(sheet, config, bias=bias, query_key_norm=True)
