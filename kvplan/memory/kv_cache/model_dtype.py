"""The dtype that a card can serve a model in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.version import VllmVersion
    from kvplan.memory.hardware import GpuSpec

_FLOAT16_REFUSED: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Source: vLLM 0.32.0 config/model.py::_FLOAT16_NOT_SUPPORTED_MODELS."""


def dtype_on_card(
    shape: ModelShape, dtype: str, gpu: GpuSpec, version: VllmVersion, *, is_default: bool
) -> str:
    """`dtype`, or what vLLM serves in its place on cards before Ampere, which have no bfloat16.

    Args:
        shape: the model.
        dtype: the one that was asked for, or the checkpoint's.
        gpu: the card.
        version: of vLLM; before 0.9.1 `auto` does not fall back.
        is_default: no --dtype was given.

    Raises:
        InputError: the card has no bfloat16, or the model is unstable in float16.

    Source: vLLM 0.32.0 config/model.py::_resolve_auto_dtype and _check_valid_dtype,
    platforms/cuda.py::check_if_supports_dtype; 0.8.5 config.py::_get_and_verify_dtype.
    """
    capability = gpu.compute_capability
    if dtype == "bfloat16" and capability is not None and capability < (8, 0):
        if not is_default or version < (0, 9, 1):
            raise InputError(
                "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
                f"{gpu.name} GPU has compute capability {capability[0]}.{capability[1]}. You can use float16 "
                "instead by explicitly setting the `dtype` flag in CLI, for example: --dtype=half.",
                "vLLM stops with this message",
            )
        dtype = "float32" if shape.model_type in _FLOAT16_REFUSED else "float16"
    if dtype == "float16" and shape.model_type in _FLOAT16_REFUSED:
        raise InputError(
            f"The model type '{shape.model_type}' does not support float16. Reason: Numerical instability. "
            "Please use bfloat16 or float32 instead.",
            "vLLM's own refusal; a card without bfloat16 can only serve it in float32",
        )
    return dtype
