"""Decoders with softmax attention and one gated feed-forward block a layer: Llama and its relatives.

Names are those of the checkpoints. Sources: the families' published config.json and safetensors indexes;
what vLLM merges and divides: vLLM 0.32.0 `model_executor/models/{llama,qwen2,qwen3,phi3,…}.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.sheet import optional, query_key_value, refuse, required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.tensors.sheet import Sheet


def head_size(config: Mapping[str, Any]) -> int:
    """Values a head: explicit, or hidden size divided by heads."""
    return int(
        config.get("head_dim") or required(config, "hidden_size") // required(config, "num_attention_heads")
    )


def flag(config: Mapping[str, Any], key: str, default: bool = False) -> bool:
    """A boolean of the config."""
    return bool(optional(config, key, default))


def embedding(
    sheet: Sheet,
    config: Mapping[str, Any],
    *,
    tied: bool = False,
    everywhere: bool = False,
    name: str = "model.embed_tokens",
) -> None:
    """The token embedding; a tied one is the last stage's head too; some models keep it in every stage."""
    sheet.outside("every" if everywhere else "ends" if tied else "first")
    sheet.tensor(f"{name}.weight", (required(config, "vocab_size"), required(config, "hidden_size")), "vocab")


def output(
    sheet: Sheet,
    config: Mapping[str, Any],
    *,
    tied: bool,
    norm: str = "model.norm",
    head: str = "lm_head",
    bias: bool = False,
    norm_everywhere: bool = False,
    head_everywhere: bool = False,
) -> None:
    """The final norm, and the head where it is a tensor of its own; some models keep them in every stage."""
    hidden = required(config, "hidden_size")
    sheet.outside("every" if norm_everywhere else "last").norm(norm, hidden, bias=bias)
    if not tied:
        sheet.outside("every" if head_everywhere else "last")
        sheet.tensor(f"{head}.weight", (required(config, "vocab_size"), hidden), "vocab")


def attention(
    sheet: Sheet,
    config: Mapping[str, Any],
    prefix: str,
    *,
    bias: bool = False,
    out_bias: bool = False,
    query_key_norm: bool = False,
    heads: int = 0,
    kv_heads: int = 0,
    size: int = 0,
    gate: bool = False,
) -> None:
    """Grouped-query attention: q, k, v (one tensor in vLLM) and o; `gate` doubles q."""
    hidden = required(config, "hidden_size")
    heads = heads or required(config, "num_attention_heads")
    kv_heads = kv_heads or optional(config, "num_key_value_heads", heads)
    size = size or head_size(config)
    module = f"{prefix}qkv_proj"
    sheet.linear(f"{prefix}q_proj", (1 + gate) * heads * size, hidden, "column", bias=bias, module=module)
    for name in ("k_proj", "v_proj"):
        sheet.linear(prefix + name, kv_heads * size, hidden, "kv", bias=bias, heads=kv_heads, module=module)
    sheet.linear(f"{prefix}o_proj", hidden, heads * size, "row", bias=out_bias)
    if query_key_norm:
        sheet.norm(f"{prefix}q_norm", size)
        sheet.norm(f"{prefix}k_norm", size)


