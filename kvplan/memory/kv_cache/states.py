"""Bytes of one recurrent state on one tensor-parallel rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.architecture.layers import (
    GatedDeltaNetState,
    KdaState,
    Mamba1State,
    Mamba2State,
    ShortConvState,
)
from kvplan.errors import InputError
from kvplan.memory.kv_cache.dtypes import MODEL_DTYPE_BYTES
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from kvplan.architecture.layers import RecurrentState


class StateDtypes(FrozenRecord):
    """Bytes per element: the convolution's state and the recurrent one."""

    conv_bytes: int
    recurrent_bytes: int
    kda_recurrent_bytes: int
    """Kimi delta attention keeps float32 where nothing is asked for."""


def state_dtypes(model_dtype: str, cache_dtype: str, ssm_cache_dtype: str) -> StateDtypes:
    """The element sizes for `--mamba-cache-dtype` and `--mamba-ssm-cache-dtype`.

    Source: vLLM 0.32.0 model_executor/layers/mamba/mamba_utils.py::MambaStateDtypeCalculator.
    """
    conv = MODEL_DTYPE_BYTES[model_dtype if cache_dtype == "auto" else cache_dtype]
    if ssm_cache_dtype == "auto":
        return StateDtypes(conv, conv, 4)
    recurrent = MODEL_DTYPE_BYTES[ssm_cache_dtype]
    return StateDtypes(conv, recurrent, recurrent)


def _divide(total: int, ranks: int, what: str) -> int:
    if total % ranks:
        raise InputError(
            f"{what} ({total}) is not divisible by tensor parallel size ({ranks})",
            "choose a tensor parallel size that divides it",
        )
    return total // ranks


def _mamba2_heads(state: Mamba2State, ranks: int) -> int:
    """Source: vLLM 0.32.0 model_executor/layers/mamba/mamba_mixer2.py::MambaMixer2.__init__."""
    hint = "choose a tensor parallel size that divides the Mamba heads and groups"
    if state.num_heads % ranks:
        raise InputError("Tensor parallel world size must divide num heads.", hint)
    if state.num_groups % ranks and state.num_groups != 1:
        raise InputError(
            "If tensor parallel world size does not divide num_groups, then num_groups must equal 1.", hint
        )
    return state.num_heads // ranks


def state_bytes(state: RecurrentState, dtypes: StateDtypes, ranks: int, speculative_tokens: int) -> int:
    """Bytes of all states of one layer on one rank.

    Raises:
        InputError: the state does not divide into the ranks (vLLM stops there too).

    Source: vLLM 0.32.0 model_executor/layers/mamba/mamba_utils.py::MambaStateShapeCalculator.
    """
    match state:
        case Mamba1State():
            width = _divide(state.intermediate_size, ranks, "Mamba intermediate size")
            return (
                width * (state.conv_kernel - 1) * dtypes.conv_bytes
                + width * state.state_size * dtypes.recurrent_bytes
            )
        case Mamba2State():
            # Groups are replicated until every rank's heads have theirs.
            groups = state.num_groups if state.num_groups % ranks == 0 else ranks
            conv_dim = state.intermediate_size + 2 * groups * state.state_size
            rows = state.conv_kernel - 1 + speculative_tokens
            heads = _mamba2_heads(state, ranks)
            return (
                _divide(conv_dim, ranks, "Mamba convolution width") * rows * dtypes.conv_bytes
                + heads * state.head_dim * state.state_size * dtypes.recurrent_bytes
            )
        case GatedDeltaNetState():
            conv_dim = 2 * state.head_k_dim * state.num_k_heads + state.head_v_dim * state.num_v_heads
            rows = state.conv_kernel - 1 + speculative_tokens
            heads = _divide(state.num_v_heads, ranks, "Number of linear attention value heads")
            return (
                _divide(conv_dim, ranks, "Linear attention convolution width") * rows * dtypes.conv_bytes
                + heads * state.head_v_dim * state.head_k_dim * dtypes.recurrent_bytes
            )
        case KdaState():
            conv_dim = 3 * state.num_heads * state.head_dim
            rows = state.conv_kernel - 1 + speculative_tokens
            heads = _divide(state.num_heads, ranks, "Number of KDA heads")
            return (
                _divide(conv_dim, ranks, "KDA convolution width") * rows * dtypes.conv_bytes
                + heads * state.head_dim * state.head_dim * dtypes.kda_recurrent_bytes
            )
        case ShortConvState():
            width = _divide(state.conv_dim, ranks, "Short convolution width")
            return width * (state.conv_kernel - 1) * dtypes.conv_bytes
