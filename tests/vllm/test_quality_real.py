"""The quality probe on real vLLM: fp8 shows above the noise floor, the same cache again does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.engine.demo_model import make_demo_model
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine
from kvplan.load.records import Endpoint
from kvplan.quality.judge import judge
from kvplan.quality.prober import STEPS, TEXT_TOKENS, sample_quality
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.quality.sample import QualitySample

MAX_MODEL_LEN = 1024


def samples(folder: Path, dtype: str, passes: int) -> list[QualitySample]:
    """What one server with that cache answers, asked so often; of auto the first sample has a repeat."""
    flags = {"kv_cache_memory_bytes": 64 * MIB, "max_model_len": MAX_MODEL_LEN, "kv_cache_dtype": dtype}
    plan = LaunchPlan(
        model=str(make_demo_model()),
        settings=ServingConfig(enforce_eager=True, max_num_seqs=8).with_flags(**flags),
        device="cpu",
        card_bytes=4 * GIB,
        work_dir=folder / dtype,
        ready_timeout_s=180,
    )
    with running_engine(plan) as engine:
        endpoint = Endpoint(engine.base_url, engine.served_model_name, engine.api_key)
        repeats = [dtype == "auto" and number == 0 for number in range(passes)]
        return [asyncio.run(sample_quality(endpoint, MAX_MODEL_LEN, with_repeat=one)) for one in repeats]


@pytest.mark.vllm
def test_fp8_shows_above_the_noise_floor_and_the_same_cache_does_not(tmp_path: Path) -> None:
    base, again = samples(tmp_path, "auto", 2)
    (fp8,) = samples(tmp_path, "fp8", 1)
    for sample in (base, again, fp8):
        assert sample.error is None
        assert sample.first is not None
        assert [len(text.logprobs) for text in sample.first.texts] == [TEXT_TOKENS - 1] * 12
        assert all(value <= 0 for text in sample.first.texts for value in text.logprobs)
        assert all(len(text.steps) == STEPS for text in sample.first.texts)
        # Greedy: what was chosen is at least as probable as the next.
        assert all(s.logprob >= s.second_logprob for text in sample.first.texts for s in text.steps)
        assert len(sample.first.needles) == 20
        assert sample.context_tokens <= MAX_MODEL_LEN

    verdict = judge(base, fp8)
    print({m.name: (m.repeat, m.value, m.low, m.high, m.outcome) for m in verdict.measures}, verdict.needles)
    move = next(m for m in verdict.measures if m.name == "log-probability")
    assert verdict.is_above_noise
    assert move.low is not None
    assert move.low > 0
    assert move.value > 5 * move.repeat
    assert not judge(base, again).is_above_noise
    # Random weights find nothing, so that the needles say nothing and fp8 must not win.
    assert verdict.needles is not None
    assert verdict.needles.outcome == "not informative"
    assert verdict.outcome != "passes"
