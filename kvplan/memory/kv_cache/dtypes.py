"""kv_cache_dtype values: the versions that know them and the bytes of one token in one head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvplan.errors import InputError
from kvplan.units import cdiv

if TYPE_CHECKING:
    from kvplan.config.version import VllmVersion

MODEL_DTYPE_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}

FIRST_VERSION: Final[dict[str, VllmVersion]] = {
    "auto": (0, 0, 0),
    "fp8": (0, 0, 0),
    "fp8_e4m3": (0, 0, 0),
    "fp8_e5m2": (0, 0, 0),
    "fp8_inc": (0, 10, 0),
    "bfloat16": (0, 11, 0),
    "fp8_ds_mla": (0, 11, 2),
    "float16": (0, 18, 0),
    "turboquant_k8v4": (0, 20, 0),
    "turboquant_4bit_nc": (0, 20, 0),
    "turboquant_k3v4_nc": (0, 20, 0),
    "turboquant_3bit_nc": (0, 20, 0),
    "int8_per_token_head": (0, 20, 0),
    "fp8_per_token_head": (0, 20, 0),
    "nvfp4": (0, 20, 0),
    "int4_per_token_head": (0, 25, 0),
    "nvfp4_4over6": (0, 28, 0),
    "nvfp4_ds_mla": (0, 30, 0),
    "ultraquant_4bit": (0, 32, 0),
}
"""Source: vLLM config/cache.py::CacheDType, releases 0.6.6 to 0.32.0 compared."""


class _TurboQuant(NamedTuple):
    """Bits of a TurboQuant preset. Source: vLLM 0.32.0 quantization/turboquant/config.py::TQ_PRESETS."""

    key_bits: int
    value_bits: int

    def slot_bytes(self, head_dim: int) -> int:
        """One head's key and value: packed indices, the key's norm, the value's scale and zero; even."""
        key = head_dim if self.key_bits == 8 else cdiv(head_dim * self.key_bits, 8) + 2
        slot = key + cdiv(head_dim * self.value_bits, 8) + 4
        return slot + slot % 2


_TURBOQUANT: Final = {
    "turboquant_k8v4": _TurboQuant(8, 4),
    "turboquant_4bit_nc": _TurboQuant(4, 4),
    "turboquant_k3v4_nc": _TurboQuant(3, 4),
    "turboquant_3bit_nc": _TurboQuant(3, 3),
}
_PER_TOKEN_HEAD: Final = {"int8_per_token_head": 1, "fp8_per_token_head": 1, "int4_per_token_head": 2}
"""Elements of a byte."""
_SCALE_BYTES: Final = 4
"""One fp32 scale beside each head's key, one beside its value."""


def packs(backend: str, dtype: str) -> bool:
    """Whether that attention backend lays the dtype out in its own way."""
    if dtype in _PER_TOKEN_HEAD:
        return backend == "TRITON_ATTN"
    if dtype in _TURBOQUANT:
        return backend == "TURBOQUANT"
    return dtype in {"nvfp4", "nvfp4_4over6"} and backend == "FLASHINFER"


def is_quantized(dtype: str) -> bool:
    """Whether the cache is stored in fewer bits than the model computes in."""
    return dtype not in {"auto", "bfloat16", "float16"}


def element_bytes(dtype: str, model_dtype: str) -> int:
    """Bytes of one stored element; packed formats count as bytes.

    Source: vLLM 0.32.0 utils/torch_utils.py::STR_DTYPE_TO_TORCH_DTYPE.
    """
    if dtype == "auto":
        return MODEL_DTYPE_BYTES[model_dtype]
    return 1 if is_quantized(dtype) else 2


def head_token_bytes(dtype: str, model_dtype: str, head_dim: int, head_dim_v: int, *, packed: bool) -> int:
    """Bytes of one token in one KV head, key and value, scales included.

    Args:
        dtype: `kv_cache_dtype`, resolved.
        model_dtype: what `auto` stands for.
        head_dim: width of a key.
        head_dim_v: width of a value.
        packed: whether the attention backend lays the format out; vLLM's CPU backend takes any one-byte
            dtype and stores plain bytes.

    Source: vLLM 0.32.0 `customize_spec` of v1/attention/backends/{triton_attn,flashinfer,
    turboquant_attn}.py and utils/torch_utils.py::nvfp4_kv_cache_full_dim.
    """
    if packed and dtype in _TURBOQUANT:
        return _TURBOQUANT[dtype].slot_bytes(head_dim)
    if packed and dtype in _PER_TOKEN_HEAD:
        per_byte = _PER_TOKEN_HEAD[dtype]
        return head_dim // per_byte + head_dim_v // per_byte + 2 * _SCALE_BYTES
    if packed and dtype in {"nvfp4", "nvfp4_4over6"}:
        return 2 * (head_dim // 2 + head_dim // 16)
    return (head_dim + head_dim_v) * element_bytes(dtype, model_dtype)


def latent_token_bytes(dtype: str, model_dtype: str, head_dim: int) -> int:
    """Bytes of one token of one MLA layer; `fp8_ds_mla` and `nvfp4_ds_mla` are opaque rows.

    Source: vLLM 0.32.0 model_executor/layers/attention/mla_attention.py::get_kv_cache_spec.
    """
    rows = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
    return rows.get(dtype) or head_dim * element_bytes(dtype, model_dtype)


def check_known(dtype: str, version: VllmVersion) -> None:
    """Refuse a value that vLLM of that version does not take.

    Raises:
        InputError: unknown to every version read, or first known to a later one.
    """
    first = FIRST_VERSION.get(dtype)
    if first is None:
        raise InputError(
            f"kv_cache_dtype {dtype!r} is not one that vLLM knows",
            f"known: {', '.join(FIRST_VERSION)}",
        )
    if version < first:
        known = ", ".join(name for name, since in FIRST_VERSION.items() if since <= version)
        raise InputError(
            f"kv_cache_dtype {dtype!r} is first in vLLM {'.'.join(map(str, first))}; "
            f"{'.'.join(map(str, version))} takes {known}",
            "choose another kv_cache_dtype or a newer vLLM",
        )
