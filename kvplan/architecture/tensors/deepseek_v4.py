"""DeepSeek V4: compressed latent attention, hyper-connections, hash-routed first layers.

Source: vLLM 0.32.0 `vllm/models/deepseek_v4/nvidia/model.py`, `attention.py`, `compressor.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.dense import flag, gated_mlp
from kvplan.architecture.tensors.moe import experts
from kvplan.architecture.tensors.sheet import optional, required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.tensors.sheet import Sheet

LAYER = "layers.{layer}."


def deepseek_v4(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """DeepSeek V4 Flash and Pro."""
    hidden, vocab = required(config, "hidden_size"), required(config, "vocab_size")
    layers = range(required(config, "num_hidden_layers"))
    streams = required(config, "hc_mult")
    sheet.outside("first").tensor("embed.weight", (vocab, hidden), "vocab")
    sheet.at(layers)
    _attention(sheet, config)
    mixes = (2 + streams) * streams
    for block in ("attn", "ffn"):
        sheet.tensor(f"{LAYER}hc_{block}_fn", (mixes, streams * hidden), dtype="float32")
        sheet.tensor(f"{LAYER}hc_{block}_base", (mixes,), dtype="float32")
        sheet.tensor(f"{LAYER}hc_{block}_scale", (3,), dtype="float32")
        sheet.norm(f"{LAYER}{block}_norm", hidden)
    _compressors(sheet, config)
    _mixture(sheet, config)
    sheet.outside("every")
    sheet.tensor("hc_head_fn", (streams, streams * hidden), dtype="float32")
    sheet.tensor("hc_head_base", (streams,), dtype="float32")
    sheet.tensor("hc_head_scale", (1,), dtype="float32")
    sheet.outside("last").norm("norm", hidden)
    if not flag(config, "tie_word_embeddings"):
        sheet.tensor("head.weight", (vocab, hidden), "vocab")


def _attention(sheet: Sheet, config: Mapping[str, Any]) -> None:
    hidden, heads = required(config, "hidden_size"), required(config, "num_attention_heads")
    size, q_rank = required(config, "head_dim"), required(config, "q_lora_rank")
    groups, o_rank = required(config, "o_groups"), required(config, "o_lora_rank")
    prefix = f"{LAYER}attn."
    # Padded to the kernel's 64 heads, so not divided below that.
    sheet.tensor(f"{prefix}attn_sink", (heads,), dtype="float32")
    module = f"{prefix}fused_wqa_wkv"
    sheet.linear(f"{prefix}wq_a", q_rank, hidden, module=module)
    sheet.linear(f"{prefix}wkv", size, hidden, module=module)
    sheet.norm(f"{prefix}q_norm", q_rank)
    sheet.norm(f"{prefix}kv_norm", size)
    sheet.linear(f"{prefix}wq_b", heads * size, q_rank, "column")
    sheet.linear(f"{prefix}wo_a", groups * o_rank, heads * size // groups, "column")
    sheet.linear(f"{prefix}wo_b", hidden, groups * o_rank, "row")


def _compressors(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Ratio 4: overlapping windows and a token selector; ratio 128: plain; ratio 0: window attention only."""
    hidden, size = required(config, "hidden_size"), required(config, "head_dim")
    ratios = required(config, "compress_ratios")[: required(config, "num_hidden_layers")]
    for ratio in sorted(set(ratios) - {0, 1}):
        sheet.at([i for i, r in enumerate(ratios) if r == ratio])
        twice = 2 if ratio == 4 else 1
        _compressor(sheet, f"{LAYER}attn.compressor.", hidden, size, ratio, twice)
        if ratio == 4:
            prefix = f"{LAYER}attn.indexer."
            heads, width = required(config, "index_n_heads"), required(config, "index_head_dim")
            sheet.linear(f"{prefix}wq_b", heads * width, required(config, "q_lora_rank"))
            sheet.tensor(f"{prefix}weights_proj.weight", (heads, hidden))
            _compressor(sheet, f"{prefix}compressor.", hidden, width, ratio, twice)


def _compressor(sheet: Sheet, prefix: str, hidden: int, size: int, ratio: int, twice: int) -> None:
    sheet.tensor(f"{prefix}ape", (ratio, twice * size), dtype="float32")
    for name in ("wkv", "wgate"):
        sheet.tensor(f"{prefix}{name}.weight", (twice * size, hidden), module=f"{prefix}fused_wkv_wgate")
    sheet.norm(f"{prefix}norm", size)


def _mixture(sheet: Sheet, config: Mapping[str, Any]) -> None:
    hidden, count = required(config, "hidden_size"), required(config, "n_routed_experts")
    layers = range(required(config, "num_hidden_layers"))
    size = required(config, "moe_intermediate_size")
    hashed = optional(config, "num_hash_layers", 0)
    prefix = f"{LAYER}ffn."
    sheet.at(layers)
    sheet.tensor(f"{prefix}gate.weight", (count, hidden))
    names = ("w1", "w3", "w2")
    experts(sheet, f"{prefix}experts.", count, hidden, size, names=names)
    shared = size * optional(config, "n_shared_experts", 0)
    gated_mlp(sheet, hidden, shared, f"{prefix}shared_experts.", names=names)
    sheet.at(layers[:hashed])
    chosen = required(config, "num_experts_per_tok")
    sheet.tensor(f"{prefix}gate.tid2eid", (required(config, "vocab_size"), chosen), dtype="int32")
    sheet.at(layers[hashed:])
    sheet.tensor(f"{prefix}gate.e_score_correction_bias", (count,), dtype="float32")
