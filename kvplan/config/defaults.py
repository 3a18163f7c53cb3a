"""Fill in what vLLM of a version defaults to on a card: ServingConfig -> ResolvedSettings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from kvplan.config.resolved import ResolvedSettings
from kvplan.config.serving import FIELD_NAMES
from kvplan.config.side_memory import side_memory
from kvplan.errors import InputError
from kvplan.memory.kv_cache.model_dtype import dtype_on_card
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.serving import ServingConfig
    from kvplan.config.version_rules import VersionRules
    from kvplan.memory.hardware import GpuSpec

_T = TypeVar("_T")
_OLDEST_CAPABILITY: Final = (7, 0)
"""Source: vLLM's installation guide for NVIDIA GPUs, "compute capability 7.0 or higher"."""
_MOST: Final = 2**53
_MOST_RANKS: Final = 1024
_DEFAULTED: Final = tuple(name for name in ResolvedSettings._fields if name in FIELD_NAMES)
"""Flags that have a default to be named."""

_DTYPES: Final = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}


def resolve(
    config: ServingConfig,
    *,
    rules: VersionRules,
    gpu: GpuSpec,
    shape: ModelShape,
    environment: Mapping[str, str] | None = None,
) -> ResolvedSettings:
    """Every memory flag with vLLM's default for that version and card; `defaulted` names the filled ones.

    The defaults are those of a server (`vllm serve`), not of the offline `LLM` class.

    Raises:
        InputError: a value that vLLM refuses before it looks at memory, or a flag or variable that changes
            the budget in a way that is not modelled.

    Source: vLLM 0.32.0 engine/arg_utils.py::get_batch_defaults and
    _set_default_max_num_seqs_and_batched_tokens_args; older versions by profiles/engines.
    """
    _check_ranges(config, rules, shape)
    if gpu.compute_capability is not None and gpu.compute_capability < _OLDEST_CAPABILITY:
        raise InputError(
            f"{gpu.name} has compute capability "
            f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}: vLLM's CUDA builds start at 7.0",
            "take a card from Volta on",
        )
    given = config.given()
    side = side_memory(config.other_flags, environment or {})
    max_model_len = _max_model_len(config, rules, shape)
    chunked_prefill = config.enable_chunked_prefill
    if chunked_prefill is None:
        # V0 switches it on by itself for lengths above 32k (vLLM 0.6.6 engine/arg_utils.py).
        chunked_prefill = rules.chunked_prefill_default or max_model_len > 32768
    tokens, seqs = _batch(config, rules, gpu, max_model_len=max_model_len, chunked_prefill=chunked_prefill)
    prefix_default = rules.prefix_caching_default and (rules.hybrid_prefix_caching or not shape.is_hybrid)
    return ResolvedSettings(
        vllm_version=rules.asked_version,
        gpu_memory_utilization=_given(config.gpu_memory_utilization, rules.gpu_memory_utilization),
        max_model_len=max_model_len,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        dtype=dtype_on_card(
            shape,
            _dtype(config.dtype, shape),
            gpu,
            rules.asked_version,
            is_default=config.dtype in {None, "auto"},
        ),
        kv_cache_dtype=_given(config.kv_cache_dtype, "auto"),
        kv_cache_dtype_skip_layers=config.kv_cache_dtype_skip_layers or (),
        block_size=config.block_size,
        kv_cache_memory_bytes=side.cpu_kv_cache_bytes
        if side.cpu_kv_cache_bytes is not None and gpu.platform == "cpu"
        else config.kv_cache_memory_bytes,
        num_gpu_blocks_override=config.num_gpu_blocks_override,
        quantization=config.quantization,
        tensor_parallel_size=_given(config.tensor_parallel_size, 1),
        pipeline_parallel_size=_given(config.pipeline_parallel_size, 1),
        data_parallel_size=_given(config.data_parallel_size, 1),
        decode_context_parallel_size=_given(config.decode_context_parallel_size, 1),
        enable_expert_parallel=bool(config.enable_expert_parallel),
        enforce_eager=bool(config.enforce_eager),
        enable_prefix_caching=_given(config.enable_prefix_caching, prefix_default),
        enable_chunked_prefill=chunked_prefill,
        async_scheduling=_given(config.async_scheduling, rules.async_scheduling and gpu.platform != "cpu"),
        disable_hybrid_kv_cache_manager=bool(config.disable_hybrid_kv_cache_manager),
        attention_backend=config.attention_backend,
        mamba_cache_dtype=_given(config.mamba_cache_dtype, "auto"),
        mamba_ssm_cache_dtype=_given(config.mamba_ssm_cache_dtype, "auto"),
        num_speculative_tokens=side.num_speculative_tokens,
        max_loras=side.max_loras,
        max_lora_rank=side.max_lora_rank,
        cpu_offload_bytes=side.cpu_offload_bytes,
        charges_cudagraphs=side.charges_cudagraphs,
        allows_longer_max_model_len=side.allows_longer_max_model_len,
        profiles_encoder=side.profiles_encoder,
        defaulted=tuple(name for name in _DEFAULTED if name not in given),
    )


