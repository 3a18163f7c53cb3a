"""Layers with recurrent state beside (or instead of) attention: GDN, Mamba 1 and 2.

Sources: the families' published indexes; vLLM 0.32.0 `model_executor/layers/mamba/mamba_mixer.py`,
`mamba_mixer2.py`, `gdn_linear_attn.py`, `model_executor/models/{qwen3_next,jamba,nemotron_h,…}.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.dense import attention, embedding, flag, gated_mlp, output, plain_mlp
from kvplan.architecture.tensors.moe import (
    LAYER,
    NORMS,
    experts,
    granite_mixture,
    granite_shared,
    qwen_mixture,
    router,
)
from kvplan.architecture.tensors.sheet import optional, refuse, required

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.architecture.tensors.sheet import Part, Sheet


def gated_delta_net(sheet: Sheet, config: Mapping[str, Any], prefix: str, *, merged: bool) -> None:
    """Qwen's linear attention; `merged` is Qwen3-Next's file, with q, k, v, z and b, a each in one tensor."""
    hidden = required(config, "hidden_size")
    k_heads, v_heads = required(config, "linear_num_key_heads"), required(config, "linear_num_value_heads")
    key = k_heads * required(config, "linear_key_head_dim")
    value = v_heads * required(config, "linear_value_head_dim")
    kernel = required(config, "linear_conv_kernel_dim")
    first, second = f"{prefix}in_proj_qkvz", f"{prefix}in_proj_ba"
    if merged:
        sheet.linear(first, 2 * key + 2 * value, hidden, "column")
        sheet.linear(second, 2 * v_heads, hidden, "column")
    else:
        sheet.linear(f"{prefix}in_proj_qkv", 2 * key + value, hidden, "column", module=first)
        sheet.linear(f"{prefix}in_proj_z", value, hidden, "column", module=first)
        for name in ("in_proj_b", "in_proj_a"):
            sheet.linear(prefix + name, v_heads, hidden, "column", module=second)
    sheet.tensor(f"{prefix}conv1d.weight", (2 * key + value, 1, kernel), "column")
    sheet.tensor(f"{prefix}dt_bias", (v_heads,), "column")
    sheet.tensor(f"{prefix}A_log", (v_heads,), "column", dtype="float32")
    sheet.norm(f"{prefix}norm", required(config, "linear_value_head_dim"))
    sheet.linear(f"{prefix}out_proj", hidden, value, "row")


def qwen3_next(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Qwen3-Next, Qwen3.5 and later: three linear layers, then one of full attention with an output gate."""
    hidden = required(config, "hidden_size")
    count = required(config, "num_hidden_layers")
    interval = optional(config, "full_attention_interval", 4)
    kinds = config.get("layer_types") or [
        "full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)
    ]
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at([i for i, kind in enumerate(kinds) if kind != "full_attention"])
    gated_delta_net(sheet, config, f"{LAYER}linear_attn.", merged=config["model_type"] == "qwen3_next")
    sheet.at([i for i, kind in enumerate(kinds) if kind == "full_attention"])
    attention(
        sheet,
        config,
        f"{LAYER}self_attn.",
        bias=flag(config, "attention_bias"),
        query_key_norm=True,
        gate=flag(config, "attn_output_gate", default=True),
    )
    sheet.at(range(count))
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    if config.get("num_experts"):
        qwen_mixture(sheet, config)
    else:
        gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{LAYER}mlp.")
    output(sheet, config, tied=tied, head_everywhere=config["model_type"] == "qwen3_next")


def mamba1(
    sheet: Sheet,
    prefix: str,
    hidden: int,
    *,
    inner: int,
    state: int,
    rank: int,
    kernel: int,
    conv_bias: bool,
    bias: bool,
    inner_norms: bool,
) -> None:
    """Mamba 1: every state channel its own decay."""
    sheet.linear(f"{prefix}in_proj", 2 * inner, hidden, "column", bias=bias)
    sheet.tensor(f"{prefix}conv1d.weight", (inner, 1, kernel), "column")
    if conv_bias:
        sheet.tensor(f"{prefix}conv1d.bias", (inner,), "column")
    sheet.linear(f"{prefix}x_proj", rank + 2 * state, inner, "row")
    sheet.linear(f"{prefix}dt_proj", inner, rank, "column", bias=True, quantizable=False)
    sheet.tensor(f"{prefix}A_log", (inner, state), "column", dtype="float32")
    sheet.tensor(f"{prefix}D", (inner,), "column")
    sheet.linear(f"{prefix}out_proj", hidden, inner, "row", bias=bias)
    if inner_norms:
        sheet.norm(f"{prefix}dt_layernorm", rank)
        sheet.norm(f"{prefix}b_layernorm", state)
        sheet.norm(f"{prefix}c_layernorm", state)


