"""What the text of an estimate says beside its figures."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.planning import PlanRequest, plan_for
from kvplan.report.estimate import EstimateReport


def text_of(model: str, **more: Any) -> str:
    asked = PlanRequest(model=model, gpu="h100", vllm_version="0.32.0", local_calibration=False, **more)
    return EstimateReport.of(plan_for(asked)).render("text")


@pytest.mark.parametrize(
    ("model", "worst", "steady"),
    [
        # Window 1,024 in 6 groups, 2 x 8,192 tokens in flight: 6 x (512 + 1) and 512 of the full layers;
        # while decoding 6 x (ceil(1,025 / 16) + 1) = 6 x 66, and 512.
        ("google/gemma-3-27b-it", "3,590", "908"),
        # Window 128: min(128 - 1 + 16,384, 8,192) tokens are 512 + 1; decoding ceil(129 / 16) + 1 = 10.
        ("openai/gpt-oss-20b", "1,025", "522"),
    ],
)
def test_windows_explain_why_more_run_than_vllm_prints(model: str, worst: str, steady: str) -> None:
    serving = ServingConfig(max_model_len=8192, max_num_batched_tokens=8192)
    line = f"({worst} blocks a request while its prompt is read; decoding it keeps {steady}, so more run"
    assert line in text_of(model, serving=serving)


def test_full_attention_needs_no_such_word() -> None:
    assert "decoding it keeps" not in text_of("qwen2-7b")


def test_a_format_known_by_name_is_an_estimate() -> None:
    text = text_of("RedHatAI/Llama-3.1-8B-Instruct-quantized.w4a16", offline=True)
    weights = next(line for line in text.splitlines() if line.startswith("  weights"))
    assert "exact" not in weights
    assert " to " in weights
    assert "concluded from the name" in weights
