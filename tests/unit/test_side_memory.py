"""Memory that planners forget: adapters, drafts, offloading, variables, and what others use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvplan.architecture.tensors import weight_tensors
from kvplan.config.serving import ServingConfig
from kvplan.config.side_memory import VARIABLES, side_memory
from kvplan.errors import FailureClass, InputError, UnsupportedModelError
from kvplan.memory.lora import lora_bytes
from kvplan.planning import PlanRequest, plan_for
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.memory.estimate import Estimate

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def ask(
    environment: dict[str, str] | None = None, used_gib: float | None = None, **flags: object
) -> Estimate:
    serving = ServingConfig().with_flags(**flags)
    request = PlanRequest(
        model="qwen2-7b",
        gpu="4090",
        vllm_version="0.32.0",
        serving=serving,
        environment=environment or {},
        used_gib=used_gib,
    )
    return plan_for(request).estimate()


def test_adapters_take_their_rank_of_every_linear_layer() -> None:
    # in + out: q and o 8,192 each, k and v 5,120 each, gate, up and down 18,432 each: 81,920 a layer
    # x 32 layers x rank 16 x 2 B = 83,886,080 B for one adapter; the embedding and head add at most
    # 2 x (128,256 + 4,096) x 16 x 2 B
    adapters = lora_bytes(
        weight_tensors(LLAMA), max_loras=1, max_lora_rank=16, tensor_parallel_size=1, dtype_bytes=2
    )
    assert adapters.low == 83_886_080
    assert adapters.high == 83_886_080 + 2 * 132_352 * 32


def test_tensor_parallelism_divides_one_side_of_each_layer() -> None:
    # column layers keep all of in and half of out, row layers half of in and all of out
    # q 4,096 + 2,048, k and v 4,096 + 512, o 2,048 + 4,096, gate and up 4,096 + 7,168, down 7,168 + 4,096
    two = lora_bytes(
        weight_tensors(LLAMA), max_loras=1, max_lora_rank=16, tensor_parallel_size=2, dtype_bytes=2
    )
    assert two.low == 32 * 32 * (2 * 6_144 + 2 * 4_608 + 3 * 11_264)


def test_four_adapters_of_rank_64_are_charged_to_the_budget() -> None:
    without, with_lora = ask(), ask(enable_lora=True, max_loras=4, max_lora_rank=64)
    assert with_lora.budget.available_kv_bytes.mid < without.budget.available_kv_bytes.mid
    assert "LoRA buffers, 4 x rank 64" in with_lora.explain("other")


def test_adapters_of_a_mixture_are_refused_by_name() -> None:
    serving = ServingConfig().with_flags(enable_lora=True, tensor_parallel_size=4)
    planned = plan_for(PlanRequest(model="mixtral-8x7b", gpu="h100-sxm", serving=serving))
    with pytest.raises(UnsupportedModelError, match="--enable-lora"):
        planned.estimate()


def test_weights_on_the_host_leave_the_card() -> None:
    # whole GiB of one GPU; the rest of the budget is as before
    moved = ask().budget.line("weights").bytes.mid - ask(cpu_offload_gb=4).budget.line("weights").bytes.mid
    assert moved == 4 * GIB


def test_an_ngram_draft_costs_no_weights_and_other_drafts_are_refused() -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 4}
    assert ask(speculative_config=ngram).settings.num_speculative_tokens == 4
    with pytest.raises(InputError, match="draft by eagle3 are not modelled"):
        ask(speculative_config={"method": "eagle3", "model": "x", "num_speculative_tokens": 3})
    with pytest.raises(InputError, match="--speculative-config is not JSON"):
        ask(speculative_config="{oops")


@pytest.mark.parametrize("flag", ["enable_eplb", "performance_mode", "enable_sleep_mode"])
def test_flags_that_are_not_modelled_are_refused_by_name(flag: str) -> None:
    with pytest.raises(InputError, match=f"--{flag.replace('_', '-')}"):
        side_memory({flag: "throughput"}, {})


def test_graphs_that_are_not_estimated_lie_outside_the_budget() -> None:
    off = ask({"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"})
    assert off.budget.line("cuda_graphs").bytes.mid == 0
    assert off.budget.available_kv_bytes.mid > ask().budget.available_kv_bytes.mid


def test_a_longer_length_is_allowed_where_vllm_allows_it() -> None:
    with pytest.raises(InputError, match="greater than the derived max_model_len"):
        ask(max_model_len=40_000)
    assert ask({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, max_model_len=40_000).max_model_len == 40_000


def test_variables_that_are_not_modelled_are_refused_by_name() -> None:
    refused = {name for name, why in VARIABLES.items() if why is not None}
    for name in refused:
        with pytest.raises(InputError, match=name):
            side_memory({}, {name: "0"})
    assert side_memory({}, {"VLLM_USE_V1": "1", "VLLM_LOGGING_LEVEL": "DEBUG"}) == side_memory({}, {})


def test_memory_that_others_use_can_be_said() -> None:
    assert ask(used_gib=1.0).verdict.starts == "yes"
    crowded = ask(used_gib=8.0)
    assert (crowded.verdict.starts, crowded.verdict.failure) == ("no", FailureClass.FREE_MEMORY_LOW)
