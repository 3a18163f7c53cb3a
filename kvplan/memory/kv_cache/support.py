"""What vLLM refuses before it sizes anything, in its own words, with the version the rule comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.architecture.layers import (
    DeepseekV4Attention,
    FullAttention,
    RecurrentState,
    SlidingWindow,
)
from kvplan.config.version import format_vllm_version
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.memory.kv_cache.dtypes import check_known, is_quantized
from kvplan.units import round_up

if TYPE_CHECKING:
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.memory.kv_cache.rank import Rank


def check_supported(shape: ModelShape, rank: Rank) -> tuple[str, ...]:
    """Warnings about the combination.

    Raises:
        InputError: vLLM of that version refuses it at start-up.
        UnsupportedModelError: vLLM of that version does not serve the architecture.
    """
    _check_platform(rank)
    _check_architecture(shape, rank)
    check_known(rank.kv_cache_dtype, rank.vllm_version)
    _check_tensor_parallel(shape, rank)
    _check_context_parallel(shape, rank)
    _check_dtypes(shape, rank)
    _check_block_size(shape, rank)
    _check_length(shape, rank)
    return _warnings(shape, rank)


def _check_platform(rank: Rank) -> None:
    if rank.platform == "other":
        raise UnsupportedModelError(
            f"{rank.gpu_name}: kvplan has no rules for vLLM's KV cache on cards that are not NVIDIA's",
            "plan for an NVIDIA card, or for vLLM's CPU backend with --device cpu",
        )


def _check_architecture(shape: ModelShape, rank: Rank) -> None:
    last = shape.last_version
    if last is not None and rank.vllm_version > last:
        raise UnsupportedModelError(
            f"vLLM {format_vllm_version(rank.vllm_version)} does not serve {shape.architecture}: "
            f"{format_vllm_version(last)} was the last release with it",
            f"plan with --vllm-version {format_vllm_version(last)}",
        )
    absent = shape.absent_up_to
    if absent is not None and rank.vllm_version <= absent:
        raise UnsupportedModelError(
            f"vLLM {format_vllm_version(rank.vllm_version)} does not serve {shape.architecture} yet: "
            f"{format_vllm_version(absent)} has no such model",
            "plan with a newer --vllm-version",
        )
    era = rank.era
    v4 = any(isinstance(cache, DeepseekV4Attention) for layer in shape.layers for cache in layer)
    if v4 and not era.packs_deepseek_v4:
        raise UnsupportedModelError(
            f"the KV cache of {shape.architecture} was laid out otherwise before vLLM 0.31: no rule for it",
            "plan with --vllm-version 0.31.0 or newer",
        )
    recurrent = any(isinstance(cache, RecurrentState) for layer in shape.layers for cache in layer)
    if recurrent and rank.state_mode != "none" and not era.states_by_block:
        raise UnsupportedModelError(
            "prefix caching of recurrent states before vLLM 0.15 (experimental, off by default) has no rule",
            "leave out --enable-prefix-caching, or plan with 0.15.0 or newer",
        )
    if rank.vllm_version < (0, 10, 2) and (recurrent or shape.is_encoder_decoder):
        raise UnsupportedModelError(
            f"{shape.architecture} ran on vLLM's first engine before 0.10.2: no rule for its cache there",
            "plan with --vllm-version 0.10.2 or newer",
        )
    if rank.vllm_version < (0, 7, 2) and shape.uses_mla:
        raise UnsupportedModelError(
            f"vLLM {format_vllm_version(rank.vllm_version)} keeps whole heads for {shape.architecture} "
            "instead of latents: no rule for that",
            "plan with --vllm-version 0.7.2 or newer",
        )


def _check_tensor_parallel(shape: ModelShape, rank: Rank) -> None:
    """Source: vLLM config/model.py::verify_with_parallel_config (0.6 to 0.32), models' attention modules."""
    ranks = rank.tensor_parallel_size
    if shape.num_attention_heads % ranks:
        raise InputError(
            f"Total number of attention heads ({shape.num_attention_heads}) must be divisible by tensor "
            f"parallel size ({ranks}).",
            "vLLM (0.6 to 0.32) stops with this message: choose a tensor parallel size that divides them",
        )
    vocabulary = round_up(shape.vocab_size, 64)
    if vocabulary % ranks:
        raise InputError(
            f"{vocabulary} is not divisible by {ranks}",
            "vLLM cuts the vocabulary, padded to a multiple of 64, over the tensor-parallel GPUs",
        )
    for caches in shape.layers:
        for cache in caches:
            heads = getattr(cache, "num_kv_heads", None)
            if heads is not None and heads % ranks and ranks % heads:
                raise InputError(
                    f"{heads} KV heads can be neither divided by nor replicated over a tensor parallel size "
                    f"of {ranks}: vLLM's model code asserts one or the other",
                    f"choose a tensor parallel size that divides {heads} or that {heads} divides",
                )


