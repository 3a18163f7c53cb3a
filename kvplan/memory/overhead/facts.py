"""config.json, settings and card -> OverheadInputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kvplan.memory.overhead.inputs import EncoderShape, MoeShape, OverheadInputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.config.version import VllmVersion
    from kvplan.memory.hardware import GpuSpec

_DTYPE_BYTES: Final = {"float32": 4}
_TOP_K: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k")
_EXPERT_WIDTH: Final = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
_MAX_IMAGE_TOKENS: Final = 16384
_VIDEO_FRAMES: Final = {"Qwen2VLForConditionalGeneration": 14, "Qwen2_5_VLForConditionalGeneration": 14}
"""Most frames of a dummy video; towers that came later make images the larger item."""
_QWEN3_VIDEO_TOKENS: Final = 12288
_GEMMA4_VIDEO_TOKENS: Final = 32 * (70 + 8)


def overhead_inputs(
    shape: ModelShape,
    config: Mapping[str, Any],
    settings: ResolvedSettings,
    gpu: GpuSpec,
) -> OverheadInputs:
    """What the overhead model needs to know of one launch.

    A field that a config lacks makes its term 0: the model's own error, which the interval admits, is larger.

    Args:
        shape: the model.
        config: its config.json.
        settings: every flag resolved.
        gpu: the card.
    """
    max_model_len = settings.max_model_len if settings.max_model_len > 0 else shape.max_model_len
    text = next((config[n] for n in ("text_config", "llm_config") if isinstance(config.get(n), dict)), config)
    return OverheadInputs(
        vllm_version=settings.vllm_version,
        architecture=shape.architecture,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        num_layers=shape.num_layers,
        intermediate_size=shape.intermediate_size or 0,
        num_attention_heads=shape.num_attention_heads,
        head_dim=shape.head_dim,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=max_model_len,
        dtype_bytes=_DTYPE_BYTES.get(settings.dtype, 2),
        quantization=settings.quantization or _quantization(config, text),
        compute_capability=gpu.compute_capability,
        platform=gpu.platform,
        unified_memory=gpu.unified_memory,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        enforce_eager=settings.enforce_eager,
        moe=_experts(shape, text),
        encoder=_encoder(shape, config, settings.vllm_version, max_model_len)
        if settings.profiles_encoder
        else None,
        is_mla="kv_lora_rank" in text and text["kv_lora_rank"] is not None,
        has_sparse_indexer=text.get("index_topk") is not None,
        is_hybrid=shape.is_hybrid,
        num_speculative_tokens=settings.num_speculative_tokens,
    )


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next((int(fields[n]) for n in names if isinstance(fields.get(n), int)), 0)


def _quantization(config: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    found = config.get("quantization_config") or text.get("quantization_config")
    return str(found.get("quant_method")) if isinstance(found, dict) else None


def _experts(shape: ModelShape, text: Mapping[str, Any]) -> MoeShape | None:
    if not shape.is_moe:
        return None
    return MoeShape(shape.num_experts, _first(text, _TOP_K) or 1, _first(text, _EXPERT_WIDTH))


def _encoder(
    shape: ModelShape, config: Mapping[str, Any], version: VllmVersion, max_model_len: int
) -> EncoderShape | None:
    """The vision tower; None where the config shows none."""
    vision = _vision_config(config)
    if not shape.is_multimodal or vision is None:
        return None
    width = _first(vision, ("embed_dim", "vt_hidden_size", "hidden_size", "width"))
    if vision.get("embed_dim") and vision.get("mlp_ratio"):
        # Qwen2-VL: `hidden_size` is the language model's.
        inner = round(width * float(vision["mlp_ratio"]))
    else:
        inner = _first(vision, ("intermediate_size", "vt_intermediate_size", "mlp_dim"))
    patch = _first(vision, ("patch_size",)) or 14
    item = _largest_item(shape.architecture, vision, config, patch, max_model_len)
    kept = 0
    if vision.get("deepstack_visual_indexes") and (0, 11, 0) <= version < (0, 13, 0):
        # Videos, counted with 12.5 tokens of text around each; the cache is filled up to that count.
        item, kept = _Item(_QWEN3_VIDEO_TOKENS, item.patches_per_token), _QWEN3_VIDEO_TOKENS * 25 // 2
    frames = _first(vision, ("temporal_patch_size",)) or 1
    return EncoderShape(
        hidden_size=width,
        intermediate_size=inner or 4 * width,
        patches_per_token=item.patches_per_token,
        patch_values=3 * frames * patch * patch,
        max_item_tokens=item.tokens,
        gated=vision.get("hidden_act") == "silu",
        kept_tokens=kept,
        rows_per_token=1 + len(vision.get("deepstack_visual_indexes") or ()),
    )


def _vision_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for level in (config, config.get("thinker_config") or {}):
        vision = level.get("vision_config")
        if isinstance(vision, dict):
            return vision
    return None


class _Item(NamedTuple):
    """The largest single item that a processor makes."""

    tokens: int
    patches_per_token: int


def _largest_item(
    architecture: str, vision: Mapping[str, Any], config: Mapping[str, Any], patch: int, max_model_len: int
) -> _Item:
    """What the profile run encodes; the rules are those of vLLM's processing classes.

    Source: vLLM 0.11.0 to 0.32.0 model_executor/models/qwen2_vl.py (images of 16,384 merged patches; videos
    of at most 14 frames, two a step, and no more tokens than the context), gemma4_mm.py (32 frames of 70
    tokens), mllama4.py (16 tiles and the whole), llava_next.py (the largest grid and the whole), pixtral.py.
    """
    merge = _first(vision, ("spatial_merge_size",)) or _first(config, ("spatial_merge_size",)) or 1
    if vision.get("temporal_patch_size"):
        steps = 1
        if architecture in _VIDEO_FRAMES:
            steps = max(1, min(_VIDEO_FRAMES[architecture] // 2, max_model_len // _MAX_IMAGE_TOKENS))
        return _Item(steps * _MAX_IMAGE_TOKENS, merge * merge)
    if vision.get("pooling_kernel_size"):
        return _Item(_GEMMA4_VIDEO_TOKENS, 8)
    if vision.get("init_pos_emb_height"):
        # MoonViT: a square of positions, and (Kimi K2.5) as many again per frame of a chunk.
        patches = _first(vision, ("init_pos_emb_height",)) * _first(vision, ("init_pos_emb_width",))
        return _Item(patches * (_first(vision, ("init_pos_emb_time",)) or 1) // 4, 4)
    patches = ((_first(vision, ("image_size",)) or 1024) // patch) ** 2
    tokens = _first(config, ("mm_tokens_per_image", "image_seq_length")) or patches // (merge * merge)
    ratio = vision.get("pixel_shuffle_ratio") or config.get("downsample_ratio")
    if isinstance(ratio, float):
        tokens = round(patches * ratio * ratio)
    return _Item(tokens * _tiles(vision, config), max(patches // tokens, 1))


def _tiles(vision: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """Pieces that one image is cut into, with the whole beside them."""
    if vision.get("pixel_shuffle_ratio"):
        return 17
    if isinstance(config.get("max_dynamic_patch"), int):
        return int(config["max_dynamic_patch"]) + 1
    grids = config.get("image_grid_pinpoints")
    edge = _first(vision, ("image_size",))
    if isinstance(grids, list) and edge:
        return 1 + max(round(int(w) * int(h) / edge**2) for w, h in grids)
    return 1
