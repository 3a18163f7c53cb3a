"""The README's first screen is what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

from kvplan.planning import PlanRequest, plan_for
from kvplan.report.estimate import EstimateReport

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(start: str) -> list[str]:
    text = next(b for b in re.findall(r"```text\n(.*?)```", README, re.DOTALL) if b.startswith(start))
    return [line for line in text.splitlines()[1:] if line.strip() != "..."]


def test_the_estimate_is_printed_as_shown() -> None:
    request = PlanRequest(model="qwen2-7b", gpu="4090", vllm_version="0.32.0", local_calibration=False)
    printed = EstimateReport.of(plan_for(request)).render("text").splitlines()
    assert [line for line in block("$ kvplan estimate") if line not in printed] == []


def test_the_tuning_run_is_the_one_that_is_kept() -> None:
    kept = (ROOT / "docs" / "examples" / "tune-demo.txt").read_text().splitlines()
    assert [line for line in block("$ kvplan tune") if line not in kept] == []


def test_every_document_that_it_names_is_there() -> None:
    named = re.findall(r"\]\((docs/[^)#]+)\)", README)
    assert [name for name in named if not (ROOT / name).is_file()] == []
