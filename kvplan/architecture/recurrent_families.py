"""Layers of models with recurrent state: hybrids with attention, and models without any attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.architecture.attention_families import HIDDEN_NAMES, LAYER_COUNT_NAMES, head_geometry
from kvplan.architecture.latent_families import latent
from kvplan.architecture.layers import (
    FullAttention,
    GatedDeltaNetState,
    KdaState,
    Layer,
    LayerCache,
    Mamba1State,
    Mamba2State,
    ShortConvState,
)
from kvplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.config_fields import ConfigFields


def _full(fields: ConfigFields, *, head_dim: int | None = None) -> FullAttention:
    heads, kv_heads, dim = head_geometry(fields, head_dim_default=head_dim)
    return FullAttention(heads, kv_heads, dim, dim)


def _by_kind(fields: ConfigFields, kinds: tuple[str, ...], caches: Mapping[str, Layer]) -> tuple[Layer, ...]:
    unknown = next((kind for kind in kinds if kind not in caches), None)
    if unknown is not None:
        raise UnsupportedModelError(
            f"config.json of {fields.architecture}: layer type {unknown!r} has no rule",
            f"layer types known here: {', '.join(sorted(caches))}",
        )
    return tuple(caches[kind] for kind in kinds)


def gated_delta_net(fields: ConfigFields) -> tuple[Layer, ...]:
    """Qwen3-Next and Qwen3.5: linear attention, with full attention every fourth layer."""
    state = GatedDeltaNetState(
        num_k_heads=fields.integer("linear_num_key_heads"),
        num_v_heads=fields.integer("linear_num_value_heads"),
        head_k_dim=fields.integer("linear_key_head_dim"),
        head_v_dim=fields.integer("linear_value_head_dim"),
        conv_kernel=fields.integer("linear_conv_kernel_dim"),
    )
    count = fields.integer(*LAYER_COUNT_NAMES)
    if fields.get("layer_types") is not None:
        kinds = tuple(map(str, fields.sequence("layer_types")))[:count]
    else:
        interval = fields.integer("full_attention_interval", default=4)
        kinds = tuple(
            "linear_attention" if (index + 1) % interval else "full_attention" for index in range(count)
        )
    full = _full(fields, head_dim=256)
    return _by_kind(fields, kinds, {"linear_attention": (state,), "full_attention": (full,)})


def jamba(fields: ConfigFields) -> tuple[Layer, ...]:
    """Mamba-1 layers, attention in every `attn_layer_period`-th."""
    state = Mamba1State(
        intermediate_size=fields.integer("mamba_expand", default=2) * fields.integer("hidden_size"),
        state_size=fields.integer("mamba_d_state", default=16),
        conv_kernel=fields.integer("mamba_d_conv", default=4),
    )
    period, offset = fields.integer("attn_layer_period"), fields.integer("attn_layer_offset")
    full = _full(fields)
    return tuple(
        (full,) if index % period == offset else (state,)
        for index in range(fields.integer(*LAYER_COUNT_NAMES))
    )


def nemotron_h(fields: ConfigFields) -> tuple[Layer, ...]:
    """One letter a layer: M Mamba-2, * attention, - MLP, E experts."""
    state = Mamba2State(
        intermediate_size=fields.integer("mamba_num_heads") * fields.integer("mamba_head_dim"),
        num_groups=fields.integer("n_groups"),
        num_heads=fields.integer("mamba_num_heads"),
        head_dim=fields.integer("mamba_head_dim"),
        state_size=fields.integer("ssm_state_size"),
        conv_kernel=fields.integer("conv_kernel"),
    )
    heads, kv_heads, head_dim = head_geometry(fields, head_dim_default=128)
    dim = fields.optional_integer("head_dim", "attention_head_dim") or head_dim
    full = FullAttention(heads, kv_heads, dim, dim)
    if fields.get("hybrid_override_pattern") is not None:
        kinds = tuple(str(fields.get("hybrid_override_pattern")))
    else:
        kinds = tuple(map(str, fields.sequence("layers_block_type", "layer_types")))
    caches: dict[str, Layer] = {
        **dict.fromkeys(("M", "mamba", "linear_attention"), (state,)),
        **dict.fromkeys(("*", "attention", "full_attention"), (full,)),
        **dict.fromkeys(("-", "E", "mlp", "moe"), ()),
    }
    return _by_kind(fields, kinds[: fields.integer(*LAYER_COUNT_NAMES)], caches)


def _granite_state(fields: ConfigFields) -> Mamba2State:
    return Mamba2State(
        intermediate_size=fields.integer("mamba_expand") * fields.integer("hidden_size"),
        num_groups=fields.integer("mamba_n_groups"),
        num_heads=fields.integer("mamba_n_heads"),
        head_dim=fields.integer("mamba_d_head"),
        state_size=fields.integer("mamba_d_state"),
        conv_kernel=fields.integer("mamba_d_conv"),
    )


def granite_hybrid(fields: ConfigFields) -> tuple[Layer, ...]:
    """Granite 4: Mamba-2 with few attention layers; some sizes have attention only."""
    kinds = tuple(map(str, fields.sequence("layer_types", "layers_block_type")))
    full = _full(fields)
    caches: dict[str, Layer] = dict.fromkeys(("attention", "full_attention"), (full,))
    if set(kinds) - set(caches):
        state = _granite_state(fields)
        caches |= dict.fromkeys(("mamba", "linear_attention"), (state,))
    return _by_kind(fields, kinds[: fields.integer(*LAYER_COUNT_NAMES)], caches)


def falcon_h1(fields: ConfigFields) -> tuple[Layer, ...]:
    """Attention and a Mamba-2 mixer side by side in every layer."""
    expanded = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
    state = Mamba2State(
        intermediate_size=fields.optional_integer("mamba_d_ssm") or expanded,
        num_groups=fields.integer("mamba_n_groups"),
        num_heads=fields.integer("mamba_n_heads"),
        head_dim=fields.integer("mamba_d_head"),
        state_size=fields.integer("mamba_d_state"),
        conv_kernel=fields.integer("mamba_d_conv"),
    )
    layer: Layer = (_full(fields), state)
    return (layer,) * fields.integer(*LAYER_COUNT_NAMES)


def kimi_linear(fields: ConfigFields) -> tuple[Layer, ...]:
    """Kimi delta attention with MLA in every fourth layer; layers are numbered from 1 in the config."""
    linear = fields.nested("linear_attn_config")
    state = KdaState(
        num_heads=linear.integer("num_heads"),
        head_dim=linear.integer("head_dim"),
        conv_kernel=linear.integer("short_conv_kernel_size"),
        bounded_gate=linear.get("gate_lower_bound") is not None,
    )
    kda = set(linear.sequence("kda_layers"))
    full = latent(fields)
    return tuple(
        (state,) if index + 1 in kda else (full,) for index in range(fields.integer(*LAYER_COUNT_NAMES))
    )


def lfm2(fields: ConfigFields) -> tuple[Layer, ...]:
    """Short convolutions with some attention layers."""
    state = ShortConvState(
        conv_dim=fields.integer("conv_dim", "hidden_size"),
        conv_kernel=fields.integer("conv_L_cache", default=3),
    )
    count = fields.integer(*LAYER_COUNT_NAMES)
    if fields.get("layer_types") is not None:
        kinds = tuple(map(str, fields.sequence("layer_types")))[:count]
    else:
        attention = set(fields.sequence("full_attn_idxs"))
        kinds = tuple("full_attention" if index in attention else "conv" for index in range(count))
    return _by_kind(fields, kinds, {"conv": (state,), "full_attention": (_full(fields),)})


def mamba1(fields: ConfigFields) -> tuple[Layer, ...]:
    """Mamba and Falcon-Mamba: no attention at all."""
    state = Mamba1State(
        intermediate_size=fields.optional_integer("intermediate_size")
        or fields.integer("expand", default=2) * fields.integer(*HIDDEN_NAMES),
        state_size=fields.integer("state_size", "d_state", default=16),
        conv_kernel=fields.integer("conv_kernel", "d_conv", default=4),
    )
    caches: tuple[LayerCache, ...] = (state,)
    return (caches,) * fields.integer(*LAYER_COUNT_NAMES)


def mamba2(fields: ConfigFields) -> tuple[Layer, ...]:
    """Mamba-2 (Codestral Mamba): no attention at all."""
    state = Mamba2State(
        intermediate_size=fields.integer("expand", default=2) * fields.integer(*HIDDEN_NAMES),
        num_groups=fields.integer("n_groups"),
        num_heads=fields.integer("num_heads"),
        head_dim=fields.integer("head_dim"),
        state_size=fields.integer("state_size"),
        conv_kernel=fields.integer("conv_kernel"),
    )
    caches: tuple[LayerCache, ...] = (state,)
    return (caches,) * fields.integer(*LAYER_COUNT_NAMES)
