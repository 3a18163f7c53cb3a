"""What older vLLM releases do otherwise: each expected figure follows by hand from that release's formula.

The formulas are those of vLLM v1/core/kv_cache_utils.py, v1/kv_cache_interface.py, platforms/*.py and
model_executor/models/config.py in the releases named; `kvplan.memory.kv_cache.era` lists the boundaries.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvplan.architecture.model_shape import model_shape
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.memory.kv_cache.plan import KvCachePlan, plan_kv_cache
from kvplan.units import GIB
from tests.kv_cases import A100, BLACKWELL, CPU, H100, TURING, config_of, plan, settings

GEMMA2 = "google/gemma-2-2b"
GEMMA2_PAGE = 2 * 4 * 256 * 2 * 16
"""Keys and values, 4 heads of 256, two bytes, blocks of 16."""


def kinds(found: KvCachePlan) -> dict[str, int]:
    return dict(Counter(group.kind for group in found.groups))


def gemma2(version: tuple[int, int, int], **changes: Any) -> KvCachePlan:
    return plan(GEMMA2, vllm_version=version, max_num_batched_tokens=2048, **changes)


def test_before_0_9_1_windows_are_allocated_like_full_attention() -> None:
    found = gemma2((0, 8, 5))
    assert kinds(found) == {"full": 1}
    assert found.bytes_per_block == 26 * GEMMA2_PAGE
    # Blocks times block size, and that over the length.
    assert found.kv_cache_tokens(1000, 8192) == 16_000
    assert found.max_concurrency(1000, 8192) == 16_000 / 8192


def test_from_0_9_1_two_groups_share_the_blocks() -> None:
    found = gemma2((0, 9, 1))
    assert kinds(found) == {"full": 1, "sliding_window": 1}
    assert found.bytes_per_block == 13 * GEMMA2_PAGE
    # 8192 / 16 = 512, and (4096 - 1 + 2048) / 16, rounded up, and one = 385.
    assert found.blocks_for_request(8192) == 512 + 385
    assert found.max_concurrency(2000, 8192) == 2000 / 897
    assert found.kv_cache_tokens(2000, 8192) == 2000 // 2 * 16


@pytest.mark.parametrize(("version", "tokens"), [((0, 20, 0), 16_000), ((0, 20, 1), 18_265)])
def test_from_0_20_1_the_printed_tokens_are_the_concurrency_times_the_length(
    version: tuple[int, int, int], tokens: int
) -> None:
    assert gemma2(version).kv_cache_tokens(2000, 8192) == tokens  # int(2000 / 897 * 8192) = 18265


def test_the_first_engine_on_cards_before_ampere_up_to_0_10_1() -> None:
    old, new = (
        plan(GEMMA2, TURING, vllm_version=version, dtype="float32") for version in ((0, 10, 1), (0, 10, 2))
    )
    assert (kinds(old), kinds(new)) == ({"full": 1}, {"full": 1, "sliding_window": 1})


def test_the_cpu_backend_has_groups_from_0_10() -> None:
    old, new = (plan(GEMMA2, CPU, vllm_version=version) for version in ((0, 9, 2), (0, 10, 0)))
    assert (kinds(old), kinds(new)) == ({"full": 1}, {"full": 1, "sliding_window": 1})


def test_chunked_layers_join_the_groups_in_0_14() -> None:
    old, new = (
        plan("meta-llama/Llama-4-Scout-17B-16E-Instruct", vllm_version=version)
        for version in ((0, 13, 0), (0, 14, 0))
    )
    page = 2 * 8 * 128 * 2 * 16
    assert (kinds(old), old.bytes_per_block) == ({"full": 1}, 48 * page)
    assert (kinds(new), new.bytes_per_block) == ({"full": 1, "chunked_local": 3}, 12 * page)


@pytest.mark.parametrize(
    ("sliding", "full", "version", "groups"),
    [
        (6, 5, (0, 11, 2), 3),
        (6, 5, (0, 12, 0), 2),  # 6 < 5 * 1.25: full attention padded to 6
        (7, 5, (0, 17, 1), 3),
        (7, 5, (0, 18, 0), 2),  # 7 < 5 * 1.5
        (8, 5, (0, 18, 0), 3),
    ],
)
def test_nearly_equal_kinds_make_groups_of_the_longer_ones_size(
    sliding: int, full: int, version: tuple[int, int, int], groups: int
) -> None:
    config = config_of(GEMMA2) | {
        "num_hidden_layers": sliding + full,
        "layer_types": ["sliding_attention"] * sliding + ["full_attention"] * full,
    }
    found = plan_kv_cache(model_shape(config), settings(vllm_version=version), H100)
    assert len(found.groups) == groups
    assert found.bytes_per_block == GEMMA2_PAGE * (sliding if groups == 2 else full)


def test_windows_allow_for_every_batch_in_flight_from_0_26() -> None:
    one, two, four = (
        plan(
            "mistralai/Mistral-7B-v0.1",
            vllm_version=version,
            max_num_batched_tokens=2048,
            pipeline_parallel_size=stages,
        )
        for version, stages in (((0, 25, 0), 1), ((0, 26, 0), 1), ((0, 32, 0), 3))
    )
    assert one.blocks_for_request(32768) == 385  # (4095 + 2048) / 16 = 384, and one
    assert two.blocks_for_request(32768) == 513  # (4095 + 2 * 2048) / 16 = 512
    assert four.blocks_for_request(32768) == 769  # one batch a stage and one more


def test_the_start_check_sets_the_null_block_aside_from_0_29() -> None:
    old, new = (
        plan("meta-llama/Meta-Llama-3-8B", vllm_version=version) for version in ((0, 28, 0), (0, 29, 0))
    )
    # 8192 tokens are 512 blocks of 16 * 131,072 bytes: exactly 1 GiB.
    assert old.request_bytes(8192) == new.request_bytes(8192) == GIB
    assert (old.check_bytes(GIB), new.check_bytes(GIB)) == (GIB, GIB - 2_097_152)
    assert (old.estimated_max_model_len(GIB), new.estimated_max_model_len(GIB)) == (8192, 8176)


def test_the_start_check_counts_padding_layers_from_0_14() -> None:
    old, new = (
        plan("google/gemma-3-1b-it", vllm_version=version, max_num_batched_tokens=2048)
        for version in ((0, 13, 0), (0, 14, 0))
    )
    page = 2 * 1 * 256 * 2 * 16
    full, sliding = 32768 // 16, (511 + 2048 + 15) // 16 + 1
    assert old.request_bytes(32768) == page * (4 * full + 22 * sliding)
    # 22 sliding layers in groups of 4 are 6 groups.
    assert new.request_bytes(32768) == 4 * page * (full + 6 * sliding)


@pytest.mark.parametrize(
    ("version", "gpu", "block_size", "bytes_per_token"),
    [
        ((0, 7, 2), A100, 16, 27 * 1280),  # rows of 1,152 bytes padded to a multiple of 256
        ((0, 9, 2), A100, 16, 27 * 1152),
        ((0, 9, 2), H100, 64, 27 * 1152),  # FlashMLA
        ((0, 10, 2), BLACKWELL, 128, 27 * 1152),  # CUTLASS MLA
        ((0, 17, 1), H100, 64, 27 * 1152),
    ],
)
def test_latent_caches_of_older_releases(
    version: tuple[int, int, int], gpu: Any, block_size: int, bytes_per_token: int
) -> None:
    found = plan("deepseek-ai/DeepSeek-V2-Lite", gpu, vllm_version=version)
    assert (found.block_size, found.bytes_per_token) == (block_size, bytes_per_token)


def test_an_asked_block_size_does_not_stand_against_flashmla_up_to_0_17() -> None:
    found = plan("deepseek-ai/DeepSeek-V2-Lite", vllm_version=(0, 12, 0), block_size=32)
    assert found.block_size == 64
    assert any("64" in warning and "32" in warning for warning in found.warnings)


def test_indexers_in_every_layer_up_to_0_23() -> None:
    # GLM-5.2: 78 layers of 576 bfloat16 and an indexer row of 128 + 4 bytes; every fourth layer chooses anew,
    # the first three and 6, 10 ... 74.
    old, new = (plan("zai-org/GLM-5.2", vllm_version=version) for version in ((0, 23, 0), (0, 24, 0)))
    assert old.bytes_per_token == 78 * (1152 + 132)
    assert new.bytes_per_token == 78 * 1152 + 21 * 132


# Qwen3-Next: a state of 8192 * 3 * 2 + 32 * 128 * 128 * 2 bytes, 2,048 bytes of attention a token:
# 536 tokens hold it, 544 in multiples of 16. 12 attention layers make one group, 36 others three.
QWEN3_NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 19, 1), (0, 25, 1), (0, 32, 0)])
def test_delta_net_block_size(version: tuple[int, int, int]) -> None:
    found = plan(QWEN3_NEXT, vllm_version=version)
    assert (found.block_size, kinds(found)) == (544, {"full": 1, "mamba": 3})


@pytest.mark.parametrize(
    ("version", "asked", "blocks"),
    [
        ((0, 19, 1), False, 482 + 3),  # 262144 / 544 = 482, and one state in each group
        ((0, 19, 1), True, 482 + 6),  # two states where prefixes are kept
        ((0, 26, 0), False, 482 + 6),  # the default from 0.26
    ],
)
def test_delta_net_states_of_one_request(version: tuple[int, int, int], asked: bool, blocks: int) -> None:
    defaulted = () if asked else ("enable_prefix_caching",)
    found = plan(QWEN3_NEXT, vllm_version=version, defaulted=defaulted)
    assert found.blocks_for_request(262144) == blocks


def test_delta_net_printed_tokens() -> None:
    old, new = (plan(QWEN3_NEXT, vllm_version=version) for version in ((0, 19, 1), (0, 32, 0)))
    assert old.kv_cache_tokens(3212, 262144) == 3212 // 4 * 544 == 436_832
    assert new.kv_cache_tokens(3212, 262144) == int(3212 / 488 * 262144) == 1_725_423


def test_delta_net_prefix_caching_before_0_15_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="recurrent states before vLLM"):
        plan(QWEN3_NEXT, vllm_version=(0, 13, 0), defaulted=())


def test_delta_net_a_block_must_fit_a_batch_from_0_17_to_0_26() -> None:
    small: dict[str, Any] = {"max_num_batched_tokens": 512, "defaulted": ()}
    with pytest.raises(InputError, match=r"block_size \(544\) must be <= max_num_batched_tokens \(512\)"):
        plan(QWEN3_NEXT, vllm_version=(0, 20, 0), **small)
    assert plan(QWEN3_NEXT, vllm_version=(0, 27, 0), **small).block_size == 544


# Nemotron-H-8B: 10,240 * 3 * 2 bytes of convolution and 128 * 64 * 128 numbers; 4,096 bytes a token.
NEMOTRON_H = "nvidia/Nemotron-H-8B-Base-8K"


@pytest.mark.parametrize(
    ("version", "block_size"),
    [
        ((0, 19, 1), 528),  # (61,440 + 2,097,152) / 4,096 = 527: a state of two bytes a number
        ((0, 20, 0), 1040),  # (61,440 + 4,194,304) / 4,096 = 1,039: of four
        ((0, 26, 0), 1152),  # 1,039 in chunks of 128
        ((0, 28, 0), 1040),
    ],
)
def test_mamba_block_size(version: tuple[int, int, int], block_size: int) -> None:
    assert plan(NEMOTRON_H, vllm_version=version).block_size == block_size


@pytest.mark.parametrize(
    ("version", "blocks"),
    [
        ((0, 25, 1), 8 + 6),  # 8192 / 1040 = 8; 24 states in groups of 4
        ((0, 26, 0), 8 + 6 * 8),  # every block's state is kept
        ((0, 28, 0), 8 + 6 * 2),
        ((0, 29, 0), 8 + 6 * 3),  # one more for a state from inside a prefill
    ],
)
def test_mamba_blocks_of_one_request(version: tuple[int, int, int], blocks: int) -> None:
    assert plan(NEMOTRON_H, vllm_version=version).blocks_for_request(8192) == blocks


def test_mamba_states_that_are_all_kept_grow_with_the_request() -> None:
    # 4 attention layers, and 24 states padded to an attention page: 4,096 bytes a token each.
    assert plan(NEMOTRON_H, vllm_version=(0, 26, 0)).bytes_per_token == (4 + 24) * 4096
    assert plan(NEMOTRON_H, vllm_version=(0, 28, 0)).bytes_per_token == 4 * 4096


# `auto`, where the checkpoint names a dtype for its cache.
COMPRESSED = ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, "fp8")
MODELOPT = ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3")
NVFP4 = ({"quant_method": "modelopt_fp4", "kv_cache_quant_algo": "NVFP4"}, "nvfp4")


def resolved_dtype(quantization: dict[str, Any], version: tuple[int, int, int], asked: str = "auto") -> str:
    shape = model_shape(config_of("meta-llama/Meta-Llama-3-8B") | {"quantization_config": quantization})
    return plan_kv_cache(
        shape, settings(vllm_version=version, kv_cache_dtype=asked), BLACKWELL
    ).kv_cache_dtype


@pytest.mark.parametrize(
    ("checkpoint", "last_without"),
    [(MODELOPT, (0, 13, 0)), (COMPRESSED, (0, 14, 1)), (NVFP4, (0, 19, 1))],
)
def test_checkpoint_from_which_release(
    checkpoint: tuple[dict[str, Any], str], last_without: tuple[int, int, int]
) -> None:
    quantization, dtype = checkpoint
    assert resolved_dtype(quantization, last_without) == "auto"
    assert resolved_dtype(quantization, (0, last_without[1] + 1, 0)) == dtype


def test_checkpoint_compressed_tensors_overrode_the_flag_up_to_0_21() -> None:
    quantization, _ = COMPRESSED
    assert resolved_dtype(quantization, (0, 21, 0), asked="bfloat16") == "fp8"
    assert resolved_dtype(quantization, (0, 22, 0), asked="bfloat16") == "bfloat16"


def test_checkpoint_latents_ignore_compressed_tensors() -> None:
    shape = model_shape(config_of("deepseek-ai/DeepSeek-V2-Lite") | {"quantization_config": COMPRESSED[0]})
    assert plan_kv_cache(shape, settings(), H100).kv_cache_dtype == "auto"


def test_checkpoint_e5m2_beside_stored_scales() -> None:
    with pytest.raises(InputError, match="fp8_e5m2 kv-cache is not supported with fp8 checkpoints"):
        resolved_dtype(MODELOPT[0], (0, 32, 0), asked="fp8_e5m2")
    without_scales = {"quant_method": "compressed-tensors"}
    assert resolved_dtype(without_scales, (0, 24, 0), asked="fp8_e5m2") == "fp8_e5m2"
    with pytest.raises(InputError, match="fp8_e5m2"):
        resolved_dtype(without_scales, (0, 22, 1), asked="fp8_e5m2")


@pytest.mark.parametrize(
    ("model", "version", "message"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", (0, 10, 1), "does not serve Qwen3NextForCausalLM yet"),
        ("google/gemma-4-26B-A4B", (0, 18, 0), "does not serve Gemma4ForConditionalGeneration yet"),
        ("microsoft/Phi-3-small-8k-instruct", (0, 10, 0), "0.9.2 was the last release with it"),
        ("mosaicml/mpt-7b", (0, 29, 0), "0.28.0 was the last release with it"),
        ("deepseek-ai/DeepSeek-V4-Flash", (0, 30, 0), "laid out otherwise before vLLM 0.31"),
        ("deepseek-ai/DeepSeek-V2-Lite", (0, 6, 6), "keeps whole heads"),
        ("ai21labs/AI21-Jamba-1.5-Mini", (0, 9, 2), "first engine before 0.10.2"),
    ],
)
def test_what_a_release_does_not_serve(model: str, version: tuple[int, int, int], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message) as refused:
        plan(model, vllm_version=version)
    assert "--vllm-version" in (refused.value.hint or "") or "newer" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("dtype", "last_without", "first"),
    [
        ("bfloat16", (0, 10, 2), "0.11.0"),
        ("float16", (0, 17, 1), "0.18.0"),
        ("int8_per_token_head", (0, 19, 1), "0.20.0"),
        ("nvfp4", (0, 19, 1), "0.20.0"),
        ("int4_per_token_head", (0, 24, 0), "0.25.0"),
    ],
)
def test_dtypes_have_a_first_release(dtype: str, last_without: tuple[int, int, int], first: str) -> None:
    with pytest.raises(InputError, match=f"kv_cache_dtype '{dtype}' is first in vLLM {first}"):
        plan("meta-llama/Meta-Llama-3-8B", BLACKWELL, vllm_version=last_without, kv_cache_dtype=dtype)
    version = tuple(map(int, first.split(".")))
    plan("meta-llama/Meta-Llama-3-8B", BLACKWELL, vllm_version=version, kv_cache_dtype=dtype)


def test_block_sizes_are_a_fixed_choice_up_to_0_17() -> None:
    model = "meta-llama/Meta-Llama-3-8B"
    with pytest.raises(InputError, match=r"invalid choice: 48 \(choose from 1, 8, 16, 32, 64, 128, 256\)"):
        plan(model, vllm_version=(0, 17, 1), block_size=48)
    with pytest.raises(InputError, match=r"invalid choice: 256 \(choose from 1, 8, 16, 32, 64, 128\)"):
        plan(model, vllm_version=(0, 10, 2), block_size=256)
    assert plan(model, vllm_version=(0, 18, 0), block_size=48).block_size == 48
