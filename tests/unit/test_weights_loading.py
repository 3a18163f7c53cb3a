"""What loading adds, leaves out and divides: allocator, pipeline stages, experts, offload, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.architecture.stored_weights import StoredWeights
from kvplan.errors import UnsupportedModelError
from kvplan.memory.cuda_allocator import allocated_bytes
from kvplan.memory.weights import WeightsPerGpu, stage_layers, weights_per_gpu
from kvplan.units import GIB, MIB

CONFIGS = Path(__file__).parents[1] / "data/configs"


def config(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return loaded


def weigh(given: dict[str, Any], stored: StoredWeights | None = None, **more: Any) -> WeightsPerGpu:
    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "quantization": None,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "vllm_version": (0, 32, 0),
        **more,
    }
    return weights_per_gpu(given, stored, **settings)


@pytest.mark.parametrize(
    ("size", "limit", "counted"),
    [
        (1, None, 512),
        (MIB, None, MIB),
        # Between 1 and 10 MiB: out of a segment of 20 MiB, the rest of which is split off.
        (5 * MIB, None, 5 * MIB),
        # 259 MiB in a segment of 260: the last MiB is too small to be split off.
        (259 * MIB, None, 260 * MIB),
        # 24.5 MiB in 26: 1.5 MiB is split off, unless tensors from 20 MiB on are never split.
        (24 * MIB + MIB // 2, None, 24 * MIB + MIB // 2),
        (24 * MIB + MIB // 2, 20 * MIB, 26 * MIB),
    ],
)
def test_a_tensor_takes_whole_blocks_of_the_allocator(size: int, limit: int | None, counted: int) -> None:
    assert allocated_bytes(size, limit) == counted


def test_qwen2_7b_on_an_a100_is_the_14_2488_gib_that_vllm_0_10_printed() -> None:
    # 15,231,233,024 B of weights; a rotary table of 32,768 x 128 x 2 B = 8 MiB; and, in each of 28 layers,
    # qkv 31.5 -> 32 MiB, gate_up 259 -> 260, down 129.5 -> 130; embedding and head 1039.5 -> 1040 each.
    by_hand = 15_231_233_024 + 8 * MIB + 28 * 2 * MIB + MIB
    given = {**config("Qwen__Qwen2-7B"), "max_position_embeddings": 32768}
    found = weigh(given, vllm_version=(0, 10, 1))
    assert found.allocated.mid == pytest.approx(by_hand, abs=100_000)  # blocks of 512 B for norms and biases
    assert round(found.allocated.mid / GIB, 4) == pytest.approx(14.2488, abs=0.0002)


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [
        (32, 2, (16, 16)),
        (61, 4, (15, 15, 16, 15)),
        # Three left over: to all but the last.
        (31, 4, (8, 8, 8, 7)),
        (5, 1, (5,)),
    ],
)
def test_layers_left_over_go_to_the_stages_before_the_last(
    layers: int, stages: int, split: tuple[int, ...]
) -> None:
    assert stage_layers(layers, stages) == split


def test_a_tied_embedding_is_held_at_both_ends_of_a_pipeline() -> None:
    given = config("Qwen__Qwen3-0.6B")
    embedding = 151_936 * 1024 * 2
    first, second = weigh(given, pipeline_parallel_size=2).per_stage
    assert second.mid - first.mid == 2 * 1024  # the final norm
    assert first.mid + second.mid == weigh(given).bytes.mid + embedding


def test_expert_parallelism_divides_experts_and_nothing_else() -> None:
    given = config("Qwen__Qwen3-30B-A3B")
    sliced = weigh(given, tensor_parallel_size=8)
    whole = weigh(given, tensor_parallel_size=8, enable_expert_parallel=True)
    assert whole.bytes == sliced.bytes  # 128 experts over 8 ranks: the same bytes, cut the other way
    replicas = weigh(given, tensor_parallel_size=1, data_parallel_size=8, enable_expert_parallel=True)
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    assert weigh(given).bytes.mid - replicas.bytes.mid == experts * 7 // 8


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    # Qwen2.5-0.5B, 2 KV heads of 64: at 7 ranks each holds one whole head of k and of v.
    given = config("Qwen__Qwen2.5-0.5B")
    at_two = weigh(given, tensor_parallel_size=2).bytes.mid
    at_fourteen = weigh(given, tensor_parallel_size=14).bytes.mid
    one_head = 24 * 2 * (64 * 896 + 64) * 2
    assert at_fourteen > at_two / 7
    assert at_fourteen > one_head


def test_offloaded_layers_leave_the_card() -> None:
    given = config("meta-llama__Meta-Llama-3.1-8B")
    all_here = weigh(given)
    some = weigh(given, cpu_offload_bytes=4 * GIB)
    assert all_here.bytes.mid - some.bytes.mid == 4 * GIB
    # Embedding, head and norm are never offloaded, however much is asked for.
    most = weigh(given, cpu_offload_bytes=100 * GIB)
    assert most.bytes.mid == 2 * (2 * 128_256 * 4096 + 4096)


def test_float32_files_become_the_models_dtype() -> None:
    given = config("google__gemma-2-2b")
    stored = StoredWeights(4 * 2_614_341_888, None, "index", "index of google/gemma-2-2b")
    found = weigh(given, stored)
    assert found.bytes.mid == 2 * 2_614_341_888
    assert found.notes == ("float32 files (9.74 GiB) loaded as bfloat16",)


def test_float32_takes_twice_the_bytes() -> None:
    # Llama-3.1-8B with --dtype float32 on vLLM 0.19: "Model loading took 29.98 GiB".
    found = weigh(config("meta-llama__Meta-Llama-3.1-8B"), dtype="float32", vllm_version=(0, 19, 0))
    assert found.bytes.mid == 4 * 8_030_261_248
    assert round(found.allocated.mid / GIB, 2) == 29.98


def test_files_that_disagree_widen_the_interval_and_say_so() -> None:
    given = config("Qwen__Qwen2-7B")
    stored = StoredWeights(16_000_000_000, None, "index", "somewhere")
    found = weigh(given, stored)
    assert found.bytes.mid == 15_231_233_024
    assert found.bytes.high == 16_000_000_000
    assert not found.exact
    assert "0.72 GiB more than the config's tensors" in found.notes[0]


def test_headers_say_which_layers_a_checkpoint_left_alone() -> None:
    given = config("meta-llama__Meta-Llama-3.1-8B")
    given["quantization_config"] = {"quant_method": "fp8"}
    plain = "model.layers.5.mlp.down_proj.weight"
    stored = StoredWeights(9_081_000_000, None, "safetensors", "folder", {plain: ("BF16", (4096, 14336))})
    without = weigh(given, compute_capability=(9, 0)).bytes.mid
    with_headers = weigh(given, stored, compute_capability=(9, 0)).bytes.mid
    assert with_headers - without == 4096 * 14336 - 8


UNKNOWN = {"model_type": "brand_new", "num_hidden_layers": 2, "tie_word_embeddings": True}
HEADERS = {
    "model.embed_tokens.weight": ("F32", (1000, 64)),
    "model.layers.0.a.weight": ("BF16", (128, 64)),
    "model.layers.1.a.weight": ("BF16", (128, 64)),
    "model.layers.1.a.weight_scale": ("F32", (128, 1)),
    "model.layers.2.mtp.weight": ("BF16", (128, 64)),
    "lm_head.weight": ("F32", (1000, 64)),
}


def test_an_unknown_family_needs_headers() -> None:
    with pytest.raises(UnsupportedModelError, match="brand_new"):
        weigh(UNKNOWN)
    with pytest.raises(UnsupportedModelError, match="brand_new"):
        weigh(UNKNOWN, StoredWeights(1000, None, "index", "index"))


def test_an_unknown_family_is_exact_on_one_gpu_from_its_headers() -> None:
    stored = StoredWeights(1, None, "safetensors", "folder", HEADERS)
    found = weigh(UNKNOWN, stored)
    # Embedding and two matrices in 2 B, scales in their 4 B; the third layer and the tied head stay out.
    assert found.bytes.mid == 2 * (64_000 + 2 * 8192) + 4 * 128
    assert found.exact
    assert found.source == "safetensors"
    assert len(found.notes) == 2


def test_an_unknown_family_on_several_gpus_is_an_interval() -> None:
    stored = StoredWeights(1, None, "safetensors", "folder", HEADERS)
    whole = weigh(UNKNOWN, stored).bytes.mid
    found = weigh(UNKNOWN, stored, tensor_parallel_size=4)
    assert found.bytes.low == -(-whole // 4)
    assert found.bytes.high == whole
    assert not found.exact


def test_the_mla_workspace_counts_in_the_versions_that_allocate_it() -> None:
    given = {**config("deepseek-ai__DeepSeek-V2-Lite"), "q_lora_rank": None}
    with_it = weigh(given, vllm_version=(0, 19, 0))
    without = weigh(given, vllm_version=(0, 25, 0))
    assert with_it.bytes == without.bytes
    assert with_it.allocated.mid - without.allocated.mid == pytest.approx(128 * MIB, abs=40 * MIB)
    # DeepSeek-V2-Lite-Chat on an H100, vLLM 0.19: "Model loading took 29.43 GiB".
    assert round(with_it.allocated.mid / GIB, 2) == 29.43
