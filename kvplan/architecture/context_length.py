"""The context length that vLLM derives from config.json when no --max-model-len is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvplan.architecture.config_fields import ConfigFields

_LENGTH_FIELDS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_ALREADY_SCALED: Final = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
)
"""RoPE types whose max_position_embeddings already includes the factor."""


class ContextLengths(FrozenRecord):
    """In tokens."""

    default: int
    """Without --max-model-len."""
    longest: int | None
    """The longest --max-model-len that vLLM takes; None: the model has no limit of its own."""


UNLIMITED: Final = ContextLengths(default=2048, longest=None)
"""Models without a length in their config: vLLM assumes 2048 and takes any other."""


def context_lengths(fields: ConfigFields, class_default: int | None) -> ContextLengths:
    """What vLLM derives from the config.

    `class_default` is what the model's Hugging Face config class puts in place of a missing length.

    Raises:
        UnsupportedModelError: no length is given and the class has no default.

    Source: vLLM 0.32.0 config/model.py::_get_and_verify_max_len and
    transformers_utils/model_arch_config_convertor.py::derive_max_model_len_and_key.
    """
    given = [fields.integer(name) for name in _LENGTH_FIELDS if fields.get(name) is not None]
    length = min(given) if given else fields.integer("max_position_embeddings", default=class_default)
    # Command-R: its own field wins even where it is the longer one.
    length = fields.optional_integer("model_max_length") or length
    scalings = list(_rope_scalings(fields))
    factor = 1.0
    # Gemma 3's 131072 includes its factor of 8 although its RoPE type is "linear".
    if "gemma3" not in str(fields.get("model_type")):
        for scaling in scalings:
            if _rope_type(scaling) not in _ALREADY_SCALED:
                factor = float(scaling.get("factor") or factor)
    longest = int(length * factor)
    default = longest
    if any(_rope_type(scaling) in {"longrope", "su"} for scaling in scalings):
        # Short contexts are worse with the long factors: vLLM starts from the original length.
        default = fields.integer("original_max_position_embeddings", default=longest)
    return ContextLengths(default, longest)


def _rope_type(scaling: Mapping[str, Any]) -> str:
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    return "default" if kind == "mrope" else kind


def _rope_scalings(fields: ConfigFields) -> Iterator[Mapping[str, Any]]:
    """Each RoPE scaling of the model; newer configs hold one per kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        value = fields.get(name)
        if not isinstance(value, dict) or not value:
            continue
        if all(isinstance(v, dict) for v in value.values()):
            yield from (v for v in value.values() if v)
        else:
            yield value
        return
