"""config.json -> ModelShape: what a model's layers keep in the cache, and the few numbers around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.architecture.layers import FullAttention, LayerCache
from kvplan.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as the memory arithmetic sees it. Widths in elements, lengths in tokens."""

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
    head_dim: int
    max_model_len: int
    """What vLLM derives from the config when no --max-model-len is given."""
    dtype: str
    """What vLLM's `--dtype auto` serves it in: `bfloat16`, `float16` or `float32`."""
    layers: tuple[tuple[LayerCache, ...], ...]
    """Per decoder layer the caches that it keeps; an empty tuple keeps nothing."""
    is_moe: bool = False
    num_experts: int = 0
    is_hybrid: bool = False
    """Has recurrent state beside attention."""
    is_multimodal: bool = False
    is_encoder_decoder: bool = False
    checkpoint_kv_cache_dtype: str | None = None
    """What the checkpoint's quantization config turns `--kv-cache-dtype auto` into."""

    @property
    def is_attention_free(self) -> bool:
        """Whether no layer keeps anything that grows or slides with the context."""
        return self.num_attention_heads == 0


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """The shape of the model that a Hugging Face config.json describes.

    Raises:
        UnsupportedModelError: an architecture or a field that no exact rule covers.
    """
    architecture = _architecture(config)
    if architecture not in _PLAIN_DECODERS:
        raise UnsupportedModelError(f"architecture {architecture} is not known")
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    head_dim = int(config.get("head_dim") or hidden // heads)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    layer = (FullAttention(heads, kv_heads, head_dim, head_dim),)
    return ModelShape(
        architecture=architecture,
        model_type=str(config["model_type"]),
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_model_len=int(config["max_position_embeddings"]),
        dtype=str(config.get("torch_dtype") or config.get("dtype") or "bfloat16"),
        layers=(layer,) * int(config["num_hidden_layers"]),
    )


def _architecture(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    if not architectures:
        raise UnsupportedModelError(
            "config.json has no `architectures`", 'add it, e.g. "architectures": ["LlamaForCausalLM"]'
        )
    return str(architectures[0])


_PLAIN_DECODERS = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM"})
