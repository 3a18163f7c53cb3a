"""What a quantised checkpoint says about its KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODELOPT_ALGOS: Final = {
    "FP8": "modelopt",
    "FP8_PER_CHANNEL_PER_TOKEN": "modelopt",
    "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt-fp4",
}
_SCALED_METHODS: Final = frozenset({"fp8", "fbgemm-fp8", "modelopt", "modelopt-fp4", "quark"})
"""Methods whose attention layers read KV scales from the files."""


class CheckpointCache(FrozenRecord):
    """The checkpoint's own wish; what vLLM makes of it hangs on the release."""

    method: str = ""
    """`quant_method` in vLLM's spelling; empty for a checkpoint that is not quantised."""
    kv_cache_dtype: str | None = None
    """The dtype that it names for the cache."""
    scales_per_head: bool = False
    """compressed-tensors' `attn_head` strategy, which few attention backends read."""

    @property
    def is_modelopt(self) -> bool:
        """NVIDIA ModelOpt."""
        return self.method.startswith("modelopt")

    @property
    def is_compressed_tensors(self) -> bool:
        """llm-compressor."""
        return self.method == "compressed-tensors"

    @property
    def stores_scales(self) -> bool:
        """Whether there are scales of an fp8 cache in the files.

        Source: vLLM 0.32.0 model_executor/layers/attention/attention.py::_init_kv_cache_quant.
        """
        if self.is_compressed_tensors:
            return self.kv_cache_dtype is not None
        return self.method in _SCALED_METHODS


def checkpoint_cache(quantization: Mapping[str, Any] | None) -> CheckpointCache:
    """What the quantization_config (or the content of hf_quant_config.json) names.

    Source: vLLM 0.32.0 utils/torch_utils.py::get_kv_cache_quant_algo_string (ModelOpt),
    model_executor/layers/attention/attention.py::Attention.__init__ (compressed-tensors) and
    transformers_utils/model_arch_config_convertor.py::_normalize_quantization_config.
    """
    if quantization is None:
        return CheckpointCache()
    method = _method(quantization)
    found = CheckpointCache(method)
    if found.is_modelopt:
        return CheckpointCache(method, _modelopt(quantization))
    scheme = quantization.get("kv_cache_scheme")
    if found.is_compressed_tensors and isinstance(scheme, dict):
        return CheckpointCache(method, "fp8", scheme.get("strategy") == "attn_head")
    return found


def _method(quantization: Mapping[str, Any]) -> str:
    """ModelOpt's separate file names its producer instead of a method."""
    inner = quantization.get("quantization")
    producer = quantization.get("producer")
    if isinstance(inner, dict) and isinstance(producer, dict) and producer.get("name") == "modelopt":
        algorithm = str(inner.get("quant_algo")).upper()
        if algorithm in _MODELOPT_ALGOS:
            return _MODELOPT_ALGOS[algorithm]
    return str(quantization.get("quant_method", "")).lower().replace("_", "-")


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