def mamba2(
    sheet: Sheet,
    prefix: str,
    hidden: int,
    *,
    inner: int,
    heads: int,
    state: int,
    groups: int,
    kernel: int,
    conv_bias: bool,
    bias: bool,
    norm: bool = True,
) -> None:
    """Mamba 2: gate, x, B, C and dt from one projection; B and C in groups, replicated like KV heads."""
    in_parts: tuple[Part, ...] = (
        (inner, "column", 0),
        (inner, "column", 0),
        (groups * state, "kv", groups),
        (groups * state, "kv", groups),
        (heads, "column", 0),
    )
    sheet.fused(f"{prefix}in_proj", in_parts, hidden, bias=bias, module=f"{prefix}in_proj")
    for outputs, role, split in in_parts[1:4]:
        more = {"heads": split, "module": f"{prefix}conv1d"}
        sheet.tensor(f"{prefix}conv1d.weight", (outputs, 1, kernel), role, **more)
        if conv_bias:
            more = {"heads": split, "module": f"{prefix}conv1d.bias"}
            sheet.tensor(f"{prefix}conv1d.bias", (outputs,), role, **more)
    sheet.tensor(f"{prefix}A_log", (heads,), "column", dtype="float32")
    sheet.tensor(f"{prefix}D", (heads,), "column")
    sheet.tensor(f"{prefix}dt_bias", (heads,), "column")
    if norm:
        sheet.tensor(f"{prefix}norm.weight", (inner,), "column")
    sheet.linear(f"{prefix}out_proj", hidden, inner, "row", bias=bias)


