"""Vision towers and their projectors, as vLLM divides them (tensor parallel by default, on every stage).

Sources: the published indexes; vLLM 0.32.0 `model_executor/models/{siglip,clip,qwen2_vl,qwen2_5_vl,qwen3_vl,
mllama4,moonvit,kimi_k25_vit,pixtral,gemma4_mm}.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors.dense import flag, gated_mlp, plain_mlp
from kvplan.architecture.tensors.sheet import optional, refuse, required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.tensors.sheet import Sheet


def _encoder_attention(sheet: Sheet, prefix: str, hidden: int, *, out: str, bias: bool = True) -> None:
    """q, k, v of equal size and the output projection."""
    for name in ("q_proj", "k_proj", "v_proj"):
        sheet.linear(prefix + name, hidden, hidden, "column", bias=bias, module=f"{prefix}qkv_proj")
    sheet.linear(prefix + out, hidden, hidden, "row", bias=bias)


def _patches(sheet: Sheet, name: str, hidden: int, *kernel: int, bias: bool = False) -> None:
    """The convolution that cuts the image into patches."""
    sheet.tensor(f"{name}.weight", (hidden, *kernel))
    if bias:
        sheet.tensor(f"{name}.bias", (hidden,))


CLIP_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "image_size": 224,
    "patch_size": 32,
}
SIGLIP_DEFAULTS = {**CLIP_DEFAULTS, "patch_size": 16}


def contrastive_tower(
    sheet: Sheet,
    vision: Mapping[str, Any],
    *,
    keep: int | None = None,
    prefix: str = "vision_tower.",
    post: bool,
) -> int:
    """A SigLIP or CLIP encoder; `keep` layers are enough where only features from inside are used.

    Returns:
        Its hidden size.
    """
    kind = vision.get("model_type", "siglip_vision_model")
    clip = kind == "clip_vision_model"
    if not clip and kind != "siglip_vision_model":
        raise refuse(vision, "such a vision tower")
    vision = (CLIP_DEFAULTS if clip else SIGLIP_DEFAULTS) | {k: v for k, v in vision.items() if v is not None}
    hidden = int(vision["hidden_size"])
    patches = (vision["image_size"] // vision["patch_size"]) ** 2
    prefix = f"{prefix}vision_model."
    sheet.outside("every")
    if clip:
        sheet.tensor(f"{prefix}embeddings.class_embedding", (hidden,))
        sheet.norm(f"{prefix}pre_layrnorm", hidden, bias=True)
    kernel = (3, vision["patch_size"], vision["patch_size"])
    _patches(sheet, f"{prefix}embeddings.patch_embedding", hidden, *kernel, bias=not clip)
    sheet.tensor(f"{prefix}embeddings.position_embedding.weight", (patches + clip, hidden))
    if post:
        sheet.norm(f"{prefix}post_layernorm", hidden, bias=True)
    depth = vision["num_hidden_layers"] if keep is None else keep
    sheet.outside("every", depth)
    layer = f"{prefix}encoder.layers.{{block}}."
    _encoder_attention(sheet, f"{layer}self_attn.", hidden, out="out_proj")
    names = (f"{layer}mlp.fc1", f"{layer}mlp.fc2")
    plain_mlp(sheet, hidden, vision["intermediate_size"], names, bias=True)
    for name in ("layer_norm1", "layer_norm2"):
        sheet.norm(layer + name, hidden, bias=True)
    return hidden


def gemma3(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """SigLIP with a projection of Gemma's own."""
    hidden = contrastive_tower(sheet, required(config, "vision_config"), post=True)
    sheet.outside("every")
    shape = (hidden, required(text, "hidden_size"))
    sheet.tensor("multi_modal_projector.mm_input_projection_weight", shape)
    sheet.norm("multi_modal_projector.mm_soft_emb_norm", hidden)


def _kept_layers(config: Mapping[str, Any], layers: int) -> tuple[int, bool, int]:
    """Layers that LLaVA needs, whether the last norm is one of them, and how many features it joins."""
    chosen = optional(config, "vision_feature_layer", -2)
    numbers = chosen if isinstance(chosen, list) else [chosen]
    deepest = max(layers + n + 1 if n < 0 else n for n in numbers)
    return deepest, deepest == layers, len(numbers) if isinstance(chosen, list) else 1


