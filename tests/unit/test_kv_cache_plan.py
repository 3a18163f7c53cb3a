"""The KV cache of vLLM 0.32.0: published figures, parallelism, refusals, and how many requests run at once.

Layouts are compared byte for byte in test_kv_cache_table.py; here each figure is derived by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvplan.errors import InputError
from kvplan.memory.hardware import GpuSpec
from kvplan.memory.kv_cache.stages import pipeline_stages
from kvplan.units import GIB
from tests.kv_cases import A100, ADA, BLACKWELL, CPU, H100, TURING, plan

if TYPE_CHECKING:
    from kvplan.memory.kv_cache.plan import KvCachePlan

LLAMA = "meta-llama/Meta-Llama-3-8B"


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("meta-llama/Llama-2-7b-hf", 524_288),  # 2 * 32 layers * 32 heads * 128 * 2 bytes
        (LLAMA, 131_072),
        ("meta-llama/Llama-2-70b-hf", 327_680),
        ("Qwen/Qwen2-7B", 57_344),
        ("microsoft/Phi-3-mini-4k-instruct", 0),  # a window in every layer: no layer grows
        ("google/gemma-3-27b-it", 81_920),  # 10 full layers
        ("openai/gpt-oss-20b", 24_576),
        ("THUDM/glm-4-9b", 40_960),
        ("deepseek-ai/DeepSeek-V3", 61 * 1_152),
        ("deepseek-ai/DeepSeek-V3.2", 78_324),  # 61 * (1,152 + 132)
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 24_576),
        ("Qwen/Qwen3.5-27B", 65_536),
    ],
)
def test_bytes_per_token(model: str, bytes_per_token: int) -> None:
    assert plan(model).bytes_per_token == bytes_per_token


@pytest.mark.parametrize(
    ("dtype", "gpu", "per_head"),
    [
        ("auto", H100, 2 * 128 * 2),
        ("bfloat16", H100, 2 * 128 * 2),
        ("fp8", H100, 2 * 128),
        ("fp8_e4m3", ADA, 2 * 128),
        ("fp8_e5m2", A100, 2 * 128),
        ("int8_per_token_head", H100, 2 * (128 + 4)),  # with one fp32 scale
        ("fp8_per_token_head", H100, 2 * (128 + 4)),
        ("int4_per_token_head", H100, 2 * (64 + 4)),
        ("nvfp4", BLACKWELL, 2 * (64 + 8)),  # one scale of a byte for 16 values
    ],
)
def test_bytes_per_token_of_each_dtype(dtype: str, gpu: GpuSpec, per_head: int) -> None:
    assert plan(LLAMA, gpu, kv_cache_dtype=dtype).bytes_per_token == 32 * 8 * per_head


@pytest.mark.parametrize(("ranks", "bytes_per_token"), [(1, 131_072), (2, 65_536), (8, 16_384), (16, 16_384)])
def test_heads_are_divided_and_then_replicated(ranks: int, bytes_per_token: int) -> None:
    found = plan(LLAMA, tensor_parallel_size=ranks)
    assert found.bytes_per_token == bytes_per_token
    assert any("replicated" in warning for warning in found.warnings) == (ranks > 8)


def test_latents_are_replicated_and_context_parallelism_shards_their_tokens() -> None:
    model = "deepseek-ai/DeepSeek-V2-Lite"
    alone, ranks, sharded = (
        plan(model, tensor_parallel_size=tp, decode_context_parallel_size=dcp)
        for tp, dcp in ((1, 1), (8, 1), (8, 8))
    )
    assert alone.bytes_per_token == ranks.bytes_per_token == 27 * 1_152
    assert any("decode-context-parallel-size" in warning for warning in ranks.warnings)
    assert sharded.bytes_per_token == 27 * 1_152 // 8
    assert sharded.blocks_for_request(8_192) == 8_192 // 8 // sharded.block_size


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (32, 4, [8, 8, 8, 8]),
        # What is left over goes one each to the stages before the last, the last of them first.
        (32, 3, [11, 11, 10]),
        (28, 8, [3, 3, 3, 4, 4, 4, 4, 3]),
        (61, 4, [15, 15, 16, 15]),
    ],
)
def test_pipeline_stages(layers: int, stages: int, sizes: list[int]) -> None:
    found = pipeline_stages(layers, stages)
    assert [end - start for start, end in found] == sizes
    assert (found[0][0], found[-1][1]) == (0, layers)


def test_the_widest_pipeline_stage_sets_the_pace() -> None:
    found = plan(LLAMA, pipeline_parallel_size=3)
    layer = 2 * 8 * 128 * 2 * 16
    assert found.stage_bytes_per_block == (11 * layer, 11 * layer, 10 * layer)
    assert found.bytes_per_block == 11 * layer
    assert found.bytes_per_token == 11 * layer // 16
    assert found.num_blocks(GIB) == GIB // (11 * layer)


def test_blocks_override() -> None:
    found = plan(LLAMA, num_gpu_blocks_override=700)
    assert found.num_blocks(GIB) == 700
    assert found.check_bytes(0) == 699 * found.bytes_per_block


def test_no_memory_makes_no_blocks() -> None:
    assert plan(LLAMA).num_blocks(-5) == 0


# Llama-3-8B in blocks of 16: a request of 4,096 tokens holds 256 of them.
@pytest.mark.parametrize(("num_blocks", "requests"), [(256, 0), (257, 1), (1024, 3), (1025, 4)])
def test_requests_at_once_leave_the_null_block_alone(num_blocks: int, requests: int) -> None:
    assert plan(LLAMA).concurrent_requests(num_blocks, 4_096) == requests


def test_a_part_of_a_block_is_a_block() -> None:
    found = plan(LLAMA)
    assert (found.blocks_for_request(4_096), found.blocks_for_request(4_097)) == (256, 257)
    assert found.concurrent_requests(1_025, 4_097) == 3


def test_windows_give_back_what_is_behind_them() -> None:
    # Gemma 2: 13 full and 13 sliding layers. 8,192 tokens: 512 full blocks; the window's worst case is
    # (4,095 + 2 * 2,048) / 16 = 512 and one, between steps (4,095 + 2) / 16 = 257 and one.
    found = plan("google/gemma-2-2b", max_num_batched_tokens=2_048)
    assert found.blocks_for_request(8_192) == 512 + 513
    assert found.steady_blocks(8_192) == 512 + 258
    # One is let in at its worst beside others that decode.
    assert found.concurrent_requests(1 + 1_025, 8_192) == 1
    assert found.concurrent_requests(1 + 1_025 + 769, 8_192) == 1
    assert found.concurrent_requests(1 + 1_025 + 770, 8_192) == 2


def test_the_longest_request_that_starts() -> None:
    found = plan(LLAMA, max_model_len=8_192)
    block = found.bytes_per_block
    assert found.estimated_max_model_len(101 * block) == 1_600
    assert found.estimated_max_model_len(101 * block - 1) == 1_584
    assert found.estimated_max_model_len(block) == 0
    assert found.estimated_max_model_len(100 * GIB) == 8_192


@pytest.mark.parametrize(
    ("model", "gpu", "changes", "message"),
    [
        (
            "Qwen/Qwen2-7B",
            H100,
            {"tensor_parallel_size": 8},
            r"Total number of attention heads \(28\) must be divisible by tensor parallel size \(8\)",
        ),
        # 40 heads and 10 KV heads: 8 ranks can neither divide nor replicate them.
        ("microsoft/phi-4", H100, {"tensor_parallel_size": 4}, "10 KV heads can be neither divided"),
        (LLAMA, TURING, {"kv_cache_dtype": "fp8", "dtype": "float16"}, r"requires SM89\+"),
        (LLAMA, TURING, {}, "Bfloat16 is only supported on GPUs with compute capability of at least 8.0"),
        (LLAMA, H100, {"block_size": 24}, "No valid attention backend found"),
        (LLAMA, H100, {"kv_cache_dtype": "fp7"}, "not one that vLLM knows"),
        (LLAMA, H100, {"max_model_len": 8_193}, r"max_model_len \(8193\) is greater than"),
        (LLAMA, H100, {"attention_backend": "FLASHMLA"}, "non-MLA not supported"),
        (LLAMA, H100, {"attention_backend": "NO_SUCH"}, "has no rule here"),
        (LLAMA, CPU, {"block_size": 16}, r"No common block size for 16 \(CPU_ATTN: \[MultipleOf\(32\)\]\)"),
        ("google/gemma-2-2b", H100, {"dtype": "float16"}, "does not support float16"),
        ("deepseek-ai/DeepSeek-V3", BLACKWELL, {"kv_cache_dtype": "nvfp4"}, "not supported with MLA"),
        (
            "google/gemma-2-2b",
            H100,
            {"decode_context_parallel_size": 2, "tensor_parallel_size": 8},
            "DCP not support sliding window",
        ),
        (
            LLAMA,
            H100,
            {"decode_context_parallel_size": 2, "tensor_parallel_size": 8},
            r"greater than the model's total number of KV heads \(8\)",
        ),
    ],
)
def test_vllms_own_refusals(model: str, gpu: GpuSpec, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(model, gpu, **changes)


def test_a_longer_length_where_the_variable_allows_it() -> None:
    found = plan(LLAMA, max_model_len=16_384, allows_longer_max_model_len=True)
    assert found.max_model_len == 16_384


def test_cards_of_other_makers_are_refused_by_name() -> None:
    radeon = GpuSpec("mi300x", "MI300X", GIB, GIB, GIB, vendor="amd")
    with pytest.raises(InputError, match="MI300X"):
        plan(LLAMA, radeon)


def unknown_card(**changes: Any) -> KvCachePlan:
    return plan(LLAMA, GpuSpec("unknown", "some card", GIB, GIB, GIB), **changes)


def test_a_card_of_unknown_capability_is_planned_where_that_does_not_matter() -> None:
    assert unknown_card(dtype="float16").bytes_per_block == plan(LLAMA).bytes_per_block


def test_a_card_of_unknown_capability_is_refused_where_it_does() -> None:
    with pytest.raises(InputError):
        unknown_card(dtype="float16", kv_cache_dtype="fp8")


def test_blocks_on_the_cpu_are_128_tokens() -> None:
    found = plan(LLAMA, CPU)
    assert (found.block_size, found.bytes_per_block) == (128, 128 * 131_072)
    assert plan(LLAMA, CPU, block_size=32).block_size == 32


def test_one_byte_formats_on_the_cpu_come_with_a_warning() -> None:
    found = plan(LLAMA, CPU, kv_cache_dtype="int8_per_token_head")
    # Plain bytes, no scales: vLLM takes the flag unchecked there.
    assert found.bytes_per_token == 65_536
    assert any("unchecked" in warning for warning in found.warnings)


def test_ampere_reads_fp8_through_flashinfer_only() -> None:
    found = plan(LLAMA, A100, kv_cache_dtype="fp8")
    assert found.attention_backends == ("FLASHINFER",)
    assert any("flashinfer" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("model", "entries", "unknown"),
    [
        (LLAMA, ("0", "31"), None),
        (LLAMA, ("32",), "32 names no layer of this model (layers that cache keys and values: 0 to 31)"),
        (LLAMA, ("0", "-1", "model.layers.3"), "-1 model.layers.3 names no layer"),
        # Entries are compared as text.
        (LLAMA, ("00",), "00 names no layer"),
        (LLAMA, ("sliding_window",), "sliding_window names no layer"),
        ("google/gemma-3-27b-it", ("sliding_window", "61"), None),
        ("google/gemma-3-27b-it", ("62",), "0 to 61, or sliding_window)"),
        # Three of four layers are linear attention and have no keys to quantise.
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", ("0", "3"), "0 names no layer of this model (layers that cache"),
    ],
)
def test_skipped_layers_that_do_not_exist_are_named(
    model: str, entries: tuple[str, ...], unknown: str | None
) -> None:
    """vLLM 0.32.0 takes them and compares each with the layers' own numbers: nothing is skipped for them."""
    found = plan(model, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=entries).warnings
    said = [warning for warning in found if "--kv-cache-dtype-skip-layers" in warning]
    assert len(said) == (0 if unknown is None else 1)
    assert all((unknown or "") in warning and "skips nothing for it" in warning for warning in said)


