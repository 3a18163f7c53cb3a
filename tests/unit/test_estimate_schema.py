"""The JSON of an estimate is what docs/estimate-schema.md says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.planning import PlanRequest, plan_for
from kvplan.report.estimate import EstimateReport

PAGE = (Path(__file__).parents[2] / "docs" / "estimate-schema.md").read_text()


def answer(**flags: object) -> dict[str, Any]:
    request = PlanRequest(
        model="qwen2-7b",
        gpu="4090",
        vllm_version="0.32.0",
        serving=ServingConfig().with_flags(**flags),
        target_concurrency=32,
        input_len=1500,
        output_len=512,
    )
    document: dict[str, Any] = json.loads(EstimateReport.of(plan_for(request)).render("json"))
    return document


def keys_of(document: dict[str, Any]) -> set[str]:
    """Dotted keys to a depth of two, as the page names them."""
    found = set()
    for key, value in document.items():
        found.add(key)
        if isinstance(value, dict):
            found |= {f"{key}.{inner}" for inner in value}
    return found


def test_every_key_is_documented_and_every_documented_key_is_there() -> None:
    documented = {
        name
        for row in re.findall(r"^\| (`[^|]+`) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`([a-z_.]+)`", row)
    }
    present = keys_of(answer())
    inner = {k for k in present if "." in k and k.split(".")[0] not in documented}
    assert documented <= present
    assert (
        inner | {k for k in present if "." not in k and k in {"schema", "advice", "warnings"}} <= documented
    )


def test_the_figures_of_the_worked_example() -> None:
    document = answer(gpu_memory_utilization=0.85, max_model_len=8192, max_num_seqs=32)
    assert document["kv_cache"]["bytes_per_token"] == 57_344
    weights = document["weights"]
    assert (weights["bytes"], weights["parameters"]) == (15_231_233_024, 7_615_616_512)
    assert weights["exact"] is True
    assert document["verdict"]["needed_bytes"] == 8192 * 57_344
    assert document["inputs"]["settings"]["max_num_batched_tokens"] == 2048
    assert "max_num_batched_tokens" in document["inputs"]["defaulted"]
    assert document["capacity"]["meets_target"] is True


@pytest.mark.parametrize("flags", [{}, {"kv_cache_memory_bytes": 2**30}, {"gpu_memory_utilization": 0.5}])
def test_the_lines_sum_to_the_card(flags: dict[str, object]) -> None:
    budget = answer(**flags)["budget"]
    assert sum(line["bytes"]["mid"] for line in budget["lines"]) == budget["total_bytes"]
    names = [line["name"] for line in budget["lines"]]
    assert names == ["weights", "activations", "cuda_graphs", "other", "kv_cache", "unrequested"]