def _check_context_parallel(shape: ModelShape, rank: Rank) -> None:
    """Source: vLLM 0.32.0 config/model.py::verify_with_parallel_config, kv_cache_interface.py."""
    shards = rank.decode_context_parallel_size
    if shards <= 1:
        return
    ranks = rank.tensor_parallel_size
    if ranks % shards:
        raise InputError(
            f"tensor_parallel_size ({ranks}) must be divisible by decode_context_parallel_size ({shards})",
            "decode context parallelism reuses the ranks of tensor parallelism",
        )
    if any(isinstance(cache, SlidingWindow) for caches in shape.layers for cache in caches):
        raise InputError(
            "DCP not support sliding window.", "vLLM asserts it: leave out --decode-context-parallel-size"
        )
    if shape.uses_mla or shape.num_key_value_heads == 0:
        return
    heads = shape.num_key_value_heads
    if ranks <= heads:
        raise InputError(
            f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({ranks}) to be "
            f"greater than the model's total number of KV heads ({heads}). Increase "
            "`--tensor-parallel-size` or set `--decode-context-parallel-size 1`.",
            "raise --tensor-parallel-size, or leave --decode-context-parallel-size out",
        )
    if shards > ranks // heads:
        raise InputError(
            f"`--decode-context-parallel-size` ({shards}) exceeds the maximum supported value "
            f"({ranks // heads}) for `--tensor-parallel-size` ({ranks}) and {heads} model KV heads.",
            "lower --decode-context-parallel-size to that",
        )
    per_kv = shape.num_attention_heads // heads
    if per_kv % shards:
        raise InputError(
            f"The model's number of query heads per KV head ({per_kv}) must be divisible by "
            f"`--decode-context-parallel-size` ({shards}) for GQA/MQA.",
            "choose a --decode-context-parallel-size that divides it",
        )


def _check_dtypes(shape: ModelShape, rank: Rank) -> None:
    dtype = rank.kv_cache_dtype
    if dtype.startswith("nvfp4") and not dtype.endswith("_ds_mla") and shape.uses_mla:
        raise InputError(
            "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. Please use a "
            "different --kv-cache-dtype (e.g., 'fp8', 'auto', or 'nvfp4_ds_mla' with a sparse MLA backend) "
            "for MLA models such as DeepSeek.",
            "--kv-cache-dtype fp8 or auto",
        )
    alone = any(len(caches) == 1 and isinstance(caches[0], FullAttention) for caches in shape.layers)
    if dtype.startswith("turboquant_") and shape.is_hybrid and not alone and not shape.uses_mla:
        raise InputError(
            "TurboQuant KV cache requires identifiable full-attention layers, but none were found in the "
            "hybrid model config.",
            "vLLM finds none where every layer is attention and state at once",
        )


def check_checkpoint_scales(shape: ModelShape, rank: Rank) -> None:
    """What vLLM finds wrong only after each layer has its backend.

    Raises:
        InputError: the checkpoint stores scales for another fp8 format.

    Source: vLLM 0.32.0 model_executor/layers/attention/attention.py::_init_kv_cache_quant; 0.22.1.
    """
    cache = shape.checkpoint_cache
    stores = cache.stores_scales or (
        cache.is_compressed_tensors and not rank.era.compressed_tensors_take_e5m2
    )
    if rank.kv_cache_dtype == "fp8_e5m2" and stores:
        raise InputError("fp8_e5m2 kv-cache is not supported with fp8 checkpoints.", "use fp8 (e4m3) or auto")


def _check_block_size(shape: ModelShape, rank: Rank) -> None:
    """Source: the argparse choices of vLLM 0.8 to 0.17; v1/worker/utils.py on the CPU."""
    size = rank.block_size
    if size is None:
        return
    choices = (1, 8, 16, 32, 64, 128) if rank.vllm_version < (0, 11, 2) else (1, 8, 16, 32, 64, 128, 256)
    if rank.vllm_version < (0, 18, 0) and size not in choices:
        raise InputError(
            f"argument --block-size: invalid choice: {size} (choose from {', '.join(map(str, choices))})",
            "vLLM takes any positive size that the attention backend accepts from 0.18 on",
        )
    if size < 1:
        raise InputError(f"block_size must be positive, got {size}", "leave --block-size out: vLLM chooses")
    forced = shape.uses_mla and not rank.has_cpu_feature("amx")
    if rank.platform == "cpu" and size % 32 and not forced:
        raise InputError(
            f"No common block size for {size} (CPU_ATTN: [MultipleOf(32)]).",
            "vLLM's CPU backend takes multiples of 32: it warns at first, then its worker dies with this",
        )


def _check_length(shape: ModelShape, rank: Rank) -> None:
    """Source: vLLM 0.32.0 config/model.py::_get_and_verify_max_len."""
    longest = shape.longest_model_len
    if longest is not None and rank.max_model_len > longest and not rank.allows_longer_max_model_len:
        raise InputError(
            f"User-specified max_model_len ({rank.max_model_len}) is greater than the derived max_model_len "
            f"(max_position_embeddings={longest} or model_max_length=None in model's "
            "config.json).",
            "vLLM refuses it unless VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 is set; lower --max-model-len",
        )


def _warnings(shape: ModelShape, rank: Rank) -> tuple[str, ...]:
    notes = []
    heads = shape.num_key_value_heads
    if heads and not shape.uses_mla and rank.tensor_parallel_size > heads:
        notes.append(
            f"{heads} KV heads are replicated over {rank.tensor_parallel_size} GPUs: beyond "
            f"{heads} GPUs tensor parallelism saves no KV cache"
        )
    if shape.uses_mla and rank.tensor_parallel_size > 1 and rank.decode_context_parallel_size == 1:
        notes.append(
            "latent attention is replicated on every tensor-parallel GPU; only "
            "--decode-context-parallel-size shards its cache"
        )
    if rank.vllm_version < (0, 20, 0) and rank.is_cuda and is_quantized(rank.kv_cache_dtype):
        notes.append(
            f"which attention backend vLLM {format_vllm_version(rank.vllm_version)} picks for kv_cache_dtype "
            f"{rank.kv_cache_dtype} follows the rules of 0.32 here: older ones refuse more"
        )
    return tuple(notes)
