"""Layers of decoders whose cache is keys and values per head: full, sliding-window and chunked-local."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from kvplan.architecture.layers import (
    BlockSparseAttention,
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    IndexKeys,
    Layer,
    SlidingWindow,
)
from kvplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.architecture.config_fields import ConfigFields

LAYER_COUNT_NAMES: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
HEADS_NAMES: Final = ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
HIDDEN_NAMES: Final = ("hidden_size", "n_embd", "d_model")
KV_HEADS_NAMES: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")


def head_geometry(
    fields: ConfigFields, *, kv_heads_default: int | None = None, head_dim_default: int | None = None
) -> tuple[int, int, int]:
    """(query heads, KV heads, head size) of the whole model.

    Raises:
        UnsupportedModelError: a field is missing, or the hidden size does not divide into the heads.
    """
    heads = fields.integer(*HEADS_NAMES)
    kv_heads = fields.integer(*KV_HEADS_NAMES, default=kv_heads_default)
    head_dim = fields.optional_integer("head_dim") or head_dim_default
    if head_dim is None:
        hidden = fields.integer(*HIDDEN_NAMES)
        if hidden % heads:
            raise UnsupportedModelError(
                f"config.json of {fields.architecture}: hidden_size {hidden} does not divide into "
                f"{heads} attention heads, and `{fields.path}head_dim` is not given",
                "add head_dim",
            )
        head_dim = hidden // heads
    return heads, kv_heads, head_dim


def _layer(geometry: tuple[int, int, int], window: int | None, *, sinks: bool = False) -> Layer:
    heads, kv_heads, head_dim = geometry
    if window is None:
        return (FullAttention(heads, kv_heads, head_dim, head_dim, sinks),)
    return (SlidingWindow(heads, kv_heads, head_dim, head_dim, window, sinks),)


def _count(fields: ConfigFields) -> int:
    return fields.integer(*LAYER_COUNT_NAMES)


def layer_types(fields: ConfigFields) -> tuple[str, ...] | None:
    """The `layer_types` list, or None; it must name every layer.

    Raises:
        UnsupportedModelError: of another length than the number of layers.
    """
    if fields.get("layer_types") is None:
        return None
    types = tuple(map(str, fields.sequence("layer_types")))
    if len(types) < _count(fields):
        raise UnsupportedModelError(
            f"config.json of {fields.architecture}: `{fields.path}layer_types` names {len(types)} layers "
            f"of {_count(fields)}",
            "compare the file with the model's own on the hub",
        )
    return types[: _count(fields)]


def plain(
    *,
    kv_heads: Literal["heads"] | int | None = None,
    head_dim: int | None = None,
    window_default: int | None = None,
    own_head_dim: bool = True,
) -> Callable[[ConfigFields], tuple[Layer, ...]]:
    """Layers all of one kind: full attention, or sliding where the config names a window.

    Args:
        kv_heads: what the config class puts in place of a missing field: "heads" for as many as query
            heads, or a number.
        head_dim: the config class's own head size, where it has one.
        window_default: the config class's own sliding window (Mistral), where it has one.
        own_head_dim: whether vLLM's model reads `head_dim`; else it is hidden_size / heads.
    """

    def build(fields: ConfigFields) -> tuple[Layer, ...]:
        default = fields.integer(*HEADS_NAMES) if kv_heads == "heads" else kv_heads
        geometry = head_geometry(fields, kv_heads_default=default, head_dim_default=head_dim)
        if not own_head_dim:
            heads, kv, _ = geometry
            geometry = heads, kv, fields.integer(*HIDDEN_NAMES) // heads
        types = layer_types(fields)
        if types is not None and set(types) - {"sliding_attention"}:
            return _by_type(fields, geometry, types)
        missing = "sliding_window" not in fields.values
        window = window_default if missing else fields.optional_integer("sliding_window")
        # Some checkpoints write 0 for "no window" (vLLM 0.32.0 config/model.py).
        return (_layer(geometry, window or None),) * _count(fields)

    return build


def _by_type(
    fields: ConfigFields, geometry: tuple[int, int, int], types: tuple[str, ...], *, sinks: bool = False
) -> tuple[Layer, ...]:
    """One layer a name in `layer_types`."""
    unknown = set(types) - {"sliding_attention", "full_attention"}
    if unknown:
        raise UnsupportedModelError(
            f"config.json of {fields.architecture}: layer type {min(unknown)!r} has no rule",
            "layer types known here: full_attention, sliding_attention",
        )
    return tuple(
        _layer(
            geometry,
            fields.integer("sliding_window") if kind == "sliding_attention" else None,
            sinks=sinks,
        )
        for kind in types
    )


def qwen(
    *, head_dim: int | None = None, own_head_dim: bool = True
) -> Callable[[ConfigFields], tuple[Layer, ...]]:
    """Qwen2/2.5/3: a `sliding_window` counts only where `use_sliding_window` is true.

    Source: transformers configuration_qwen2.py (the class drops the window otherwise); vLLM 0.32.0
    qwen2.py refuses a window on some layers only.
    """

    def build(fields: ConfigFields) -> tuple[Layer, ...]:
        heads, kv_heads, dim = head_geometry(fields, head_dim_default=head_dim)
        if not own_head_dim:
            dim = fields.integer(*HIDDEN_NAMES) // heads
        geometry = heads, kv_heads, dim
        count = _count(fields)
        if fields.get("use_sliding_window") is not True:
            return (_layer(geometry, None),) * count
        types = layer_types(fields) or tuple(
            "sliding_attention" if index >= fields.integer("max_window_layers") else "full_attention"
            for index in range(count)
        )
        if len(set(types)) > 1:
            raise UnsupportedModelError(
                "Sliding window for some but all layers is not supported. This model uses sliding window "
                f"but `max_window_layers` = {fields.get('max_window_layers')} is less than "
                f"`num_hidden_layers` = {count}. Please open an issue to discuss this feature.",
                "vLLM's own refusal (qwen2.py, 0.8 to 0.32): set use_sliding_window to false",
            )
        windowed = types[0] == "sliding_attention"
        return (_layer(geometry, fields.integer("sliding_window") if windowed else None),) * count

    return build


def alternating(
    *, period: int, head_dim: int | None, kv_heads: int | None = None, heads: int | None = None,
    window: int | None = None, sinks: bool = False, extra_window: int = 0,
) -> Callable[[ConfigFields], tuple[Layer, ...]]:  # fmt: skip
    """Sliding layers with one full layer every `period` (Gemma 2: 2, Gemma 3: 6, gpt-oss: 2, Cohere 2: 4).

    Args:
        period: used where the config has neither `layer_types` nor `sliding_window_pattern`.
        head_dim: the config class's own value, as are `kv_heads`, `heads` and `window`.
        kv_heads: see above.
        heads: see above.
        window: see above.
        sinks: the model has attention sinks.
        extra_window: tokens that vLLM adds to the configured window (Cohere 2: 1).
    """

    def build(fields: ConfigFields) -> tuple[Layer, ...]:
        num_heads = fields.integer(*HEADS_NAMES, default=heads)
        num_kv_heads = fields.integer(*KV_HEADS_NAMES, default=kv_heads)
        dim = fields.optional_integer("head_dim") or head_dim
        if dim is None:
            dim = fields.integer(*HIDDEN_NAMES) // num_heads
        pattern = fields.optional_integer("sliding_window_pattern", "_sliding_window_pattern") or period
        types = layer_types(fields) or tuple(
            "sliding_attention" if (index + 1) % pattern else "full_attention"
            for index in range(_count(fields))
        )
        unknown = set(types) - {"sliding_attention", "full_attention"}
        if unknown:
            raise UnsupportedModelError(
                f"config.json of {fields.architecture}: layer type {min(unknown)!r} has no rule",
                "kvplan/architecture/families.py says how to add a rule",
            )
        width = fields.integer("sliding_window", default=window) + extra_window
        geometry = num_heads, num_kv_heads, dim
        return tuple(
            _layer(geometry, width if kind == "sliding_attention" else None, sinks=sinks) for kind in types
        )

    return build


def gpt_oss(fields: ConfigFields) -> tuple[Layer, ...]:
    """Every other layer slides, the first one does; sinks in all (vLLM 0.32.0 gpt_oss.py)."""
    geometry = head_geometry(fields, head_dim_default=64)
    window = fields.integer("sliding_window")
    return tuple(
        _layer(geometry, window if index % 2 == 0 else None, sinks=True) for index in range(_count(fields))
    )


def gemma3n(fields: ConfigFields) -> tuple[Layer, ...]:
    """Sliding and full layers; the last `num_kv_shared_layers` read another layer's cache."""
    layers = alternating(period=5, head_dim=256, kv_heads=2, heads=8, window=512)(fields)
    return _drop_shared(layers, fields.integer("num_kv_shared_layers", default=15))


