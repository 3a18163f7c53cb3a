"""Mixtures of experts with grouped-query attention.

Sources: the families' published config.json and safetensors indexes; vLLM 0.32.0
`model_executor/layers/fused_moe/layer.py` (two tensors a layer: w13, w2) and the model files named below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.dense import attention, embedding, flag, gated_mlp, head_size, output
from kvplan.architecture.tensors.sheet import optional, refuse, required

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.architecture.tensors.sheet import Sheet

LAYER = "model.layers.{layer}."
NORMS = ("input_layernorm", "post_attention_layernorm")


def experts(
    sheet: Sheet,
    prefix: str,
    count: int,
    hidden: int,
    intermediate: int,
    *,
    names: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
) -> None:
    """The routed experts of a layer: gate and up become vLLM's w13, down its w2."""
    *ins, down = names
    for name in ins:
        sheet.linear(
            f"{prefix}{{expert}}.{name}",
            intermediate,
            hidden,
            "expert_column",
            count=count,
            module=f"{prefix}w13",
        )
    sheet.linear(
        f"{prefix}{{expert}}.{down}", hidden, intermediate, "expert_row", count=count, module=f"{prefix}w2"
    )


def router(
    sheet: Sheet, name: str, count: int, hidden: int, *, bias: str = "", dtype: str | None = None
) -> None:
    """The router, which vLLM neither divides nor quantises; `bias` is a float32 correction per expert."""
    sheet.tensor(f"{name}.weight", (count, hidden), dtype=dtype)
    if bias:
        sheet.tensor(bias, (count,), dtype="float32")


