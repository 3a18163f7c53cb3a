"""The ladder with real Transformers, and (by hand) the whole of it with real vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvplan.engine.demo_model import make_demo_model
from kvplan.engine.plan import LaunchPlan
from kvplan.errors import FailureClass
from kvplan.tune.ladder import Rung, Scale
from kvplan.tune.ladder_transformers import Generation, generate
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.tune.ladder_result import RungResult

SCALE = Scale(
    users=2,
    input_len=96,
    output_len=8,
    max_model_len=128,
    device="cpu",
    block_size=32,
    kv_cache_memory_bytes=None,
    kv_cache_tokens=None,
)


def generated(folder: Path, model: Path, *, use_cache: bool, card_bytes: int = 4 * GIB) -> RungResult:
    """One Transformers step."""
    from kvplan.config.serving import ServingConfig

    folder.mkdir()
    plan = LaunchPlan(str(model), ServingConfig(), "cpu", folder, card_bytes=card_bytes)
    rung = Rung("cache" if use_cache else "no_cache", "t", "transformers", "", use_cache=use_cache)
    return generate(Generation(plan, rung, SCALE, generate_s=120), lambda _text: None)


@pytest.mark.vllm
def test_transformers_generates_with_and_without_its_cache(tmp_path: Path) -> None:
    model = make_demo_model(tmp_path, num_hidden_layers=2, hidden_size=64, head_dim=16)
    for use_cache, rounds in ((True, 3), (False, 1)):
        result = generated(tmp_path / f"{use_cache}", model, use_cache=use_cache)

        assert result.failure is None, result.evidence
        point = result.loads["own"]
        assert (point.completed, point.failed) == (2 * rounds, 0)
        assert point.output_tokens == 2 * 8 * rounds
        assert point.output_throughput is not None
        assert point.output_throughput > 0
        assert point.p50_tpot_ms is not None
        assert "Transformers" in result.notes[0]
        # torch alone is more than this.
        assert result.peak_memory_bytes is not None
        assert result.peak_memory_bytes > 100 * MIB


@pytest.mark.vllm
def test_what_transformers_cannot_do_is_a_result_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "no_such_kind"}')
    unknown = generated(tmp_path / "a", tmp_path / "empty", use_cache=True)
    # Not even Python with torch fits into 64 MiB.
    small = generated(tmp_path / "b", make_demo_model(tmp_path), use_cache=True, card_bytes=64 * MIB)

    assert unknown.failure is FailureClass.UNKNOWN
    assert "no_such_kind" in (unknown.evidence or "")
    assert small.failure is FailureClass.KILLED
    assert (unknown.loads, small.loads) == ({}, {})


@pytest.mark.vllm_full
def test_the_demo_ladder_gives_a_figure_for_every_step(tmp_path: Path) -> None:
    """Its output is docs/examples/ladder-demo.txt."""
    command = [sys.executable, "-m", "kvplan", "tune", "--ladder", "--demo", "--runs-dir", str(tmp_path)]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    results = {rung["name"]: rung["result"] for rung in report["rungs"]}
    assert list(results) == ["no_cache", "cache", "start", "fp8", "prefix", "tuned"]
    assert all(result["failure"] is None for result in results.values())
    speed = {name: result["loads"]["own"]["output_throughput"] for name, result in results.items()}
    assert speed["cache"] > 3 * speed["no_cache"]
    # Half the bytes a token: twice the tokens in the same KV cache.
    assert results["fp8"]["kv_cache_tokens"] == pytest.approx(
        2 * results["start"]["kv_cache_tokens"], rel=0.05
    )
    # Twice the users wait for seats at the start, and are served at once with FP8.
    assert results["start"]["loads"]["twice"]["peak_running"] <= 8
    assert results["fp8"]["loads"]["twice"]["peak_running"] > 8
    shared = {name: results[name]["loads"]["shared"]["prefix_cache_hits"] for name in ("fp8", "prefix")}
    assert not shared["fp8"]
    assert shared["prefix"] > 0
