"""What a quantised checkpoint says about its KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def checkpoint_kv_cache_dtype(quantization: Mapping[str, Any] | None) -> str | None:
    """What `--kv-cache-dtype auto` becomes because of the checkpoint; None: it stays the model's dtype.

    Source: vLLM 0.32.0 utils/torch_utils.py::get_kv_cache_quant_algo_string (modelopt) and
    model_executor/layers/attention/attention.py::Attention.__init__ (compressed-tensors).
    """
    if quantization is None:
        return None
    method = str(quantization.get("quant_method", "")).lower().replace("_", "-")
    if method.startswith("modelopt"):
        return _modelopt(quantization)
    if method == "compressed-tensors" and quantization.get("kv_cache_scheme") is not None:
        return "fp8"
    return None


def _modelopt(quantization: Mapping[str, Any]) -> str | None:
    inner = quantization.get("quantization", quantization)
    scheme = (
        inner.get("kv_cache_scheme")
        or quantization.get("kv_cache_scheme")
        or inner.get("kv_cache_quant_algo")
        or quantization.get("kv_cache_quant_algo")
    )
    if isinstance(scheme, dict):
        if scheme.get("dynamic") is False and scheme.get("num_bits") == 8 and scheme.get("type") == "float":
            scheme = "fp8"
        elif scheme.get("num_bits") == 4 and scheme.get("type") == "float":
            scheme = "nvfp4"
        else:
            return None
    return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(scheme).lower())