def gemma4(fields: ConfigFields) -> tuple[Layer, ...]:
    """Full layers have heads of their own size and number (vLLM 0.32.0 gemma4.py)."""
    heads = fields.integer(*HEADS_NAMES)
    kv_heads = fields.integer(*KV_HEADS_NAMES)
    head_dim = fields.integer("head_dim")
    # attention_k_eq_v marks the checkpoints whose full layers have their own number of KV heads.
    full_kv_heads = kv_heads
    if fields.get("attention_k_eq_v") is True:
        full_kv_heads = fields.optional_integer("num_global_key_value_heads") or kv_heads
    full = heads, full_kv_heads, fields.optional_integer("global_head_dim") or head_dim
    types = layer_types(fields)
    if types is None:
        types = tuple(map(str, fields.sequence("layer_types")))
    window = fields.integer("sliding_window")
    layers = tuple(
        _layer(full, None) if kind == "full_attention" else _layer((heads, kv_heads, head_dim), window)
        for kind in types
    )
    return _drop_shared(layers, fields.integer("num_kv_shared_layers", default=0))


def _drop_shared(layers: tuple[Layer, ...], shared: int) -> tuple[Layer, ...]:
    kept = len(layers) - shared
    return layers[:kept] + ((),) * shared


def llama4(fields: ConfigFields) -> tuple[Layer, ...]:
    """Chunked-local layers, every fourth full and without RoPE.

    An empty `no_rope_layers` means the class's default, every `no_rope_layer_interval`-th layer.
    """
    heads, kv_heads, head_dim = head_geometry(fields, kv_heads_default=8, head_dim_default=128)
    count = _count(fields)
    interval = fields.integer("no_rope_layer_interval", default=4)
    rope = fields.get("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(count)]
    chunk = fields.integer("attention_chunk_size", default=8192)
    return tuple(
        (ChunkedLocal(heads, kv_heads, head_dim, head_dim, chunk),)
        if rope[index]
        else (FullAttention(heads, kv_heads, head_dim, head_dim),)
        for index in range(count)
    )


def falcon(fields: ConfigFields) -> tuple[Layer, ...]:
    """One KV head with `multi_query`, unless `new_decoder_architecture` names their number."""
    heads = fields.integer(*HEADS_NAMES)
    if fields.get("new_decoder_architecture"):
        kv_heads = fields.integer("num_kv_heads", "n_head_kv", default=heads)
    else:
        kv_heads = 1 if fields.get("multi_query") is not False else heads
    head_dim = fields.integer(*HIDDEN_NAMES) // heads
    return ((FullAttention(heads, kv_heads, head_dim, head_dim),),) * _count(fields)


def nemotron_nas(fields: ConfigFields) -> tuple[Layer, ...]:
    """Llama-Nemotron: each block says how many query heads share a KV head, or has no attention."""
    heads = fields.integer(*HEADS_NAMES)
    head_dim = fields.optional_integer("head_dim") or fields.integer("hidden_size") // heads
    layers: list[Layer] = []
    for index, block in enumerate(fields.sequence("block_configs")):
        attention = block.get("attention", {})
        if attention.get("no_op"):
            layers.append(())
            continue
        group = attention.get("n_heads_in_group")
        if not isinstance(group, int) or group < 1 or heads % group:
            raise UnsupportedModelError(
                f"config.json of {fields.architecture}: block_configs[{index}].attention.n_heads_in_group "
                f"is {group!r}",
                "it must be a whole number that divides num_attention_heads, or null",
            )
        layers.append((FullAttention(heads, heads // group, head_dim, head_dim),))
    return tuple(layers)


def minimax_m3(fields: ConfigFields) -> tuple[Layer, ...]:
    """Full layers first, then block-sparse ones with an index key beside keys and values."""
    heads, kv_heads, head_dim = head_geometry(fields)
    sparse = fields.nested("sparse_attention_config")
    is_sparse = sparse.sequence("sparse_attention_freq")
    index_dim = sparse.integer("sparse_index_dim")
    return tuple(
        (BlockSparseAttention(heads, kv_heads, head_dim, head_dim), IndexKeys(index_dim))
        if is_sparse[index]
        else (FullAttention(heads, kv_heads, head_dim, head_dim),)
        for index in range(_count(fields))
    )


def whisper(fields: ConfigFields) -> tuple[Layer, ...]:
    """Self and cross attention in each decoder layer; the encoder keeps nothing."""
    heads = fields.integer("decoder_attention_heads")
    head_dim = fields.integer("d_model") // heads
    encoder = fields.integer("max_source_positions")
    layer = (
        FullAttention(heads, heads, head_dim, head_dim),
        CrossAttention(heads, heads, head_dim, head_dim, encoder),
    )
    return (layer,) * fields.integer("decoder_layers")