def test_a_skipped_layer_that_does_not_exist_changes_no_layer() -> None:
    """Block alignment still happens, as in vLLM: 32 tokens, in which an unskipped token costs the same."""
    found = plan(LLAMA, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("99",), block_size=16)
    assert found.bytes_per_token == 32 * 8 * 2 * 128


def test_skipped_layers_stay_in_the_models_dtype() -> None:
    # 2 of 32 layers. fp8 rows have 8 * 256 = 2,048 bytes, theirs 4,096: a quantised page of 32 tokens covers
    # one of 16 of theirs.
    found = plan(LLAMA, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("0", "31"), block_size=16)
    assert found.block_size == 32
    assert found.bytes_per_token == 30 * 2_048 + 2 * 4_096
    assert any("instead of 16" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("model", "version", "element_bytes"),
    [
        (LLAMA, (0, 32, 0), 2),  # float16 in place of bfloat16
        ("google/gemma-2-2b", (0, 32, 0), 4),  # unstable in float16, so float32
    ],
)
def test_auto_on_a_card_without_bfloat16(
    model: str, version: tuple[int, int, int], element_bytes: int
) -> None:
    given = {LLAMA: 32 * 2 * 8 * 128, "google/gemma-2-2b": 13 * 2 * 4 * 256}[model]
    found = plan(model, TURING, vllm_version=version, defaulted=("dtype", "enable_prefix_caching"))
    assert found.bytes_per_token == given * element_bytes


def test_auto_on_a_card_without_bfloat16_stopped_in_0_8() -> None:
    with pytest.raises(InputError, match="Bfloat16 is only supported"):
        plan(LLAMA, TURING, vllm_version=(0, 8, 5), defaulted=("dtype",))
