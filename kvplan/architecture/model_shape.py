"""config.json -> ModelShape: what a model's layers keep in the cache, and the few numbers around it."""

from __future__ import annotations

import difflib
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from kvplan.architecture.attention_families import HIDDEN_NAMES
from kvplan.architecture.config_fields import ConfigFields, text_fields
from kvplan.architecture.context_length import UNLIMITED, context_lengths
from kvplan.architecture.families import FAMILIES, Family
from kvplan.architecture.kv_scheme import CheckpointCache, checkpoint_cache
from kvplan.architecture.layers import DeepseekV4Attention, KvHeadsCache, Layer, Mla, RecurrentState
from kvplan.architecture.served import ABSENT_UP_TO, LAST_VERSION
from kvplan.errors import UnsupportedModelError
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPES: Final = ("bfloat16", "float16", "float32")


class ModelShape(FrozenRecord):
    """A model as the memory arithmetic sees it. Widths in elements, lengths in tokens.

    Compared by identity: a plan is cached per shape, and hashing a hundred layers would cost more than
    the arithmetic.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    architecture: str
    """The first of `architectures`."""
    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int | None
    """None where there is no dense feed-forward width (pure mixers)."""
    vocab_size: int
    num_attention_heads: int
    """0 for attention-free models."""
    num_key_value_heads: int
    """As vLLM counts them: 1 for latent attention, whatever the config's own field says; the largest
    number where layers differ."""
    head_dim: int
    """As vLLM counts it: the latent's width for latent attention."""
    max_model_len: int
    """What vLLM derives from the config when no --max-model-len is given."""
    longest_model_len: int | None
    """The longest --max-model-len that vLLM takes; above `max_model_len` for LongRoPE models, None for
    models without a limit."""
    dtype: str
    """What vLLM's `--dtype auto` serves it in where the card has bfloat16."""
    layers: tuple[Layer, ...]
    """Per decoder layer the caches that it keeps; an empty tuple keeps nothing."""
    num_experts: int = 0
    is_hybrid: bool = False
    """Has recurrent state beside attention."""
    is_multimodal: bool = False
    is_encoder_decoder: bool = False
    has_bidirectional_images: bool = False
    """Image tokens attend to each other in both directions (Gemma 3): fewer attention backends can."""
    has_logit_softcap: bool = False
    mamba_ssm_dtype: str | None = None
    """What its config names for the recurrent state, when --mamba-ssm-cache-dtype is `auto`."""
    mamba_chunk_size: int | None = None
    """Tokens that a Mamba-2 kernel takes at once, where the config names them."""
    checkpoint_cache: CheckpointCache = field(default_factory=CheckpointCache)
    """What the checkpoint's quantization config says about the cache."""
    last_version: tuple[int, int, int] | None = None
    """The last vLLM release that serves the architecture; None: the newest one read does."""
    absent_up_to: tuple[int, int, int] | None = None
    """The newest vLLM release (of those read) that lacks the architecture; None: 0.8.5 has it."""
    index_topk: int | None = None
    """Tokens that a sparse-attention indexer picks; None without one."""

    @property
    def is_moe(self) -> bool:
        """Whether some layers have experts."""
        return self.num_experts > 0

    @property
    def is_attention_free(self) -> bool:
        """Whether no layer has attention at all."""
        return self.num_attention_heads == 0

    @property
    def uses_mla(self) -> bool:
        """Whether some layer caches latents instead of keys and values."""
        return any(isinstance(c, Mla | DeepseekV4Attention) for layer in self.layers for c in layer)


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape of the model that a Hugging Face config.json describes.

    Raises:
        UnsupportedModelError: an architecture, a layer kind or a field that no exact rule covers; the
            message names it, the hint says how to add it.
    """
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    top = ConfigFields(config, architecture)
    fields = text_fields(config, architecture)
    layers = family.layers(fields)
    heads, kv_heads, head_dim = _head_counts(layers)
    lengths = UNLIMITED if family.unlimited_length else context_lengths(fields, family.max_len_default)
    return ModelShape(
        architecture=architecture,
        model_type=str(top.get("model_type") or fields.get("model_type") or ""),
        num_layers=len(layers),
        hidden_size=fields.integer(*HIDDEN_NAMES),
        intermediate_size=_intermediate_size(fields),
        vocab_size=fields.integer("vocab_size", "padded_vocab_size", default=family.vocab_default),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_model_len=lengths.default,
        longest_model_len=lengths.longest,
        dtype=_dtype(top, fields),
        layers=layers,
        num_experts=_num_experts(fields),
        is_hybrid=family.hybrid and any(map(_has_state, layers)),
        is_multimodal=family.multimodal,
        is_encoder_decoder=family.encoder_decoder,
        has_bidirectional_images=_has_bidirectional_images(family, top, fields),
        has_logit_softcap=bool(fields.get("attn_logit_softcapping")),
        mamba_chunk_size=fields.optional_integer("mamba_chunk_size", "chunk_size"),
        mamba_ssm_dtype=_mamba_ssm_dtype(architecture, fields),
        checkpoint_cache=checkpoint_cache(_quantization(config)),
        last_version=LAST_VERSION.get(architecture),
        absent_up_to=ABSENT_UP_TO.get(architecture),
        index_topk=fields.optional_integer("index_topk"),
    )


def _architecture(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    if not isinstance(architectures, list | tuple) or not architectures:
        raise UnsupportedModelError(
            "config.json has no `architectures`", 'add it, e.g. "architectures": ["LlamaForCausalLM"]'
        )
    name = str(architectures[0])
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, n=3)
        raise UnsupportedModelError(
            f"architecture {name} has no exact rule for its KV cache",
            ("names known here that are close: " + ", ".join(near) + "; " if near else "")
            + "add a builder in kvplan/architecture/families.py (its docstring says how)",
        )
    return name


def _head_counts(layers: tuple[Layer, ...]) -> tuple[int, int, int]:
    """(query heads, KV heads, head size) as vLLM's model_config counts them; zeros without attention.

    Where layers differ (Gemma 4) each figure is the largest.

    Source: vLLM 0.32.0 config/model_arch.py::ModelArchitectureConfig.from_layers.
    """
    counts = [(0, 0, 0)]
    for cache in {cache for layer in layers for cache in layer}:
        match cache:
            case Mla():
                counts.append((cache.num_heads, 1, cache.kv_lora_rank + cache.qk_rope_head_dim))
            case DeepseekV4Attention():
                counts.append((cache.num_heads, 1, cache.head_dim))
            case _ if isinstance(cache, KvHeadsCache):
                counts.append((cache.num_heads, cache.num_kv_heads, cache.head_dim))
    heads, kv_heads, head_dims = zip(*counts, strict=True)
    return max(heads), max(kv_heads), max(head_dims)


def _has_state(layer: Layer) -> bool:
    return any(isinstance(cache, RecurrentState) for cache in layer)


def _intermediate_size(fields: ConfigFields) -> int | None:
    names = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "ff_intermediate_size")
    value = fields.get(*names)
    if isinstance(value, int):
        return value
    # GPT-2 and its relatives: four times the hidden size where nothing is said.
    if fields.get("model_type") in {"gpt2", "bloom", "mpt", "falcon"}:
        return fields.integer("expansion_ratio", default=4) * fields.integer(*HIDDEN_NAMES)
    return None


def _num_experts(fields: ConfigFields) -> int:
    """Source: vLLM 0.32.0 model_arch_config_convertor.py::get_num_experts."""
    value = fields.get("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
    return value if isinstance(value, int) else 0


def _dtype(top: ConfigFields, fields: ConfigFields) -> str:
    """vLLM downcasts float32 files to bfloat16 and keeps float16 ones.

    Source: vLLM 0.32.0 config/model.py::_resolve_auto_dtype.
    """
    given = top.get("dtype", "torch_dtype") or fields.get("dtype", "torch_dtype") or "float32"
    name = str(given).removeprefix("torch.")
    if name not in DTYPES:
        raise UnsupportedModelError(
            f"config.json of {top.architecture}: dtype {name!r} has no rule", f"known: {', '.join(DTYPES)}"
        )
    return "bfloat16" if name == "float32" else name


def _quantization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for level in (config, config.get("text_config") or {}):
        found = level.get("quantization_config") or level.get("compression_config")
        if isinstance(found, dict):
            return found
    return None


def _has_bidirectional_images(family: Family, top: ConfigFields, fields: ConfigFields) -> bool:
    """Source: vLLM 0.32.0 model_arch_config_convertor.py::is_mm_prefix_lm."""
    if not family.multimodal:
        return False
    if str(top.get("model_type")) in {"gemma4", "gemma4_text"}:
        return bool(fields.get("use_bidirectional_attention") == "vision")
    return str(top.get("model_type")) == "gemma3"


def _mamba_ssm_dtype(architecture: str, fields: ConfigFields) -> str | None:
    """Source: vLLM 0.32.0 model_executor/models/config.py, the NemotronH and Qwen3.5 classes."""
    if architecture == "NemotronHForCausalLM":
        given = fields.get("mamba_ssm_cache_dtype")
        return None if given is None else str(given)
    if architecture.startswith("Qwen3_5"):
        given = fields.get("mamba_ssm_dtype")
        return None if given is None else str(given)
    return None
