"""config.json, settings and card -> OverheadInputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.memory.overhead.inputs import EncoderShape, MoeShape, OverheadInputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.memory.hardware import GpuSpec

_DTYPE_BYTES: Final = {"float32": 4}
_TOP_K: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k")
_EXPERT_WIDTH: Final = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
_MAX_ITEM_TOKENS: Final = 16384
"""Of the Qwen-VL line, whose processors take images of up to 16,384 merged patches."""


def overhead_inputs(
    shape: ModelShape,
    config: Mapping[str, Any],
    settings: ResolvedSettings,
    gpu: GpuSpec,
    weights_bytes_per_gpu: int,
) -> OverheadInputs:
    """What the overhead model needs to know of one launch.

    A field that a config lacks makes its term 0: the model's own error, which the interval admits, is larger.

    Args:
        shape: the model.
        config: its config.json.
        settings: every flag resolved.
        gpu: the card.
        weights_bytes_per_gpu: of the heaviest GPU.
    """
    text = next((config[n] for n in ("text_config", "llm_config") if isinstance(config.get(n), dict)), config)
    return OverheadInputs(
        vllm_version=settings.vllm_version,
        total_bytes=gpu.total_bytes,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        architecture=shape.architecture,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        num_layers=shape.num_layers,
        intermediate_size=shape.intermediate_size or 0,
        num_attention_heads=shape.num_attention_heads,
        head_dim=shape.head_dim,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len if settings.max_model_len > 0 else shape.max_model_len,
        weights_bytes_per_gpu=weights_bytes_per_gpu,
        dtype_bytes=_DTYPE_BYTES.get(settings.dtype, 2),
        quantization=settings.quantization or _quantization(config, text),
        compute_capability=gpu.compute_capability,
        platform=gpu.platform,
        unified_memory=gpu.unified_memory,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        enforce_eager=settings.enforce_eager,
        moe=_experts(shape, text),
        encoder=_encoder(shape, config),
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


def _encoder(shape: ModelShape, config: Mapping[str, Any]) -> EncoderShape | None:
    """The vision tower; None where the config shows none.

    A tower with a fixed image size makes items of it; one without takes images up to the processor's limit.
    """
    vision = config.get("vision_config")
    if not shape.is_multimodal or not isinstance(vision, dict):
        return None
    width = _first(vision, ("embed_dim", "hidden_size", "width"))
    if vision.get("embed_dim") and vision.get("mlp_ratio"):
        # Qwen2-VL: `hidden_size` is the language model's.
        inner = round(width * float(vision["mlp_ratio"]))
    else:
        inner = _first(vision, ("intermediate_size", "mlp_dim"))
    patch = _first(vision, ("patch_size",)) or 14
    merge = _first(vision, ("spatial_merge_size",)) or _first(config, ("spatial_merge_size",)) or 2
    tokens, per_token = _item_tokens(vision, config, patch=patch, merge=merge)
    frames = _first(vision, ("temporal_patch_size",)) or 1
    return EncoderShape(
        hidden_size=width,
        intermediate_size=inner or 4 * width,
        patches_per_token=per_token,
        patch_values=3 * frames * patch * patch,
        max_item_tokens=tokens,
    )


def _item_tokens(
    vision: Mapping[str, Any], config: Mapping[str, Any], *, patch: int, merge: int
) -> tuple[int, int]:
    """(tokens of the largest item, patches a token)."""
    image = _first(vision, ("image_size",))
    if vision.get("temporal_patch_size") or not image:
        return _MAX_ITEM_TOKENS, merge * merge
    patches = (image // patch) ** 2
    tokens = _first(config, ("mm_tokens_per_image", "image_seq_length")) or patches // (merge * merge)
    return tokens, max(patches // tokens, 1)
