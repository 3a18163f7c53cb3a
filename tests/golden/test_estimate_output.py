"""What people see of an estimate, as files: `pytest tests/golden --update-golden` rewrites them.

The figures come from the fitted overhead model: a new fit changes them, and the diff shows how much.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.planning import PlanRequest, plan_for
from kvplan.report.estimate import EstimateReport
from kvplan.report.solution import Solution
from kvplan.report.variants import render_variants
from kvplan.report.what_if import ask_views, render_views
from kvplan.variants import compare

FOLDER = Path(__file__).parent / "estimate"

ARTICLE = PlanRequest(
    model="qwen2-7b",
    gpu="4090",
    vllm_version="0.32.0",
    serving=ServingConfig(gpu_memory_utilization=0.85, max_model_len=8192, max_num_seqs=32),
    target_concurrency=32,
    input_len=1500,
    output_len=512,
)
TOO_LONG = PlanRequest(model="Qwen/Qwen2-7B", gpu="4090", vllm_version="0.32.0")
HYBRID = PlanRequest(
    model="gemma-3-27b-it",
    gpu="h100-sxm",
    vllm_version="0.32.0",
    serving=ServingConfig(tensor_parallel_size=2, max_model_len=32768),
)


def check(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    if request.config.getoption("--update-golden"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text()


@pytest.mark.parametrize(
    ("name", "asked", "output_format", "explain"),
    [
        ("article.txt", ARTICLE, "text", True),
        ("article.md", ARTICLE, "markdown", False),
        ("article.json", ARTICLE, "json", False),
        ("too-long.txt", TOO_LONG, "text", False),
        ("hybrid.txt", HYBRID, "text", True),
    ],
)
def test_an_estimate(
    name: str, asked: PlanRequest, output_format: str, explain: bool, request: pytest.FixtureRequest
) -> None:
    report = EstimateReport.of(plan_for(asked))
    check(name, report.render(output_format, explain=explain), request)


def test_a_comparison(request: pytest.FixtureRequest) -> None:
    check("compare.txt", render_variants(compare(["0.19.1", "0.20.0"], ARTICLE), "text"), request)


def test_a_solution(request: pytest.FixtureRequest) -> None:
    check("solve.txt", Solution.of(plan_for(ARTICLE), ARTICLE).render("text"), request)


def test_what_if_views(request: pytest.FixtureRequest) -> None:
    check("what-if.md", render_views(*ask_views(plan_for(ARTICLE), ["all"]), "markdown"), request)