def llava(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """LLaVA 1.5 and 1.6 (Granite Vision too): a tower cut where its features are read, two linear layers."""
    vision = required(config, "vision_config")
    defaults = {"num_hidden_layers": 24, "hidden_size": 1024, "image_size": 336, "patch_size": 14}
    if vision.get("model_type", "clip_vision_model") == "clip_vision_model":
        vision = {**defaults, "intermediate_size": 4096, "model_type": "clip_vision_model", **vision}
    keep, post, features = _kept_layers(config, vision.get("num_hidden_layers", 12))
    hidden = contrastive_tower(sheet, vision, keep=keep, post=post)
    width = required(text, "hidden_size")
    bias = flag(config, "multimodal_projector_bias", default=True)
    sheet.outside("every")
    prefix = "multi_modal_projector."
    sheet.linear(f"{prefix}linear_1", width, hidden * features, "column", bias=bias)
    sheet.linear(f"{prefix}linear_2", width, width, "row", bias=bias)
    if config["model_type"] in {"llava_next", "llava_next_video", "llava_onevision"}:
        sheet.tensor("image_newline", (width,))


def qwen2_vl(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Qwen2-VL: layer norms, a plain feed-forward block."""
    vision = required(config, "vision_config")
    width = optional(vision, "embed_dim", 1280)
    kernel = (optional(vision, "in_channels", 3), optional(vision, "temporal_patch_size", 2))
    patch = optional(vision, "patch_size", 14)
    sheet.outside("every")
    _patches(sheet, "visual.patch_embed.proj", width, *kernel, patch, patch)
    block = "visual.blocks.{block}."
    sheet.outside("every", optional(vision, "depth", 32))
    sheet.linear(f"{block}attn.qkv", 3 * width, width, "column", bias=True)
    sheet.linear(f"{block}attn.proj", width, width, "row", bias=True)
    inner = int(width * optional(vision, "mlp_ratio", 4))
    plain_mlp(sheet, width, inner, (f"{block}mlp.fc1", f"{block}mlp.fc2"), bias=True)
    for name in ("norm1", "norm2"):
        sheet.norm(block + name, width, bias=True)
    sheet.outside("every").norm("visual.merger.ln_q", width, bias=True)
    _merger(sheet, vision, width, required(text, "hidden_size"), ("mlp.0", "mlp.2"), "visual.merger.")


def _merger(
    sheet: Sheet, vision: Mapping[str, Any], width: int, out: int, names: tuple[str, str], prefix: str
) -> None:
    """Joins 2 x 2 patches and projects them to the text model's width."""
    joined = width * optional(vision, "spatial_merge_size", 2) ** 2
    sheet.linear(prefix + names[0], joined, joined, "column", bias=True)
    sheet.linear(prefix + names[1], out, joined, "row", bias=True)


def qwen2_5_vl(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Qwen2.5-VL: RMS norms, a gated feed-forward block with biases."""
    vision = required(config, "vision_config")
    width = optional(vision, "hidden_size", 1280)
    patch = optional(vision, "patch_size", 14)
    kernel = (optional(vision, "in_channels", 3), optional(vision, "temporal_patch_size", 2))
    sheet.outside("every")
    _patches(sheet, "visual.patch_embed.proj", width, *kernel, patch, patch)
    block = "visual.blocks.{block}."
    sheet.outside("every", optional(vision, "depth", 32))
    sheet.linear(f"{block}attn.qkv", 3 * width, width, "column", bias=True)
    sheet.linear(f"{block}attn.proj", width, width, "row", bias=True)
    gated_mlp(sheet, width, optional(vision, "intermediate_size", 3420), f"{block}mlp.", bias=True)
    for name in ("norm1", "norm2"):
        sheet.norm(block + name, width)
    sheet.outside("every").norm("visual.merger.ln_q", width)
    out = optional(vision, "out_hidden_size", required(text, "hidden_size"))
    _merger(sheet, vision, width, out, ("mlp.0", "mlp.2"), "visual.merger.")


def qwen3_vl(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Qwen3-VL, Qwen3.5: learnt positions, a merger for each deep-stack level."""
    vision = required(config, "vision_config")
    width = required(vision, "hidden_size")
    patch = required(vision, "patch_size")
    kernel = (optional(vision, "in_channels", 3), optional(vision, "temporal_patch_size", 2))
    sheet.outside("every")
    _patches(sheet, "visual.patch_embed.proj", width, *kernel, patch, patch, bias=True)
    sheet.tensor("visual.pos_embed.weight", (required(vision, "num_position_embeddings"), width))
    block = "visual.blocks.{block}."
    sheet.outside("every", required(vision, "depth"))
    sheet.linear(f"{block}attn.qkv", 3 * width, width, "column", bias=True)
    sheet.linear(f"{block}attn.proj", width, width, "row", bias=True)
    names = (f"{block}mlp.linear_fc1", f"{block}mlp.linear_fc2")
    plain_mlp(sheet, width, required(vision, "intermediate_size"), names, bias=True)
    for name in ("norm1", "norm2"):
        sheet.norm(block + name, width, bias=True)
    joined = width * optional(vision, "spatial_merge_size", 2) ** 2
    out = optional(vision, "out_hidden_size", required(text, "hidden_size"))
    levels = len(optional(vision, "deepstack_visual_indexes", ()))
    for prefix, count, size in (
        ("visual.merger.", 1, width),
        ("visual.deepstack_merger_list.{block}.", levels, joined),
    ):
        if count:
            sheet.outside("every", count).norm(f"{prefix}norm", size, bias=True)
            _merger(sheet, vision, width, out, ("linear_fc1", "linear_fc2"), prefix)


def qwen3_omni(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Qwen3-Omni's thinker: Qwen3-VL's tower and an audio encoder; the talker is not loaded."""
    # Each level of the deep stack has a merger, as in Qwen3-VL, under other names.
    qwen3_vl(sheet, config, text)
    audio = required(config, "audio_config")
    width, inner = required(audio, "d_model"), required(audio, "encoder_ffn_dim")
    channels = required(audio, "downsample_hidden_size")
    prefix = "audio_tower."
    sheet.outside("every")
    _patches(sheet, f"{prefix}conv2d1", channels, 1, 3, 3, bias=True)
    _patches(sheet, f"{prefix}conv2d2", channels, channels, 3, 3, bias=True)
    _patches(sheet, f"{prefix}conv2d3", channels, channels, 3, 3, bias=True)
    # Three convolutions of stride 2 leave an eighth of the mel bins.
    joined = channels * -(-required(audio, "num_mel_bins") // 8)
    sheet.linear(f"{prefix}conv_out", width, joined, quantizable=False)
    sheet.norm(f"{prefix}ln_post", width, bias=True)
    sheet.linear(f"{prefix}proj1", width, width, bias=True, quantizable=False)
    sheet.linear(f"{prefix}proj2", required(audio, "output_dim"), width, bias=True, quantizable=False)
    layer = f"{prefix}layers.{{block}}."
    sheet.outside("every", required(audio, "encoder_layers"))
    _encoder_attention(sheet, f"{layer}self_attn.", width, out="out_proj")
    plain_mlp(sheet, width, inner, (f"{layer}fc1", f"{layer}fc2"), bias=True)
    for name in ("self_attn_layer_norm", "final_layer_norm"):
        sheet.norm(layer + name, width, bias=True)


def llama4(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Llama 4's tower, its pixel-shuffle adapter and projector."""
    vision = required(config, "vision_config")
    width, patch = required(vision, "hidden_size"), required(vision, "patch_size")
    tokens = (required(vision, "image_size") // patch) ** 2 + 1
    prefix = "vision_model."
    sheet.outside("every")
    sheet.tensor(f"{prefix}class_embedding", (width,))
    sheet.tensor(f"{prefix}positional_embedding_vlm", (tokens, width))
    # In vLLM a column-parallel layer that gathers its output.
    pixels = optional(vision, "num_channels", 3) * patch**2
    sheet.linear(f"{prefix}patch_embedding.linear", width, pixels, "column", quantizable=False)
    for name in ("layernorm_pre", "layernorm_post"):
        sheet.norm(prefix + name, width, bias=True)
    layer = f"{prefix}model.layers.{{block}}."
    sheet.outside("every", required(vision, "num_hidden_layers"))
    _encoder_attention(sheet, f"{layer}self_attn.", width, out="o_proj")
    names = (f"{layer}mlp.fc1", f"{layer}mlp.fc2")
    plain_mlp(sheet, width, required(vision, "intermediate_size"), names, bias=True)
    for name in ("input_layernorm", "post_attention_layernorm"):
        sheet.norm(layer + name, width, bias=True)
    sheet.outside("every")
    inner, out = required(vision, "projector_input_dim"), required(vision, "projector_output_dim")
    joined = int(width / required(vision, "pixel_shuffle_ratio") ** 2)
    sheet.linear(f"{prefix}vision_adapter.mlp.fc1", inner, joined, "column")
    sheet.linear(f"{prefix}vision_adapter.mlp.fc2", out, inner, "row")
    sheet.linear(
        "multi_modal_projector.linear_1",
        required(text, "hidden_size"),
        required(vision, "vision_output_dim"),
        "column",
    )


def moonvit(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Kimi-VL and Kimi-K2.5: MoonViT, and a projector that every rank keeps whole."""
    vision = required(config, "vision_config")
    width = required(vision, "vt_hidden_size", "hidden_size")
    patch = required(vision, "patch_size")
    height, breadth = required(vision, "init_pos_emb_height"), required(vision, "init_pos_emb_width")
    prefix = "vision_tower."
    sheet.outside("every")
    _patches(sheet, f"{prefix}patch_embed.proj", width, 3, patch, patch, bias=True)
    sheet.tensor(f"{prefix}patch_embed.pos_emb.weight", (height, breadth, width))
    sheet.norm(f"{prefix}encoder.final_layernorm", width, bias=True)
    block = f"{prefix}encoder.blocks.{{block}}."
    sheet.outside("every", required(vision, "vt_num_hidden_layers", "num_hidden_layers"))
    whole = {"quantizable": False, "bias": True}
    sheet.linear(f"{block}wqkv", 3 * width, width, "column", **whole)
    sheet.linear(f"{block}wo", width, width, "row", **whole)
    inner = required(vision, "vt_intermediate_size", "intermediate_size")
    sheet.linear(f"{block}mlp.fc0", inner, width, "column", **whole)
    sheet.linear(f"{block}mlp.fc1", width, inner, "row", **whole)
    for name in ("norm0", "norm1"):
        sheet.norm(block + name, width, bias=True)
    merge = optional(vision, "merge_kernel_size", (2, 2))
    joined = width * merge[0] * merge[1]
    prefix = "mm_projector." if "vt_hidden_size" in vision else "multi_modal_projector."
    sheet.outside("every").norm(f"{prefix}pre_norm", width, bias=True)
    sheet.linear(f"{prefix}linear_1", joined, joined, "replicated", **whole)
    sheet.linear(f"{prefix}linear_2", required(text, "hidden_size"), joined, "replicated", **whole)


def moonvit_k3(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Kimi K3: MoonViT without biases, RMS norms, heads wider than the hidden size."""
    vision = required(config, "vision_config")
    width, inner = required(vision, "vt_hidden_size"), required(vision, "vt_intermediate_size")
    attend, patch = required(vision, "qkv_hidden_size"), required(vision, "patch_size")
    prefix = "vision_tower."
    sheet.outside("every")
    _patches(sheet, f"{prefix}patch_embed.proj", width, 3, patch, patch)
    table = (required(vision, "init_pos_emb_height"), required(vision, "init_pos_emb_width"), width)
    sheet.tensor(f"{prefix}patch_embed.pos_emb.weight", table)
    sheet.norm(f"{prefix}encoder.final_layernorm", width)
    block = f"{prefix}encoder.blocks.{{block}}."
    sheet.outside("every", required(vision, "vt_num_hidden_layers"))
    sheet.linear(f"{block}wqkv", 3 * attend, width, "column", quantizable=False)
    sheet.linear(f"{block}wo", width, attend, "row", quantizable=False)
    sheet.linear(f"{block}mlp.fc0", inner, width, "column", quantizable=False)
    sheet.linear(f"{block}mlp.fc1", width, inner, "row", quantizable=False)
    for name in ("norm0", "norm1"):
        sheet.norm(block + name, width)
    merge = optional(vision, "merge_kernel_size", (2, 2))
    joined, out = width * merge[0] * merge[1], required(text, "hidden_size")
    sheet.outside("every")
    sheet.linear("mm_projector.linear_1", joined, joined, quantizable=False)
    sheet.linear("mm_projector.linear_2", out, joined, quantizable=False)
    sheet.norm("mm_projector.post_norm", out)


def gemma4(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Gemma 4's tower is transformers' own: every rank keeps all of it."""
    if config.get("audio_config"):
        raise refuse(config, "an audio tower")
    vision = required(config, "vision_config")
    if flag(vision, "use_clipped_linears"):
        raise refuse(config, "clipped linear layers in the vision tower")
    width, size = required(vision, "hidden_size"), required(vision, "head_dim")
    heads = required(vision, "num_attention_heads")
    kv = size * optional(vision, "num_key_value_heads", heads)
    prefix = "vision_tower."
    sheet.outside("every")
    table = (2, required(vision, "position_embedding_size"), width)
    sheet.tensor(f"{prefix}patch_embedder.position_embedding_table", table)
    sheet.tensor(
        f"{prefix}patch_embedder.input_proj.weight", (width, 3 * required(vision, "patch_size") ** 2)
    )
    layer = f"{prefix}encoder.layers.{{block}}."
    sheet.outside("every", required(vision, "num_hidden_layers"))
    for name, outputs, inputs in (
        ("self_attn.q_proj", heads * size, width),
        ("self_attn.k_proj", kv, width),
        ("self_attn.v_proj", kv, width),
        ("self_attn.o_proj", width, heads * size),
        ("mlp.gate_proj", required(vision, "intermediate_size"), width),
        ("mlp.up_proj", required(vision, "intermediate_size"), width),
        ("mlp.down_proj", width, required(vision, "intermediate_size")),
    ):
        sheet.linear(f"{layer}{name}.linear", outputs, inputs, quantizable=False)
    for name in ("self_attn.q_norm", "self_attn.k_norm"):
        sheet.norm(layer + name, size)
    for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
        sheet.norm(f"{layer}{name}_layernorm", width)
    sheet.outside("every")
    sheet.tensor("embed_vision.embedding_projection.weight", (required(text, "hidden_size"), width))


def pixtral(sheet: Sheet, config: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Mistral Small 3.1 and later, Pixtral-HF: Pixtral's tower, a patch merger and two linear layers."""
    vision = required(config, "vision_config")
    defaults = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "patch_size": 16,
        "num_channels": 3,
    }
    vision = defaults | {k: v for k, v in vision.items() if v is not None}
    width, patch = vision["hidden_size"], vision["patch_size"]
    prefix = "vision_tower."
    sheet.outside("every")
    _patches(sheet, f"{prefix}patch_conv", width, vision["num_channels"], patch, patch)
    sheet.norm(f"{prefix}ln_pre", width)
    layer = f"{prefix}transformer.layers.{{block}}."
    sheet.outside("every", vision["num_hidden_layers"])
    _encoder_attention(sheet, f"{layer}attention.", width, out="o_proj", bias=False)
    gated_mlp(sheet, width, vision["intermediate_size"], f"{layer}feed_forward.")
    for name in ("attention_norm", "ffn_norm"):
        sheet.norm(layer + name, width)
    out = required(text, "hidden_size")
    bias = flag(config, "multimodal_projector_bias")
    prefix = "multi_modal_projector."
    sheet.outside("every")
    if config["model_type"] == "mistral3":
        sheet.norm(f"{prefix}norm", width)
        merge = optional(config, "spatial_merge_size", 2)
        sheet.linear(f"{prefix}patch_merger.merging_layer", width, width * merge**2)
    sheet.linear(f"{prefix}linear_1", out, width, "column", bias=bias)
    sheet.linear(f"{prefix}linear_2", out, out, "row", bias=bias)