def gated_mlp(
    sheet: Sheet,
    hidden: int,
    intermediate: int,
    prefix: str,
    *,
    bias: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> None:
    """gate, up and down; vLLM merges the first two."""
    *ins, down = names
    for name in ins:
        sheet.linear(prefix + name, intermediate, hidden, "column", bias=bias, module=f"{prefix}gate_up_proj")
    sheet.linear(prefix + down, hidden, intermediate, "row", bias=bias)


def plain_mlp(
    sheet: Sheet, hidden: int, intermediate: int, names: tuple[str, str], *, bias: bool = False
) -> None:
    """One matrix up, one down."""
    sheet.linear(names[0], intermediate, hidden, "column", bias=bias)
    sheet.linear(names[1], hidden, intermediate, "row", bias=bias)


def llama_like(
    sheet: Sheet,
    config: Mapping[str, Any],
    *,
    bias: bool = False,
    out_bias: bool = False,
    mlp_bias: bool = False,
    query_key_norm: bool = False,
    tied: bool = False,
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    norm_bias: bool = False,
    everywhere: bool = False,
) -> None:
    """Llama, and the families that differ from it in biases, norms and tied embeddings only.

    `tied` is the family's default where the config does not say; `everywhere`: vLLM builds the embedding, the
    final norm and the head on every pipeline stage.
    """
    hidden = required(config, "hidden_size")
    tied = flag(config, "tie_word_embeddings", tied)
    embedding(sheet, config, tied=tied, everywhere=everywhere)
    layer = "model.layers.{layer}."
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(
        sheet,
        config,
        f"{layer}self_attn.",
        bias=bias,
        out_bias=out_bias,
        query_key_norm=query_key_norm,
    )
    gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{layer}mlp.", bias=mlp_bias)
    for name in norms:
        sheet.norm(layer + name, hidden, bias=norm_bias)
    output(sheet, config, tied=tied, bias=norm_bias, norm_everywhere=everywhere, head_everywhere=everywhere)


def llama(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Llama 1 to 3, Yi, SmolLM, R1-Distill-Llama; the tensors of Mistral, Granite 3 and Seed-OSS too."""
    bias = flag(config, "attention_bias")
    out_bias = flag(config, "attention_out_bias", bias)
    llama_like(sheet, config, bias=bias, out_bias=out_bias, mlp_bias=flag(config, "mlp_bias"))


def smollm3(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """SmolLM3: Llama, tied unless it says otherwise."""
    bias = flag(config, "attention_bias")
    llama_like(sheet, config, bias=bias, out_bias=bias, mlp_bias=flag(config, "mlp_bias"), tied=True)


def ernie(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """ERNIE 4.5, dense: one flag for all biases, tied."""
    bias = flag(config, "use_bias")
    llama_like(sheet, config, bias=bias, out_bias=bias, mlp_bias=bias, tied=True)


def exaone4(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """EXAONE 4: norms after the blocks, and over each query and key head."""
    norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    llama_like(sheet, config, query_key_norm=True, norms=norms)


def qwen2(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Qwen2, Qwen2.5, QwQ: Llama with biases on q, k and v."""
    llama_like(sheet, config, bias=True)


def qwen3(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Qwen3: no biases, but a norm over each query and key head."""
    llama_like(sheet, config, bias=flag(config, "attention_bias"), query_key_norm=True)


def phi3(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Phi-3, Phi-3.5, Phi-4: Llama with q, k, v and gate, up each in one tensor of the file."""
    hidden = required(config, "hidden_size")
    heads = required(config, "num_attention_heads")
    kv_heads = optional(config, "num_key_value_heads", heads)
    size = head_size(config)
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    layer = "model.layers.{layer}."
    intermediate = required(config, "intermediate_size")
    sheet.at(range(required(config, "num_hidden_layers")))
    sheet.fused(f"{layer}self_attn.qkv_proj", query_key_value(heads, kv_heads, size), hidden)
    sheet.linear(f"{layer}self_attn.o_proj", hidden, heads * size, "row")
    sheet.linear(f"{layer}mlp.gate_up_proj", 2 * intermediate, hidden, "column")
    sheet.linear(f"{layer}mlp.down_proj", hidden, intermediate, "row")
    for name in ("input_layernorm", "post_attention_layernorm"):
        sheet.norm(layer + name, hidden)
    output(sheet, config, tied=tied)


def gemma(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Gemma 1: Llama's tensors, tied."""
    llama_like(sheet, config, tied=True, everywhere=True)


GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def gemma2(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Gemma 2: four norms a layer, tied."""
    llama_like(sheet, config, tied=True, norms=GEMMA_NORMS, everywhere=True)


GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
}
"""What the published Gemma 3 configs leave out (transformers `Gemma3TextConfig`)."""


def gemma3(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Gemma 3: Gemma 2 with a norm over each query and key head."""
    given = {key: value for key, value in config.items() if value is not None}
    llama_like(sheet, GEMMA3_DEFAULTS | given, query_key_norm=True, norms=GEMMA_NORMS, everywhere=True)


def olmo2(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """OLMo 2 and 3: norms after the blocks, and over all queries and keys at once."""
    hidden = required(config, "hidden_size")
    heads = required(config, "num_attention_heads")
    size = head_size(config)
    llama_like(sheet, config, norms=("post_attention_layernorm", "post_feedforward_layernorm"))
    layer = "model.layers.{layer}.self_attn."
    sheet.at(range(required(config, "num_hidden_layers")))
    # Each rank normalises over all heads, so it keeps the whole scale: olmo2.py loads it replicated.
    sheet.norm(f"{layer}q_norm", hidden)
    sheet.norm(f"{layer}k_norm", optional(config, "num_key_value_heads", heads) * size)


def cohere(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Command R: one norm a layer, tied."""
    if flag(config, "use_qk_norm"):
        raise refuse(config, "use_qk_norm")
    bias = flag(config, "attention_bias")
    llama_like(
        sheet,
        config,
        bias=bias,
        out_bias=bias,
        tied=True,
        norms=("input_layernorm",),
        everywhere=True,
    )


def glm(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """GLM-4-HF and GLM-4-0414: gate and up in one tensor; the latter has two more norms."""
    hidden = required(config, "hidden_size")
    intermediate = required(config, "intermediate_size")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    layer = "model.layers.{layer}."
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{layer}self_attn.", bias=flag(config, "attention_bias"))
    sheet.linear(f"{layer}mlp.gate_up_proj", 2 * intermediate, hidden, "column")
    sheet.linear(f"{layer}mlp.down_proj", hidden, intermediate, "row")
    more = ("post_self_attn_layernorm", "post_mlp_layernorm") if config["model_type"] == "glm4" else ()
    for name in ("input_layernorm", "post_attention_layernorm", *more):
        sheet.norm(layer + name, hidden)
    output(sheet, config, tied=tied)


def starcoder2(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """StarCoder2: biases everywhere, layer norms, a plain feed-forward block, tied."""
    hidden = required(config, "hidden_size")
    bias = flag(config, "use_bias", default=True)
    tied = flag(config, "tie_word_embeddings", default=True)
    embedding(sheet, config, tied=tied, everywhere=True)
    layer = "model.layers.{layer}."
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{layer}self_attn.", bias=bias, out_bias=bias)
    names = (f"{layer}mlp.c_fc", f"{layer}mlp.c_proj")
    plain_mlp(sheet, hidden, required(config, "intermediate_size"), names, bias=bias)
    for name in ("input_layernorm", "post_attention_layernorm"):
        sheet.norm(layer + name, hidden, bias=True)
    output(sheet, config, tied=tied, bias=True, norm_everywhere=True)


def nemotron(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Nemotron-4 and Minitron: layer norms with a shift, squared ReLU, so no gate."""
    hidden = required(config, "hidden_size")
    bias = flag(config, "attention_bias")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    layer = "model.layers.{layer}."
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{layer}self_attn.", bias=bias, out_bias=bias)
    names = (f"{layer}mlp.up_proj", f"{layer}mlp.down_proj")
    plain_mlp(sheet, hidden, required(config, "intermediate_size"), names, bias=flag(config, "mlp_bias"))
    for name in ("input_layernorm", "post_attention_layernorm"):
        sheet.norm(layer + name, hidden, bias=True)
    output(sheet, config, tied=tied, bias=True)


def nemotron_nas(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Llama-Nemotron (DeciLM): Llama layers of different sizes, some without attention or feed-forward."""
    hidden = required(config, "hidden_size")
    heads = required(config, "num_attention_heads")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    layer = "model.layers.{layer}."
    for index, block in enumerate(required(config, "block_configs")):
        own, feed = block["attention"], block["ffn"]
        if own.get("replace_with_linear") or feed.get("replace_with_linear"):
            raise refuse(config, f"a linear block in place of layer {index}'s")
        sheet.at((index,))
        if not own.get("no_op"):
            kv_heads = heads // own["n_heads_in_group"]
            attention(sheet, config, f"{layer}self_attn.", kv_heads=kv_heads)
            sheet.norm(f"{layer}input_layernorm", hidden)
        if not feed.get("no_op"):
            # _ffn_mult_to_intermediate_size of nemotron_nas.py: two thirds, up to the next 256.
            size = feed.get("intermediate_size") or -(-int(2 * feed["ffn_mult"] * hidden / 3) // 256) * 256
            gated_mlp(sheet, hidden, size, f"{layer}mlp.")
            sheet.norm(f"{layer}post_attention_layernorm", hidden)
    output(sheet, config, tied=tied)
