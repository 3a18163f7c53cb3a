"""Multi-head latent attention: DeepSeek V2 to V3.2, Kimi K2, GLM-5, and their mixtures.

Sources: the published indexes of DeepSeek-V3 and V3.2; vLLM 0.32.0 `model_executor/models/deepseek_v2.py`,
`vllm/models/deepseek_v32`, `model_executor/layers/mla.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.dense import embedding, flag, gated_mlp, output
from kvplan.architecture.tensors.moe import LAYER, NORMS, deepseek_mixture
from kvplan.architecture.tensors.sheet import optional, required

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.architecture.tensors.sheet import Sheet


def latent_attention(sheet: Sheet, config: Mapping[str, Any], prefix: str) -> None:
    """q through its own low rank (or not), k and v through the latent that the cache keeps."""
    hidden = required(config, "hidden_size")
    heads = required(config, "num_attention_heads")
    nope, rope = required(config, "qk_nope_head_dim"), required(config, "qk_rope_head_dim")
    value, rank = required(config, "v_head_dim"), required(config, "kv_lora_rank")
    # Absent is the class default (transformers' DeepseekV2Config and DeepseekV3Config: 1536); null is none.
    q_rank = config.get("q_lora_rank", 1536)
    bias = flag(config, "attention_bias")
    module = f"{prefix}fused_qkv_a_proj"
    if q_rank:
        sheet.linear(f"{prefix}q_a_proj", q_rank, hidden, bias=bias, module=module)
        sheet.norm(f"{prefix}q_a_layernorm", q_rank)
        sheet.linear(f"{prefix}q_b_proj", heads * (nope + rope), q_rank, "column")
    else:
        sheet.linear(f"{prefix}q_proj", heads * (nope + rope), hidden, "column")
    module = module if q_rank else ""
    sheet.linear(f"{prefix}kv_a_proj_with_mqa", rank + rope, hidden, bias=bias, module=module)
    sheet.norm(f"{prefix}kv_a_layernorm", rank)
    sheet.linear(f"{prefix}kv_b_proj", heads * (nope + value), rank, "column")
    sheet.linear(f"{prefix}o_proj", hidden, heads * value, "row", bias=bias)


def indexer(sheet: Sheet, config: Mapping[str, Any], layers: Sequence[int]) -> None:
    """The token selector of sparse attention; vLLM keeps wk and weights_proj together, unquantised."""
    prefix = f"{LAYER}self_attn.indexer."
    hidden = required(config, "hidden_size")
    heads, size = required(config, "index_n_heads"), required(config, "index_head_dim")
    sheet.at(layers)
    sheet.linear(f"{prefix}wq_b", heads * size, required(config, "q_lora_rank"))
    module = f"{prefix}wk_weights_proj"
    sheet.tensor(f"{prefix}wk.weight", (size, hidden), module=module)
    sheet.tensor(f"{prefix}weights_proj.weight", (heads, hidden), module=module)
    sheet.tensor(f"{prefix}k_norm.weight", (size,), dtype="float32")
    sheet.tensor(f"{prefix}k_norm.bias", (size,), dtype="float32")


def deepseek(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """DeepSeek V2, V2.5, V3, R1, V3.1, V3.2; Kimi K2; Moonlight; GLM-5."""
    hidden = required(config, "hidden_size")
    layers = range(required(config, "num_hidden_layers"))
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    sheet.at(layers)
    latent_attention(sheet, config, f"{LAYER}self_attn.")
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    if config.get("index_topk"):
        kinds = optional(config, "indexer_types", ("full",) * len(layers))
        indexer(sheet, config, [i for i, kind in zip(layers, kinds, strict=False) if kind == "full"])
    if config.get("n_routed_experts"):
        # The correction bias came with V3's "noaux_tc" routing; V2 has none.
        deepseek_mixture(sheet, config, bias=config.get("topk_method", "noaux_tc") == "noaux_tc")
    else:
        sheet.at(layers)
        gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{LAYER}mlp.")
    output(sheet, config, tied=tied)