def mixtral(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Mixtral: every layer is a mixture."""
    hidden, count = required(config, "hidden_size"), required(config, "num_local_experts")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{LAYER}self_attn.")
    router(sheet, f"{LAYER}block_sparse_moe.gate", count, hidden)
    experts(
        sheet,
        f"{LAYER}block_sparse_moe.experts.",
        count,
        hidden,
        required(config, "intermediate_size"),
        names=("w1", "w3", "w2"),
    )
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    output(sheet, config, tied=tied, norm_everywhere=True, head_everywhere=True)


def sparse_layers(config: Mapping[str, Any]) -> list[int]:
    """Qwen's rule for which layers are mixtures (`decoder_sparse_step`, `mlp_only_layers`)."""
    dense = set(optional(config, "mlp_only_layers", ()))
    step = optional(config, "decoder_sparse_step", 1)
    layers = range(required(config, "num_hidden_layers"))
    return [i for i in layers if i not in dense and step and (i + 1) % step == 0]


def qwen_mixture(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """The feed-forward blocks of Qwen's mixtures, with the shared expert where there is one."""
    hidden = required(config, "hidden_size")
    count = required(config, "num_experts")
    sparse = sparse_layers(config)
    sheet.at(sparse)
    router(sheet, f"{LAYER}mlp.gate", count, hidden)
    experts(sheet, f"{LAYER}mlp.experts.", count, hidden, required(config, "moe_intermediate_size"))
    shared = optional(config, "shared_expert_intermediate_size", 0)
    if shared:
        gated_mlp(sheet, hidden, shared, f"{LAYER}mlp.shared_expert.")
        sheet.tensor(f"{LAYER}mlp.shared_expert_gate.weight", (1, hidden))
    dense = [i for i in range(required(config, "num_hidden_layers")) if i not in set(sparse)]
    if dense:
        sheet.at(dense)
        gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{LAYER}mlp.")


def qwen_moe(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Qwen1.5-MoE and Qwen2-57B (biases on q, k, v), Qwen3-MoE (norms over the heads instead)."""
    hidden = required(config, "hidden_size")
    third = "qwen3" in config["model_type"]
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at(range(required(config, "num_hidden_layers")))
    bias = flag(config, "attention_bias") if third else flag(config, "qkv_bias", default=True)
    attention(sheet, config, f"{LAYER}self_attn.", bias=bias, query_key_norm=third)
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    qwen_mixture(sheet, config)
    output(sheet, config, tied=tied, norm_everywhere=True, head_everywhere=True)


def olmoe(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """OLMoE: norms over all queries and all keys at once."""
    hidden, count = required(config, "hidden_size"), required(config, "num_experts")
    heads = required(config, "num_attention_heads")
    size = head_size(config)
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{LAYER}self_attn.", bias=flag(config, "attention_bias"))
    sheet.norm(f"{LAYER}self_attn.q_norm", heads * size)
    sheet.norm(f"{LAYER}self_attn.k_norm", optional(config, "num_key_value_heads", heads) * size)
    router(sheet, f"{LAYER}mlp.gate", count, hidden)
    experts(sheet, f"{LAYER}mlp.experts.", count, hidden, required(config, "intermediate_size"))
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    output(sheet, config, tied=tied, norm_everywhere=True, head_everywhere=True)


def granite_moe(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Granite 3 MoE: gate and up of all experts in one tensor of the file; the rest is Mixtral's."""
    hidden, count = required(config, "hidden_size"), required(config, "num_local_experts")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{LAYER}self_attn.")
    granite_mixture(sheet, hidden, required(config, "intermediate_size"), count)
    shared = optional(config, "shared_intermediate_size", 0)
    granite_shared(sheet, hidden, shared)
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    output(sheet, config, tied=tied, norm_everywhere=True, head_everywhere=True)


def granite_mixture(sheet: Sheet, hidden: int, intermediate: int, count: int) -> None:
    """Routed experts under Granite's names."""
    prefix = f"{LAYER}block_sparse_moe."
    router(sheet, f"{prefix}router.layer", count, hidden)
    sheet.tensor(
        f"{prefix}input_linear.weight",
        (2 * intermediate, hidden),
        "expert_column",
        count=count,
        quantizable=True,
        module=f"{prefix}w13",
    )
    sheet.tensor(
        f"{prefix}output_linear.weight",
        (hidden, intermediate),
        "expert_row",
        count=count,
        quantizable=True,
        module=f"{prefix}w2",
    )


def granite_shared(sheet: Sheet, hidden: int, shared: int) -> None:
    """Granite's always-on feed-forward block."""
    sheet.linear(f"{LAYER}shared_mlp.input_linear", 2 * shared, hidden, "column")
    sheet.linear(f"{LAYER}shared_mlp.output_linear", hidden, shared, "row")


def gpt_oss(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """gpt-oss: biases everywhere, a sink per head; experts in the file as blocks of all experts at once."""
    hidden, count = required(config, "hidden_size"), required(config, "num_local_experts", "num_experts")
    intermediate = required(config, "intermediate_size")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{LAYER}self_attn.", bias=True, out_bias=True)
    sheet.tensor(f"{LAYER}self_attn.sinks", (required(config, "num_attention_heads"),), "column")
    sheet.linear(f"{LAYER}mlp.router", count, hidden, bias=True, quantizable=False)
    prefix = f"{LAYER}mlp.experts."
    expert = {"count": count, "bias": True}
    sheet.linear(
        f"{prefix}gate_up_proj", 2 * intermediate, hidden, "expert_column", module=f"{prefix}w13", **expert
    )
    sheet.linear(f"{prefix}down_proj", hidden, intermediate, "expert_row", module=f"{prefix}w2", **expert)
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    output(sheet, config, tied=tied, norm_everywhere=True, head_everywhere=True)


def llama4(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Llama 4: mixtures every `interleave_moe_layer_step` layers, each with a shared expert."""
    hidden, count = required(config, "hidden_size"), required(config, "num_local_experts")
    intermediate = required(config, "intermediate_size")
    layers = range(required(config, "num_hidden_layers"))
    step = required(config, "interleave_moe_layer_step")
    sparse = config.get("moe_layers") or [i for i in layers if step and (i + 1) % step == 0]
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    sheet.at(layers)
    bias = flag(config, "attention_bias")
    attention(sheet, config, f"{LAYER}self_attn.", bias=bias, out_bias=bias)
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    sheet.at(sparse)
    prefix = f"{LAYER}feed_forward."
    sheet.linear(f"{prefix}router", count, hidden, quantizable=False)
    gated_mlp(sheet, hidden, intermediate, f"{prefix}shared_expert.")
    fused = {"count": count, "quantizable": True}
    # In the file one tensor of all experts, (inputs, outputs); the shape here is one expert's.
    sheet.tensor(
        f"{prefix}experts.gate_up_proj",
        (2 * intermediate, hidden),
        "expert_column",
        module=f"{prefix}w13",
        **fused,
    )
    sheet.tensor(
        f"{prefix}experts.down_proj", (hidden, intermediate), "expert_row", module=f"{prefix}w2", **fused
    )
    dense = [i for i in layers if i not in set(sparse)]
    if dense:
        sheet.at(dense)
        gated_mlp(sheet, hidden, required(config, "intermediate_size_mlp"), prefix)
    output(sheet, config, tied=tied)


def minimax_m2(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """MiniMax M2: norms over all queries and all keys, a routing bias."""
    hidden, count = required(config, "hidden_size"), required(config, "num_local_experts")
    heads = required(config, "num_attention_heads")
    size = head_size(config)
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{LAYER}self_attn.")
    if flag(config, "use_qk_norm", default=True):
        # MiniMaxText01RMSNormTP: each rank normalises its own heads.
        kv_heads = optional(config, "num_key_value_heads", heads)
        sheet.tensor(f"{LAYER}self_attn.q_norm.weight", (heads * size,), "column")
        sheet.tensor(f"{LAYER}self_attn.k_norm.weight", (kv_heads * size,), "kv", heads=kv_heads)
    prefix = f"{LAYER}block_sparse_moe."
    bias = f"{prefix}e_score_correction_bias" if flag(config, "use_routing_bias", default=True) else ""
    router(sheet, f"{prefix}gate", count, hidden, bias=bias, dtype="float32")
    experts(
        sheet,
        f"{prefix}experts.",
        count,
        hidden,
        required(config, "intermediate_size"),
        names=("w1", "w3", "w2"),
    )
    shared = optional(config, "shared_intermediate_size", 0)
    if shared:
        raise refuse(config, "a shared expert")
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    output(sheet, config, tied=tied)


def phi_moe(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Phi-3.5-MoE: Mixtral with layer norms, and biases where the config says so."""
    hidden, count = required(config, "hidden_size"), required(config, "num_local_experts")
    bias = flag(config, "attention_bias")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{LAYER}self_attn.", bias=bias, out_bias=bias)
    router(sheet, f"{LAYER}block_sparse_moe.gate", count, hidden)
    size = required(config, "intermediate_size")
    prefix = f"{LAYER}block_sparse_moe.experts."
    experts(sheet, prefix, count, hidden, size, names=("w1", "w3", "w2"))
    for name in NORMS:
        sheet.norm(LAYER + name, hidden, bias=True)
    output(sheet, config, tied=tied, bias=True, norm_everywhere=True, head_everywhere=True)
    if flag(config, "lm_head_bias"):
        sheet.tensor("lm_head.bias", (required(config, "vocab_size"),), "vocab")


def ernie_moe(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """ERNIE 4.5, mixtures: dense layers at the ends, shared experts in one block."""
    hidden, count = required(config, "hidden_size"), required(config, "moe_num_experts")
    size = required(config, "moe_intermediate_size")
    bias = flag(config, "use_bias")
    tied = flag(config, "tie_word_embeddings", default=True)
    layers = range(required(config, "num_hidden_layers"))
    start, interval = required(config, "moe_layer_start_index"), optional(config, "moe_layer_interval", 1)
    end = optional(config, "moe_layer_end_index", -1)
    last = end if end >= 0 else len(layers) - 1
    sparse = [i for i in layers if start <= i <= last and (i + 1) % interval == 0]
    embedding(sheet, config, tied=tied)
    sheet.at(layers)
    attention(sheet, config, f"{LAYER}self_attn.", bias=bias, out_bias=bias)
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    sheet.at(sparse)
    correction = f"{LAYER}mlp.moe_statics.e_score_correction_bias"
    router(sheet, f"{LAYER}mlp.gate", count, hidden, bias=correction, dtype="float32")
    experts(sheet, f"{LAYER}mlp.experts.", count, hidden, size)
    shared = size * optional(config, "moe_num_shared_experts", 0)
    gated_mlp(sheet, hidden, shared, f"{LAYER}mlp.shared_experts.", bias=bias)
    sheet.at([i for i in layers if i not in sparse])
    gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{LAYER}mlp.", bias=bias)
    output(sheet, config, tied=tied)


def dots1(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """dots.llm1: Qwen3's attention, DeepSeek's mixture."""
    hidden = required(config, "hidden_size")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{LAYER}self_attn.", bias=flag(config, "attention_bias"), query_key_norm=True)
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    deepseek_mixture(sheet, config)
    output(sheet, config, tied=tied)


def glm4_moe(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """GLM-4.5 to 4.7: the first layers dense, then experts with a shared one."""
    hidden = required(config, "hidden_size")
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(
        sheet,
        config,
        f"{LAYER}self_attn.",
        bias=flag(config, "attention_bias"),
        query_key_norm=flag(config, "use_qk_norm"),
    )
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    deepseek_mixture(sheet, config, router_dtype="float32")
    output(sheet, config, tied=tied)


def deepseek_mixture(
    sheet: Sheet, config: Mapping[str, Any], *, router_dtype: str | None = None, bias: bool = True
) -> None:
    """Dense layers first, then mixtures with shared experts, as DeepSeek and GLM number them."""
    hidden, count = required(config, "hidden_size"), required(config, "n_routed_experts")
    layers = range(required(config, "num_hidden_layers"))
    freq = optional(config, "moe_layer_freq", 1)
    kinds = config.get("mlp_layer_types")
    if kinds and config.get("first_k_dense_replace") is None:
        sparse = [i for i in layers if kinds[i] == "sparse"]
    else:
        first = required(config, "first_k_dense_replace")
        sparse = [i for i in layers if i >= first and i % freq == 0]
    size = required(config, "moe_intermediate_size")
    sheet.at(sparse)
    correction = f"{LAYER}mlp.gate.e_score_correction_bias" if bias else ""
    router(sheet, f"{LAYER}mlp.gate", count, hidden, bias=correction, dtype=router_dtype)
    experts(sheet, f"{LAYER}mlp.experts.", count, hidden, size)
    gated_mlp(sheet, hidden, size * optional(config, "n_shared_experts", 0), f"{LAYER}mlp.shared_experts.")
    dense = [i for i in layers if i not in set(sparse)]
    sheet.at(dense)
    gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{LAYER}mlp.")