def _given(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _check_ranges(config: ServingConfig, rules: VersionRules, shape: ModelShape) -> None:
    """Refuse what vLLM's own argument checks refuse, naming the flag and the range."""
    util = config.gpu_memory_utilization
    if util is not None and not 0 < util <= 1:
        raise InputError(
            f"--gpu-memory-utilization {util:g} is outside 0 to 1",
            "it is a share of the card: write 0.92, say",
        )
    positive = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
    )
    for name in positive:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value} is not positive", "give at least 1")
        if value is not None and value > (_MOST_RANKS if name.endswith("parallel_size") else _MOST):
            raise InputError(
                f"--{name.replace('_', '-')} {value} is beyond any installation", "is it a slip?"
            )
    stages = config.pipeline_parallel_size or 1
    if stages > max(1, shape.num_layers):
        raise InputError(
            f"--pipeline-parallel-size {stages} is more stages than the model's {shape.num_layers} layers",
            f"give at most {shape.num_layers}",
        )
    if config.max_model_len is not None and config.max_model_len < 1 and config.max_model_len != -1:
        raise InputError(
            f"--max-model-len {config.max_model_len} is not a length", "give at least 1, or auto"
        )
    if config.kv_cache_memory_bytes is not None and not rules.kv_cache_memory_bytes_flag:
        raise InputError(
            "--kv-cache-memory-bytes is not a flag of that vLLM version",
            "it came with 0.10.2: give a newer --vllm-version, or --gpu-memory-utilization",
        )


def _max_model_len(config: ServingConfig, rules: VersionRules, shape: ModelShape) -> int:
    """The length that the server will accept, from the flag or from config.json."""
    asked = config.max_model_len
    if asked is None:
        if shape.max_model_len < 1:
            raise InputError(
                f"config.json: the context length is {shape.max_model_len}", "give --max-model-len"
            )
        return shape.max_model_len
    if asked == -1:
        if not rules.max_model_len_auto:
            raise InputError("--max-model-len auto is not known to that vLLM version", "it came with 0.14")
        return -1
    return asked


def _dtype(asked: str | None, shape: ModelShape) -> str:
    if asked is None or asked == "auto":
        return shape.dtype
    if asked not in _DTYPES:
        raise InputError(f"--dtype {asked!r} is not one of vLLM's", f"one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[asked]


def _batch(
    config: ServingConfig, rules: VersionRules, gpu: GpuSpec, *, max_model_len: int, chunked_prefill: bool
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) as a server of that version defaults them."""
    world = (config.tensor_parallel_size or 1) * (config.pipeline_parallel_size or 1)
    default_tokens, default_seqs = _batch_defaults(rules, gpu, world)
    tokens, seqs = config.max_num_batched_tokens, config.max_num_seqs
    # `auto` starts from the model's own length, which no default table falls below.
    length = max_model_len if max_model_len > 0 else default_tokens
    if rules.batch_rule == "v0":
        resolved_tokens = tokens or (2048 if chunked_prefill else max(length, 2048))
        resolved_seqs = seqs or default_seqs
    else:
        resolved_seqs = seqs or default_seqs
        resolved_tokens = tokens or min(
            default_tokens if chunked_prefill else max(length, default_tokens), resolved_seqs * length
        )
        if seqs is None:
            resolved_seqs = min(resolved_seqs, resolved_tokens)
    if resolved_tokens < resolved_seqs:
        raise InputError(
            f"--max-num-batched-tokens {resolved_tokens} is below --max-num-seqs {resolved_seqs}, "
            "which vLLM refuses",
            "a step gives every running request one token at least",
        )
    if not chunked_prefill and resolved_tokens < length:
        raise InputError(
            f"--max-num-batched-tokens {resolved_tokens} is below --max-model-len {length} without chunked "
            "prefill, which vLLM refuses",
            "raise --max-num-batched-tokens, or turn chunked prefill on",
        )
    return resolved_tokens, resolved_seqs


def _batch_defaults(rules: VersionRules, gpu: GpuSpec, world_size: int) -> tuple[int, int]:
    """Default (tokens, seqs) of a server by card; Source: arg_utils.py::get_batch_defaults."""
    if gpu.platform == "cpu":
        tokens, seqs = rules.cpu_batch
        scale = world_size if rules.version >= (0, 10, 0) else 1
        return tokens * scale, seqs * scale
    if rules.batch_rule == "v0":
        return 2048, 256
    if gpu.unified_memory:
        # NVML knows no memory of an integrated GPU: vLLM catches the error and takes the small class.
        return 2048, 256
    if rules.batch_rule == "v1_three_classes" and gpu.total_bytes >= 160 * GIB:
        return 16384, 1024
    is_a100 = "a100" in gpu.name.lower() or "a100" in gpu.id.lower()
    if gpu.total_bytes >= 70 * GIB and (rules.a100_is_large or not is_a100):
        return 8192, 1024
    return 2048, 256
