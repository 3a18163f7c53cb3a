"""The ledger of one GPU and the verdict, on numbers derived by hand."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

import pytest

from kvplan.catalog.engines import rules_for
from kvplan.catalog.gpus import find_gpu
from kvplan.catalog.models import find_model
from kvplan.config.serving import ServingConfig
from kvplan.errors import FailureClass
from kvplan.memory.budget import remaining, requested_bytes
from kvplan.memory.interval import Interval
from kvplan.memory.verdict import probability_at_least, said
from kvplan.planning import PlanRequest, plan_for
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.memory.estimate import Estimate


def ask(model: str, gpu: str, version: str = "0.32.0", **flags: object) -> Estimate:
    serving = ServingConfig().with_flags(**flags)
    return plan_for(PlanRequest(model=model, gpu=gpu, vllm_version=version, serving=serving)).estimate()


def test_the_requested_share_rounds_up_from_0_14_and_down_before() -> None:
    # 25,262,096,384 x 0.85 = 21,472,781,926.4
    assert requested_bytes(25_262_096_384, 0.85, "ceil") == 21_472_781_927
    assert requested_bytes(25_262_096_384, 0.85, "int") == 21_472_781_926


def test_what_remains_has_the_errors_of_both_in_quadrature() -> None:
    # mid 100 - 40; below: sqrt(3^2 + 4^2) = 5, above: sqrt(0 + 12^2) = 12
    left = remaining(Interval(97, 100, 100), Interval(28, 40, 44))
    assert left == Interval(55, 60, 72)


@pytest.mark.parametrize(
    ("probability", "word"), [(1.0, "yes"), (0.9, "yes"), (0.89, "tight"), (0.11, "tight"), (0.1, "no")]
)
def test_the_word_of_a_probability(probability: float, word: str) -> None:
    assert said(probability) == word


def test_the_ends_of_an_80_percent_interval_are_its_10th_and_90th_percentile() -> None:
    kv = Interval(4 * GIB, 5 * GIB, 7 * GIB)
    assert probability_at_least(kv, 4 * GIB) == pytest.approx(0.9)
    assert probability_at_least(kv, 5 * GIB) == pytest.approx(0.5)
    assert probability_at_least(kv, 7 * GIB) == pytest.approx(0.1)


def test_the_interval_is_read_as_the_librarys_normal() -> None:
    sigma = GIB / statistics.NormalDist().inv_cdf(0.9)
    normal = statistics.NormalDist(5 * GIB, sigma)
    kv = Interval(4 * GIB, 5 * GIB, 6 * GIB)
    for threshold in range(3 * GIB, 8 * GIB, GIB // 3):
        assert probability_at_least(kv, threshold) == pytest.approx(1 - normal.cdf(threshold), abs=1e-12)


def test_an_exact_size_starts_or_does_not() -> None:
    assert probability_at_least(Interval.exactly(10), 10) == 1.0
    assert probability_at_least(Interval.exactly(10), 11) == 0.0


@pytest.mark.parametrize("gpu", ["4090", "h100-sxm", "t4", "b200", "gb10"])
@pytest.mark.parametrize("model", ["qwen2-7b", "gpt-oss-20b", "deepseek-v3", "gemma-3-27b-it"])
def test_the_lines_sum_to_the_card(model: str, gpu: str) -> None:
    budget = ask(model, gpu).budget
    assert sum(line.bytes.mid for line in budget.lines) == find_gpu(gpu).total_bytes


def test_qwen2_7b_weighs_its_parameters_in_two_bytes() -> None:
    # 7,615,616,512 x 2 B = 14.19 GiB; "7B is 14 GB" forgets 0.6 billion parameters
    answer = ask("qwen2-7b", "4090")
    assert answer.weights.parameters == 7_615_616_512
    assert answer.budget.line("weights").bytes == Interval.exactly(15_231_233_024)
    assert answer.plan.bytes_per_token == 57_344  # 2 x 28 layers x 4 heads x 128 x 2 B


def test_the_instruct_model_starts_on_a_4090_and_the_base_model_does_not() -> None:
    assert ask("qwen2-7b", "4090").verdict.starts == "yes"
    base = ask("Qwen/Qwen2-7B", "4090")
    assert base.verdict.needed_bytes == 131_072 * 57_344  # 7.0 GiB for one request
    assert base.verdict.starts == "no"
    assert base.verdict.failure is FailureClass.KV_TOO_SMALL


def test_a_wrapped_text_model_keeps_what_its_text_part_keeps() -> None:
    # Mistral-Small-3.1: 2 x 40 layers x 8 heads x 128 x 2 B; a public launch of its w8a8 checkpoint printed
    # 48.73 GiB and 319,344 tokens (vLLM 0.19): 163,847 B a token with the GiB's rounding
    plan = ask("mistral-small-3.1", "h100-sxm", max_model_len=8192).plan
    assert plan.bytes_per_token == 163_840


def test_a_model_that_outweighs_the_card_dies_while_loading() -> None:
    verdict = ask("llama-3.1-70b", "4090").verdict
    assert (verdict.starts, verdict.failure) == ("no", FailureClass.OOM_WEIGHTS)


def test_weights_that_leave_no_room_have_no_memory_for_the_cache() -> None:
    answer = ask("qwen2-7b", "4090", gpu_memory_utilization=0.6)
    assert answer.verdict.failure is FailureClass.NO_KV_MEMORY
    assert answer.message is not None
    assert answer.message.startswith("No available memory for the cache blocks.")


def test_a_share_above_what_is_free_fails_before_the_weights() -> None:
    verdict = ask("qwen2-7b", "4090", gpu_memory_utilization=1.0).verdict
    assert (verdict.starts, verdict.failure) == ("no", FailureClass.FREE_MEMORY_LOW)


def test_memory_that_others_use_counts_against_the_share() -> None:
    planned = plan_for(PlanRequest(model="qwen2-7b", gpu="4090", vllm_version="0.32.0"))
    planner = dataclasses.replace(planned.planner, used_bytes=6 * GIB)
    assert planner.estimate(ServingConfig()).verdict.failure is FailureClass.FREE_MEMORY_LOW


def test_an_explicit_kv_size_leaves_nothing_to_predict() -> None:
    answer = ask("qwen2-7b", "4090", kv_cache_memory_bytes=4 * GIB, max_model_len=8192)
    # blocks of 16 x 57,344 = 917,504 B: 4 GiB holds 4,681; concurrency 4,681 / 512 = 9.142578125
    assert answer.capacity.num_blocks == Interval.exactly(4681)
    assert answer.capacity.tokens == Interval.exactly(74_896)
    assert answer.capacity.max_concurrency == (9.142578125, 9.142578125, 9.142578125)
    # one block is vLLM's null block: 4,680 // 512
    assert answer.capacity.worst_case == Interval.exactly(9)


def test_the_null_block_is_part_of_the_start_check_from_0_29() -> None:
    exactly_one_request = 512 * 917_504
    flags = {"kv_cache_memory_bytes": exactly_one_request, "max_model_len": 8192}
    assert ask("qwen2-7b", "4090", "0.28.0", **flags).verdict.starts == "yes"
    assert ask("qwen2-7b", "4090", "0.29.0", **flags).verdict.starts == "no"


def test_auto_takes_the_longest_length_that_fits() -> None:
    answer = ask("Qwen/Qwen2-7B", "4090", max_model_len=-1)
    assert answer.verdict.starts == "yes"
    assert answer.max_model_len == answer.estimated_max_model_len
    assert answer.max_model_len < 131_072


def test_a_pipeline_is_as_tight_as_its_tightest_stage() -> None:
    one = ask("llama-3.1-70b", "h100-sxm", tensor_parallel_size=4)
    two = ask("llama-3.1-70b", "h100-sxm", tensor_parallel_size=2, pipeline_parallel_size=2)
    assert two.num_gpus == one.num_gpus == 4
    assert two.budget.line("weights").bytes == two.weights.per_stage[two.tightest_stage]


def test_every_catalogued_card_and_version_answers() -> None:
    source = find_model("llama-3.1-8b")
    assert source.config["num_hidden_layers"] == 32
    for version in ("0.6.6", "0.8.5", "0.11.0", "0.19.1", "0.26.0", "0.32.0"):
        assert ask("llama-3.1-8b", "a100-80gb-sxm", version).rules == rules_for(
            tuple(map(int, version.split(".")))  # type: ignore[arg-type]
        )