def jamba(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Jamba: Mamba 1 with attention every 8 layers, a mixture in every second one."""
    hidden, count = required(config, "hidden_size"), required(config, "num_hidden_layers")
    intermediate = required(config, "intermediate_size")
    layers = range(count)
    attends = [
        i
        for i in layers
        if i % required(config, "attn_layer_period") == required(config, "attn_layer_offset")
    ]
    number = optional(config, "num_experts", 1)
    period, offset = required(config, "expert_layer_period"), required(config, "expert_layer_offset")
    sparse = [i for i in layers if number > 1 and i % period == offset]
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at([i for i in layers if i not in attends])
    mamba1(
        sheet,
        f"{LAYER}mamba.",
        hidden,
        inner=optional(config, "mamba_expand", 2) * hidden,
        state=optional(config, "mamba_d_state", 16),
        rank=optional(config, "mamba_dt_rank", math.ceil(hidden / 16)),
        kernel=optional(config, "mamba_d_conv", 4),
        conv_bias=flag(config, "mamba_conv_bias", default=True),
        bias=flag(config, "mamba_proj_bias"),
        inner_norms=True,
    )
    sheet.at(attends)
    attention(sheet, config, f"{LAYER}self_attn.")
    sheet.at(layers)
    sheet.norm(f"{LAYER}input_layernorm", hidden)
    sheet.norm(f"{LAYER}pre_ff_layernorm", hidden)
    sheet.at(sparse)
    router(sheet, f"{LAYER}feed_forward.router", number, hidden)
    experts(sheet, f"{LAYER}feed_forward.experts.", number, hidden, intermediate)
    sheet.at([i for i in layers if i not in sparse])
    gated_mlp(sheet, hidden, intermediate, f"{LAYER}feed_forward.")
    output(sheet, config, tied=tied, norm="model.final_layernorm", norm_everywhere=True, head_everywhere=True)


_STATE = {"mamba", "linear_attention"}
"""How configs name a layer with state; transformers 5 writes the second."""


def granite_hybrid(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Granite 4: Mamba 2 with a few attention layers; with or without routed experts."""
    hidden = required(config, "hidden_size")
    kinds: Sequence[str] = required(config, "layer_types", "layers_block_type")
    layers = range(required(config, "num_hidden_layers"))
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at([i for i in layers if kinds[i] in _STATE])
    expand = optional(config, "mamba_expand", 2)
    mamba2(
        sheet,
        f"{LAYER}mamba.",
        hidden,
        inner=expand * hidden,
        heads=required(config, "mamba_n_heads"),
        state=required(config, "mamba_d_state"),
        groups=optional(config, "mamba_n_groups", 1),
        kernel=optional(config, "mamba_d_conv", 4),
        conv_bias=flag(config, "mamba_conv_bias", default=True),
        bias=flag(config, "mamba_proj_bias"),
    )
    sheet.at([i for i in layers if kinds[i] not in _STATE])
    attention(sheet, config, f"{LAYER}self_attn.", bias=flag(config, "attention_bias"))
    sheet.at(layers)
    for name in NORMS:
        sheet.norm(LAYER + name, hidden)
    number = optional(config, "num_local_experts", 0)
    if number:
        granite_mixture(sheet, hidden, required(config, "intermediate_size"), number)
    granite_shared(sheet, hidden, required(config, "shared_intermediate_size"))
    output(sheet, config, tied=tied, norm_everywhere=True, head_everywhere=True)


def mamba2_only(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Mamba 2 without attention (Codestral Mamba)."""
    hidden = required(config, "hidden_size")
    tied = flag(config, "tie_word_embeddings")
    layer = "backbone.layers.{layer}."
    embedding(sheet, config, tied=tied, everywhere=True, name="backbone.embeddings")
    sheet.at(range(required(config, "num_hidden_layers")))
    sheet.norm(f"{layer}norm", hidden)
    mamba2(
        sheet,
        f"{layer}mixer.",
        hidden,
        inner=optional(config, "expand", 2) * hidden,
        heads=required(config, "num_heads"),
        state=required(config, "state_size"),
        groups=required(config, "n_groups"),
        kernel=optional(config, "conv_kernel", 4),
        conv_bias=flag(config, "use_conv_bias", default=True),
        bias=flag(config, "use_bias"),
    )
    output(sheet, config, tied=tied, norm="backbone.norm_f", norm_everywhere=True, head_everywhere=True)


def bamba(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Bamba: Mamba 2 with a few attention layers, a gated block in each."""
    hidden = required(config, "hidden_size")
    layers = range(required(config, "num_hidden_layers"))
    kinds = config.get("layers_block_type") or config.get("layer_types")
    attends = (
        [i for i in layers if kinds[i] not in _STATE] if kinds else config.get("attn_layer_indices") or []
    )
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True)
    sheet.at([i for i in layers if i not in attends])
    mamba2(
        sheet,
        f"{LAYER}mamba.",
        hidden,
        inner=optional(config, "mamba_expand", 2) * hidden,
        heads=required(config, "mamba_n_heads"),
        state=required(config, "mamba_d_state"),
        groups=optional(config, "mamba_n_groups", 1),
        kernel=optional(config, "mamba_d_conv", 4),
        conv_bias=flag(config, "mamba_conv_bias", default=True),
        bias=flag(config, "mamba_proj_bias"),
    )
    sheet.at(attends)
    attention(sheet, config, f"{LAYER}self_attn.", bias=flag(config, "attention_bias"))
    sheet.at(layers)
    gated_mlp(sheet, hidden, required(config, "intermediate_size"), f"{LAYER}feed_forward.")
    for name in ("input_layernorm", "pre_ff_layernorm"):
        sheet.norm(LAYER + name, hidden)
    output(
        sheet,
        config,
        tied=tied,
        norm="model.final_layernorm",
        norm_everywhere=True,
        head_everywhere=True,
    )


_PATTERN = {
    "attention": "*",
    "full_attention": "*",
    "linear_attention": "M",
    "mamba": "M",
    "mlp": "-",
    "moe": "E",
}


def nemotron_h(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Nemotron-H and Nemotron 3: one block a layer, of the kind that the pattern says (M, *, - or E)."""
    hidden = required(config, "hidden_size")
    pattern = config.get("hybrid_override_pattern") or "".join(
        _PATTERN[kind] for kind in required(config, "layers_block_type")
    )
    if set(pattern) - set("M*-E"):
        raise refuse(config, f"the layer pattern {pattern!r}")
    at = {kind: [i for i, char in enumerate(pattern) if char == kind] for kind in "M*-E"}
    prefix = "backbone.layers.{layer}."
    mixer = f"{prefix}mixer."
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied, everywhere=True, name="backbone.embeddings")
    sheet.at(range(len(pattern))).norm(f"{prefix}norm", hidden)
    sheet.at(at["M"])
    heads = required(config, "mamba_num_heads")
    mamba2(
        sheet,
        mixer,
        hidden,
        inner=heads * required(config, "mamba_head_dim"),
        heads=heads,
        state=required(config, "ssm_state_size"),
        groups=required(config, "n_groups"),
        kernel=optional(config, "conv_kernel", 4),
        conv_bias=flag(config, "use_conv_bias", default=True),
        bias=flag(config, "mamba_proj_bias"),
    )
    sheet.at(at["*"])
    size = config.get("head_dim") or config.get("attention_head_dim") or 0
    attention(
        sheet,
        config,
        mixer,
        bias=flag(config, "attention_bias"),
        out_bias=flag(config, "attention_bias"),
        size=size,
    )
    sheet.at(at["-"])
    bias = flag(config, "mlp_bias")
    names = (f"{mixer}up_proj", f"{mixer}down_proj")
    if at["-"]:
        plain_mlp(sheet, hidden, required(config, "intermediate_size"), names, bias=bias)
    if at["E"]:
        _nemotron_mixture(sheet.at(at["E"]), config, mixer)
    output(sheet, config, tied=tied, norm="backbone.norm_f", norm_everywhere=True, head_everywhere=True)


def _nemotron_mixture(sheet: Sheet, config: Mapping[str, Any], mixer: str) -> None:
    """Nemotron 3's experts: up and down only; in the larger ones inside a narrower latent space."""
    hidden, number = required(config, "hidden_size"), required(config, "n_routed_experts")
    latent = config.get("moe_latent_size") or 0
    router(sheet, f"{mixer}gate", number, hidden, bias=f"{mixer}gate.e_score_correction_bias")
    experts(
        sheet,
        f"{mixer}experts.",
        number,
        latent or hidden,
        required(config, "moe_intermediate_size"),
        names=("up_proj", "down_proj"),
    )
    if latent:
        sheet.linear(f"{mixer}fc1_latent_proj", latent, hidden)
        sheet.linear(f"{mixer}fc2_latent_proj", hidden, latent)
    shared = required(config, "moe_shared_expert_intermediate_size") * optional(config, "n_shared_experts", 0)
    names = (f"{mixer}shared_experts.up_proj", f"{mixer}shared_experts.down_proj")
    if shared:
        plain_mlp(sheet, hidden, shared, names)


def falcon_h1(sheet: Sheet, config: Mapping[str, Any]) -> None:
    """Falcon-H1: attention and Mamba 2 side by side in every layer."""
    hidden = required(config, "hidden_size")
    inner = config.get("mamba_d_ssm") or required(config, "mamba_expand") * hidden
    tied = flag(config, "tie_word_embeddings")
    embedding(sheet, config, tied=tied)
    sheet.at(range(required(config, "num_hidden_layers")))
    attention(sheet, config, f"{LAYER}self_attn.", bias=flag(config, "attention_bias"))
    mamba2(
        sheet,
        f"{LAYER}mamba.",
        hidden,
        inner=inner,
        heads=required(config, "mamba_n_heads"),
        state=required(config, "mamba_d_state"),
        groups=optional(config, "mamba_n_groups", 1),
        kernel=optional(config, "mamba_d_conv", 4),
        conv_bias=flag(config, "mamba_conv_bias", default=True),
        bias=flag(config, "mamba_proj_bias"),
        norm=flag(config, "mamba_rms_norm"),
    )
    gated_mlp(
        sheet,
        hidden,
        required(config, "intermediate_size"),
        f"{LAYER}feed_forward.",
        bias=flag(config, "mlp_bias"),
    )
    for name in ("input_layernorm", "pre_ff_layernorm"):
        sheet.norm(LAYER + name, hidden)
    output(sheet, config, tied=tied, norm="model.final_layernorm")
