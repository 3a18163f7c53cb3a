"""What-if views, the solver and comparisons, on an exact KV budget: every number is derived beside it.

4 GiB of KV cache, Qwen2-7B: 57,344 B a token, blocks of 16 = 917,504 B: 4,681 blocks, 4,680 of them usable.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Final

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.errors import InputError
from kvplan.memory.interval import Interval
from kvplan.memory.solve import Solved, longest_request, most_requests
from kvplan.memory.what_if import VIEWS, View
from kvplan.planning import Planned, PlanRequest, plan_for
from kvplan.report.estimate import EstimateReport
from kvplan.report.solution import Solution
from kvplan.report.what_if import as_dict, ask_views, render_views
from kvplan.smallest import smallest_hardware
from kvplan.units import GIB
from kvplan.variants import all_cards, compare, meets_target

if TYPE_CHECKING:
    from kvplan.memory.planner import Planner

FOUR_GIB = ServingConfig(kv_cache_memory_bytes=4 * GIB)


def asked(**changes: object) -> PlanRequest:
    values: dict[str, object] = {
        "model": "qwen2-7b",
        "gpu": "4090",
        "vllm_version": "0.32.0",
        "serving": FOUR_GIB,
    }
    return PlanRequest(**(values | changes))  # type: ignore[arg-type]


def planned(**changes: object) -> Planned:
    return plan_for(asked(**changes))


def view(name: str, **changes: object) -> View:
    case = planned(**({"input_len": 1500, "output_len": 512} | changes))
    return VIEWS[name](case.planner, case.serving)


def test_mha_would_keep_seven_times_as_much_and_mqa_a_quarter() -> None:
    rows = {row[0]: row[1:3] for row in view("attention").rows}
    # 2 x 28 layers x heads x 128 x 2 B
    assert rows == {"MHA": (28, 401_408), "as it is": (4, 57_344), "MQA": (1, 14_336)}


def test_a_reservation_of_max_model_len_is_mostly_unused() -> None:
    reserved, paged = view("paging").rows
    # 4,680 x 16 = 74,880 tokens; 74,880 // 32,768 = 2; unused 1 - 2,012 / 32,768
    assert (reserved[1], reserved[3]) == (32_768, 2)
    assert reserved[2] == pytest.approx(93.86, abs=0.01)
    # cdiv(2,012, 16) x 16 = 2,016; 74,880 // 2,016 = 37
    assert (paged[1], paged[3]) == (2_016, 37)
    assert paged[2] == pytest.approx(100 * 4 / 2_016)


def test_a_larger_block_wastes_more_of_its_end() -> None:
    rows = {row[0]: row[1] for row in view("block-size").rows if row[1] is not None}
    # 2,012 = 125 x 16 + 12 = 62 x 32 + 28 = 31 x 64 + 28 = 15 x 128 + 92
    assert {size: rows[size] for size in (16, 32, 64, 128)} == {16: 4, 32: 4, 64: 36, 128: 36}


def test_weights_on_the_host_cost_pcie_time_every_step() -> None:
    rows = view("offload").rows
    # PCIe 4.0 x16: 31.5 GB/s a direction; 2 GiB / 31.5e9 B/s = 68.2 ms
    assert rows[2][3] == pytest.approx(68.17, abs=0.01)


def test_two_pools_split_at_the_median() -> None:
    case = planned(workload="chat")
    names = [row[0] for row in VIEWS["pools"](case.planner, case.serving).rows]
    assert names == ["one pool", "shorter half", "longer half"]


def test_a_view_that_does_not_apply_says_so() -> None:
    with pytest.raises(InputError, match="no sliding-window layers"):
        view("window")
    views, refused = ask_views(planned(), ["all"])
    assert [v.name for v in views] == ["attention", "skip-layers", "offload"]
    assert len(refused) == 4
    with pytest.raises(InputError, match="is not a view"):
        ask_views(planned(), ["colour"])


def test_views_render_in_every_format() -> None:
    case = planned(input_len=1500, output_len=512)
    views, refused = ask_views(case, ["paging"])
    assert json.loads(render_views(views, refused, "json")) == as_dict(views, refused)
    assert "| blocks of 16 | 2,016.0 | 0.2 | 37 |" in render_views(views, refused, "markdown")


def test_the_longest_request_of_which_32_run_at_once() -> None:
    case = planned()
    # 4,680 // 32 = 146 blocks each, 146 x 16 tokens
    found = longest_request(case.planner, case.serving, 32)
    assert found.value == Interval.exactly(2_336)
    assert found.flags == {"max_model_len": 2_336}
    # 512 tokens of a step are no token for each of 5,000 requests
    few = FOUR_GIB.with_flags(max_num_batched_tokens=512)
    assert longest_request(case.planner, few, 5_000) == Solved(Interval.exactly(0))
    assert most_requests(case.planner, case.serving, 2_336).value == Interval.exactly(32)
    assert most_requests(case.planner, case.serving, 2_337).value == Interval.exactly(31)


def test_flags_that_the_answer_needs_are_named() -> None:
    case = planned()
    # 4,680 // 585 = 8 blocks, 128 tokens each; vLLM runs 256 at once by itself on this card
    found = longest_request(case.planner, case.serving, 585)
    assert found.value == Interval.exactly(128)
    assert found.flags == {"max_model_len": 128, "max_num_seqs": 585}
    most = most_requests(case.planner, case.serving, 128)
    assert most.value == Interval.exactly(585)
    assert most.flags == {"max_num_seqs": 585}
    short = case.serving.with_flags(max_model_len=1_024)
    assert most_requests(case.planner, short, 2_336).flags == {"max_model_len": 2_336}
    # 74,880 usable tokens, and the model takes 32,768
    assert most_requests(case.planner, case.serving, 38_000) == Solved(Interval.exactly(0))
    assert longest_request(case.planner, short, 1).value == Interval.exactly(32_768)


SOLVED_FOR: Final[tuple[tuple[str, str, dict[str, object]], ...]] = (
    ("llama-3.1-8b", "h100-sxm", {"tensor_parallel_size": 2, "enforce_eager": True}),
    ("qwen2-7b", "4090", {}),
    ("gemma-3-4b", "l4", {}),
    ("gemma-2-9b", "a100-80gb", {"gpu_memory_utilization": 0.8}),
    ("deepseek-v2-lite", "h200", {}),
    ("openai/gpt-oss-20b", "h100-sxm", {"enforce_eager": True}),
    ("Qwen/Qwen3-30B-A3B", "h100-sxm", {}),
    ("ibm-granite/granite-4.0-h-tiny", "a100-80gb", {}),
)


@pytest.mark.parametrize(("model", "gpu", "flags"), SOLVED_FOR)
@pytest.mark.parametrize(("max_num_seqs", "concurrency"), [(1, 33), (256, 7), (256, 300)])
def test_a_solution_survives_its_own_re_check(
    model: str, gpu: str, flags: dict[str, object], max_num_seqs: int, concurrency: int
) -> None:
    # From a base far shorter than the answer: the answer's own length and number of requests cost memory too.
    serving = ServingConfig(max_model_len=512, max_num_seqs=max_num_seqs).with_flags(**flags)
    case = planned(model=model, gpu=gpu, serving=serving)

    def holds(planner: Planner, flags: dict[str, int], num_tokens: int) -> int:
        asked_back = planner.estimate(serving.with_flags(**flags))
        assert num_tokens <= asked_back.max_model_len
        return min(asked_back.capacity.requests(num_tokens).mid, asked_back.settings.max_num_seqs)

    longest = longest_request(case.planner, serving, concurrency)
    block, most_tokens = 16, case.estimate().shape.max_model_len
    if longest.value.mid:
        assert holds(case.planner, longest.flags, longest.value.mid) >= concurrency
        assert longest.value.low <= longest.value.mid <= longest.value.high
    longer = longest.value.mid + block
    if longer <= most_tokens:
        further = {"max_model_len": longer, "max_num_seqs": max(max_num_seqs, concurrency)}
        assert holds(case.planner, further, longer) < concurrency
    most = most_requests(case.planner, serving, 777)
    assert holds(case.planner, most.flags, 777) >= most.value.mid
    one_more = max(max_num_seqs, most.value.mid + 1)
    assert holds(case.planner, {"max_model_len": 777, "max_num_seqs": one_more}, 777) <= most.value.mid


def test_a_solution_speaks_of_the_target_and_of_cards() -> None:
    request = asked(target_concurrency=32)
    solution = Solution.of(plan_for(request), request)
    assert "longest request with 32 at once: 2,336 tokens, with --max-model-len 2336\n" in solution.render(
        "text"
    )
    assert solution.as_dict()["most_requests"]["mid"] == 2  # 4,680 // 2,048 blocks of a 32,768 token request


def test_the_smallest_hardware_is_the_cheapest_that_does_it() -> None:
    request = asked(serving=ServingConfig(max_model_len=8192))
    found = smallest_hardware(request, concurrency=32, num_tokens=2_012)
    prices = [v.estimate.gpu.usd_per_hour for v in found if v.estimate and v.estimate.gpu.usd_per_hour]
    counts = [v.estimate.num_gpus for v in found if v.estimate and v.estimate.gpu.usd_per_hour]
    costs = [price * count for price, count in zip(prices, counts, strict=True)]
    assert costs == sorted(costs)
    assert all(v.estimate is not None and v.estimate.verdict.starts == "yes" for v in found)


def test_cards_are_asked_with_room_for_the_target_and_the_solution_says_so() -> None:
    one = asked(serving=ServingConfig(max_model_len=1_024, max_num_seqs=1))
    found = smallest_hardware(one, concurrency=33, num_tokens=2_012)
    assert found
    for variant in found:
        assert variant.estimate is not None
        assert variant.estimate.settings.max_num_seqs == 33
        assert variant.estimate.max_model_len == 2_012
        assert variant.estimate.capacity.requests(2_012).mid >= 33
    request = dataclasses.replace(one, target_concurrency=33)
    said = " ".join(Solution.of(plan_for(request), request).render("text").split())
    assert "1,024 tokens at once, with --max-num-seqs 33 where it is below, cheapest" in said


def test_names_are_compared_as_what_they_are() -> None:
    versions = compare(["0.19.1", "0.20.0"], asked(serving=ServingConfig()))
    assert [v.estimate.settings.gpu_memory_utilization for v in versions if v.estimate] == [0.9, 0.92]
    cards = compare(["4090", "h100-sxm"], asked())
    assert [v.estimate.gpu.id for v in cards if v.estimate] == ["rtx-4090", "h100-sxm"]
    models = compare(["qwen2-7b", "llama-3.1-8b"], asked())
    assert [v.estimate.plan.bytes_per_token for v in models if v.estimate] == [57_344, 131_072]


def test_comparing_needs_two_known_names() -> None:
    with pytest.raises(InputError, match="two names"):
        compare(["qwen2-7b"], asked())
    with pytest.raises(InputError, match="neither a model nor a card nor a vLLM version"):
        compare(["qwen2-7b", "no-such-thing"], asked(offline=True))


def test_ranked_cards_lead_with_those_that_start() -> None:
    ranked = all_cards(asked(serving=ServingConfig(max_model_len=8192)))
    words = [v.estimate.verdict.starts for v in ranked if v.estimate]
    assert words == sorted(words, key=["yes", "tight", "no"].index)


def test_a_target_needs_lengths_to_be_judged() -> None:
    assert meets_target(planned(target_concurrency=32).estimate()) is None
    assert meets_target(planned(target_concurrency=37, input_len=1500, output_len=512).estimate()) is True
    assert meets_target(planned(target_concurrency=38, input_len=1500, output_len=512).estimate()) is False


def test_requests_longer_than_max_model_len_meet_no_target() -> None:
    # 74,880 usable tokens hold one of 38,000 (2,375 blocks), and vLLM refuses it: the model takes 32,768
    case = planned(target_concurrency=1, input_len=30_000, output_len=8_000)
    answer = case.estimate()
    assert answer.capacity.p95 == Interval.exactly(1)
    assert meets_target(answer) is False
    assert any("vLLM refuses those above 32,768" in w for w in EstimateReport.of(case).warnings)


def test_pascal_cards_are_refused() -> None:
    with pytest.raises(InputError, match=r"CUDA builds start at 7\.0"):
        planned(gpu="p40").estimate()
