"""Quantised layers: formats by hand, lists of exceptions by name, refusals by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.architecture.module_names import NameSet, canonical
from kvplan.architecture.quantization import (
    FP8_CHANNEL,
    FP8_TENSOR,
    MXFP4,
    NF4,
    NF4_DOUBLE,
    NVFP4,
    fp8_block,
    grouped,
    quantization_plan,
)
from kvplan.architecture.tensors import weight_tensors
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.memory.weights import WeightsPerGpu, weights_per_gpu
from kvplan.memory.weights_modules import Rank, merged_tensors, rank_modules

CONFIGS = Path(__file__).parents[1] / "data/configs"
LLAMA = json.loads((CONFIGS / "meta-llama__Meta-Llama-3.1-8B.json").read_text())
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def weigh(config: dict[str, Any], **more: Any) -> WeightsPerGpu:
    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "quantization": None,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "vllm_version": (0, 32, 0),
        **more,
    }
    return weights_per_gpu(config, None, **settings)


@pytest.mark.parametrize(
    ("form", "sizes"),
    [
        # 4096 x 4096 values of 4 bits; 32 groups of 128 inputs: 4096 x 32 scales of 2 B and zeros of 4 bits.
        (grouped(4, 128, zeros=True, name="AWQ"), (8_388_608, 262_144, 65_536)),
        (grouped(4, 128, zeros=False, name="packed"), (8_388_608, 262_144)),
        (FP8_TENSOR, (16_777_216, 8)),
        # One float32 scale an output.
        (FP8_CHANNEL, (16_777_216, 16_384)),
        # 32 x 32 blocks, a float32 scale each.
        (fp8_block(128, 128), (16_777_216, 4_096)),
        # One byte of scale for 16, for 32 inputs.
        (NVFP4, (8_388_608, 1_048_576)),
        (MXFP4, (8_388_608, 524_288)),
        # One float32 absmax for 64 values.
        (NF4, (8_388_608, 1_048_576)),
        # One byte of absmax for 64 values, and a float32 for 256 of those.
        (NF4_DOUBLE, (8_388_608, 262_144, 4_096)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_format_keeps_values_scales_and_zero_points(form: Any, sizes: tuple[int, ...]) -> None:
    assert form.sizes(4096, 4096, 1, 2) == sizes


def test_awq_llama_8b_is_the_sum_of_its_parts() -> None:
    # 32 layers of 218,103,808 linear parameters: x (4 + 16 / 128 + 4 / 128) bits; the rest in 2 B.
    linear = 32 * 218_103_808
    packed = linear // 2 + linear // 128 * 2 + linear // 128 // 2
    rest = (8_030_261_248 - linear) * 2
    found = weigh({**LLAMA, "quantization_config": AWQ}, compute_capability=(8, 9))
    assert found.bytes.mid == packed + rest
    assert found.bytes.exact


def test_machete_keeps_zero_points_in_the_models_dtype() -> None:
    # Hopper's kernel: 16 instead of 4 bits a zero point, so 1.5 B more for each group of 128.
    linear = 32 * 218_103_808
    marlin = weigh({**LLAMA, "quantization_config": AWQ}, compute_capability=(8, 9))
    machete = weigh({**LLAMA, "quantization_config": AWQ}, compute_capability=(9, 0))
    assert machete.bytes.mid - marlin.bytes.mid == linear // 128 * 3 // 2


def test_without_a_card_the_interval_spans_the_kernels() -> None:
    found = weigh({**LLAMA, "quantization_config": AWQ})
    assert found.bytes.low < found.bytes.high
    assert not found.exact


def test_fp8_on_the_fly_halves_the_linear_layers() -> None:
    linear = 32 * 218_103_808
    found = weigh(LLAMA, quantization="fp8", compute_capability=(9, 0))
    # Per-tensor scales: 8 B for each of the 7 matrices of a layer.
    assert found.bytes.mid == 2 * 8_030_261_248 - linear + 32 * 7 * 8
    assert "fp8 applied while loading: the files are unquantised" in found.notes


@pytest.mark.parametrize(
    ("entries", "name", "layers"),
    [
        (["lm_head"], "model.layers.{layer}.self_attn.q_proj", []),
        (["model.layers.1.self_attn.q_proj"], "model.layers.{layer}.self_attn.q_proj", [1]),
        (["model.language_model.layers.2.mlp"], "model.layers.{layer}.mlp.up_proj", [2]),
        (["re:.*self_attn.*"], "model.layers.{layer}.self_attn.q_proj", [0, 1, 2, 3]),
        (["re:.*layers\\.[0-1]\\..*"], "model.layers.{layer}.mlp.up_proj", [0, 1]),
        (["model.layers.*.mlp.gate"], "model.layers.{layer}.mlp.gate", [0, 1, 2, 3]),
        (["model.layers.*.mlp.gate"], "model.layers.{layer}.mlp.gate_proj", []),
        (["mlp.gate"], "model.layers.{layer}.mlp.gate_proj", []),
        (["self_attn"], "model.layers.{layer}.self_attn.o_proj", [0, 1, 2, 3]),
        (
            ["model.layers.3.mlp.experts.17.up_proj"],
            "model.layers.{layer}.mlp.experts.{expert}.up_proj",
            [3],
        ),
    ],
)
def test_names_of_modules_match_as_checkpoints_write_them(
    entries: list[str], name: str, layers: list[int]
) -> None:
    assert NameSet(entries).matching_layers(name, range(4)) == layers


def test_a_tower_is_named_through_any_wrapper() -> None:
    assert canonical("model.language_model.layers.0.mlp") == "layers.0.mlp"
    assert NameSet(["visual"]).matches("model.visual.blocks.{block}.attn.qkv")
    assert NameSet(["re:.*visual.*"]).matches("visual.blocks.{block}.attn.qkv")
    assert not NameSet(["visual"]).matches("model.layers.0.mlp")


def test_layers_in_the_list_of_exceptions_stay_as_they_are() -> None:
    kept = {**AWQ, "modules_to_not_convert": ["model.layers.0"]}
    all_packed = weigh({**LLAMA, "quantization_config": AWQ}, compute_capability=(8, 9)).bytes.mid
    one_plain = weigh({**LLAMA, "quantization_config": kept}, compute_capability=(8, 9)).bytes.mid
    packed_bits = 4 + 16 / 128 + 4 / 128
    assert one_plain - all_packed == 218_103_808 * (16 - packed_bits) / 8


def test_mixed_precision_takes_each_layers_own_format() -> None:
    config = json.loads((CONFIGS / "nvidia__Qwen3.6-27B-NVFP4.json").read_text())
    plan = quantization_plan(config, None, (0, 32, 0))
    assert plan is not None
    attention = plan.split("model.layers.{layer}.self_attn.q_proj", (3, 7), expert=False)
    mlp = plan.split("model.layers.{layer}.mlp.up_proj", (0,), expert=False)
    assert attention == [((3, 7), FP8_TENSOR)]
    assert mlp == [((0,), NVFP4)]
    assert plan.head is NVFP4


@pytest.mark.parametrize(
    ("config", "flag", "error", "says"),
    [
        ({"quantization_config": {"quant_method": "spqr"}}, None, UnsupportedModelError, "spqr"),
        ({"quantization_config": {"quant_method": "quark"}}, None, UnsupportedModelError, "quark"),
        ({}, "hqq", UnsupportedModelError, "hqq"),
        ({}, "awq", InputError, "needs a checkpoint"),
        ({"quantization_config": AWQ}, "gptq", InputError, "does not fit the checkpoint, which is awq"),
        ({}, "bitsandbytes", UnsupportedModelError, "0.28.0 dropped bitsandbytes"),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W3"}},
            None,
            UnsupportedModelError,
            "quant_algo W3",
        ),
    ],
)
def test_what_has_no_rule_is_refused_by_name(
    config: dict[str, Any], flag: str | None, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        weigh({**LLAMA, **config}, quantization=flag)


@pytest.mark.parametrize("flag", ["awq_marlin", "auto_awq", "awq"])
def test_a_flag_that_names_the_checkpoints_own_method_changes_nothing(flag: str) -> None:
    quantised = {**LLAMA, "quantization_config": AWQ}
    assert weigh(quantised, quantization=flag).bytes == weigh(quantised).bytes


def test_bitsandbytes_is_answered_for_the_versions_that_have_it() -> None:
    found = weigh(LLAMA, quantization="bitsandbytes", vllm_version=(0, 18, 0))
    linear = 32 * 218_103_808
    assert found.bytes.mid == linear // 2 + linear // 64 * 4 + 2 * (8_030_261_248 - linear)


@pytest.mark.parametrize(
    ("version", "stored", "scale_bits"),
    [
        ((0, 9, 1), {"bnb_4bit_use_double_quant": True}, 8 + 32 / 256),
        ((0, 9, 2), {"bnb_4bit_use_double_quant": True}, 32),
        ((0, 9, 1), {}, 32),
    ],
)
def test_doubly_quantised_scales_stay_so_until_vllm_0_9_2(
    version: tuple[int, int, int], stored: dict[str, bool], scale_bits: float
) -> None:
    """vLLM pull request 19742: from 0.9.2 on they become float32 while loading."""
    quant = {"quant_method": "bitsandbytes", "load_in_4bit": True, **stored}
    found = weigh(LLAMA | {"quantization_config": quant}, vllm_version=version)
    linear = 6_979_321_856  # 32 x (4096 x (4096 + 2 x 1024) + 4096 x 4096 + 3 x 4096 x 14,336)
    rest = 8_030_261_248 - linear
    assert found.bytes.mid == round(linear * (4 + scale_bits / 64) / 8) + 2 * rest


def test_doubly_quantised_while_loading_before_0_9_2() -> None:
    old = weigh(LLAMA, quantization="bitsandbytes", vllm_version=(0, 9, 1)).bytes.mid
    new = weigh(LLAMA, quantization="bitsandbytes", vllm_version=(0, 9, 2)).bytes.mid
    assert new - old == 6_979_321_856 // 64 * 4 - 6_979_321_856 // 64 - 6_979_321_856 // 64 // 256 * 4


NEMOTRON = json.loads((CONFIGS / "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json").read_text())


@pytest.mark.parametrize(
    ("tensor_parallel_size", "card", "width"),
    [
        # 1,856 outputs an expert, not gated: CUTLASS and FlashInfer want 128, Marlin 64 (2,688 = 21 x 128).
        (1, (12, 0), 1920),
        (2, (12, 0), 1024),
        (1, (8, 9), 1856),
        (2, (8, 9), 960),
    ],
)
def test_experts_in_nvfp4_are_padded_to_whole_tiles(
    tensor_parallel_size: int, card: tuple[int, int], width: int
) -> None:
    plan = quantization_plan(nvfp4(NEMOTRON), None, (0, 32, 0))
    modules = rank_modules(
        merged_tensors(weight_tensors(NEMOTRON), plan),
        Rank(
            tensor_parallel_size, 1, expert_parallel=False, dtype_bytes=2, capability=card, version=(0, 32, 0)
        ),
    )
    first = next(m for m in modules if m.name.endswith("w13"))
    # 128 experts of width x 2,688 values of 4 bits.
    assert first.sizes[0] == 128 * width * 2688 // 2


def test_gated_experts_fill_a_tile_together() -> None:
    """Gemma-4-26B-A4B: gate and up of 704 are 1,408 = 11 x 128 rows; over 4 ranks 176 becomes 192."""
    config = json.loads((CONFIGS / "google__gemma-4-26B-A4B.json").read_text())
    plan = quantization_plan(nvfp4(config), None, (0, 32, 0))
    merged = merged_tensors(weight_tensors(config), plan)
    for ranks, width in ((1, 704), (4, 192)):
        rank = Rank(ranks, 1, expert_parallel=False, dtype_bytes=2, capability=(10, 0), version=(0, 32, 0))
        first = next(m for m in rank_modules(merged, rank) if m.name.endswith("w13"))
        assert first.sizes[0] == 128 * 2 * width * 2816 // 2


def nvfp4(config: dict[str, Any]) -> dict[str, Any]:
    quant = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return config | {"quantization_config": quant}
