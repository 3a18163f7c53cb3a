"""Questions about cards: answered, or refused in one line; none is passed over without a word."""

from __future__ import annotations

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.errors import InputError
from kvplan.planning import PlanRequest, plan_for
from kvplan.report.solution import Solution
from kvplan.report.variants import render_variants
from kvplan.report.what_if import ask_views, render_views
from kvplan.units import GIB
from kvplan.variants import all_cards, meets_target


def asked(**changes: object) -> PlanRequest:
    values: dict[str, object] = {
        "model": "qwen2-7b",
        "gpu": "4090",
        "vllm_version": "0.32.0",
        "serving": ServingConfig(kv_cache_memory_bytes=4 * GIB),
    }
    return PlanRequest(**(values | changes))  # type: ignore[arg-type]


def test_ranked_cards_mix_neither_starts_nor_targets() -> None:
    """60 at once of 2,500 tokens: the 4090 starts and holds fewer, an 80 GB card holds them."""
    serving = ServingConfig(max_model_len=8192)
    ranked = all_cards(asked(serving=serving, target_concurrency=60, input_len=2000, output_len=500))
    answers = [v.estimate for v in ranked if v.estimate]
    found = [(a.verdict.starts, meets_target(a)) for a in answers]
    order = [(s, met) for s in ("yes", "tight", "no") for met in (True, False)]
    places = [order.index((starts, bool(met))) for starts, met in found]
    assert places == sorted(places)
    assert {("yes", True), ("yes", False)} <= set(found)
    lines = render_variants(ranked, "text").splitlines()
    card = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert [card[name][-2] for name in ("rtx-4090", "h100-sxm", "t4")] == ["no", "yes", "no"]


def test_a_question_that_no_card_can_be_asked_is_refused_once() -> None:
    with pytest.raises(InputError, match="output-len is missing"):
        all_cards(asked(input_len=4))


def test_tables_of_zeros_say_first_that_nothing_starts() -> None:
    case = plan_for(PlanRequest(model="qwen3-32b", gpu="4090", vllm_version="0.32.0"))
    views, refused = ask_views(case, ["attention"])
    text = render_views(views, refused, "text", asked=case.estimate())
    assert text.startswith(
        "does not start (p = 0.00): with these settings NVIDIA GeForce RTX 4090 leaves nothing"
    )
    case = plan_for(asked())
    assert "does not start" not in render_views(
        *ask_views(case, ["attention"]), "text", asked=case.estimate()
    )


def test_a_solution_without_a_target_says_what_is_missing() -> None:
    case = asked()
    assert "--target-concurrency N is missing" in Solution.of(plan_for(case), case).render("text")
    case = asked(target_concurrency=8)
    assert "is missing" not in Solution.of(plan_for(case), case).render("text")
