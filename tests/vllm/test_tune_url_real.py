"""`kvplan tune --url` against one real vLLM, which is as it was afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.config.serving import ServingConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvplan.engine.server import Engine

pytestmark = pytest.mark.vllm

BLOCK = 128
# 300 + 212 = 512 tokens are 4 blocks; of 16 blocks one is vLLM's null block: 15 // 4 = 3 requests at once.
LENGTHS = ("--input-len", "300", "--output-len", "212")
FITS = 3


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """vLLM with seats for 16 and memory for 3."""
    from kvplan.engine.demo_model import make_demo_model
    from kvplan.engine.plan import LaunchPlan
    from kvplan.engine.server import running_engine

    model = make_demo_model(
        tmp_path_factory.mktemp("model"), num_hidden_layers=2, hidden_size=128, head_dim=32
    )
    # 2 x 2 layers x 2 KV heads x 32 x 2 B = 512 B a token.
    settings = ServingConfig(
        max_model_len=1024,
        max_num_seqs=16,
        block_size=BLOCK,
        kv_cache_memory_bytes=16 * BLOCK * 512,
        enforce_eager=True,
        enable_prefix_caching=True,
    )
    plan = LaunchPlan(str(model), settings, "cpu", tmp_path_factory.mktemp("vllm"), served_model_name="tiny")
    with running_engine(plan) as running:
        yield running
        running.check()
        assert running.answers(), "the measured server does not answer any more"


def tune(engine: Engine, runs: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvplan", "tune", "--url", engine.base_url, "--runs-dir", str(runs)]
    return subprocess.run(
        [*command, *argv],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"THE_KEY": engine.api_key},
    )


def measured(engine: Engine, runs: Path, *argv: str) -> dict[str, Any]:
    done = tune(engine, runs, "--api-key-env", "THE_KEY", "--format", "json", *argv)
    assert done.returncode in {0, 1}, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_loads_stop_being_kept_where_the_arithmetic_says_that_memory_ends(
    engine: Engine, tmp_path: Path
) -> None:
    report = measured(engine, tmp_path, *LENGTHS, "--target-concurrency", "8", "--max-minutes", "3")

    kv = report["kv"]
    assert report["context"]["model"] == {"served": "tiny", "max_model_len": 1024}
    assert (kv["block_size"], kv["num_gpu_blocks"], kv["kv_cache_memory_bytes"]) == (BLOCK, 16, 1 << 20)
    assert kv["requests_at_longest"] == FITS
    assert kv["enable_prefix_caching"] is True
    loads = {load["users"]: load for load in report["loads"]}
    assert {load["failed"] for load in loads.values()} == {0}
    assert loads[1]["output_tokens"] == loads[1]["completed"] * 212
    # vLLM counted what we got, and nothing else: nobody else was there.
    assert loads[8]["server_output_tokens"] == loads[8]["output_tokens"]
    assert not any(loads[users]["waited_for_memory"] for users in loads if users <= FITS)
    assert loads[8]["waited_for_memory"]
    assert not report["met"]
    assert report["highest_load_kept"] < 8
    texts = [finding["text"] for finding in report["findings"]]
    assert any(text.startswith("Requests waited for KV cache from ") for text in texts)
    changes = [finding["change"] for finding in report["findings"] if finding["change"]]
    # Its size was given in bytes, so the utilisation would change nothing.
    assert any(change.startswith("a larger --kv-cache-memory-bytes") for change in changes)


def test_prefix_hits_are_vllms_own(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text(
        "schema: kvplan.workload/1\nname: shared\nsource: this test\n"
        "lengths:\n  samples: [[300, 8]]\nshared_prefix_tokens: 256\n"
    )
    report = measured(engine, tmp_path, "--workload", str(tmp_path / "shared.yaml"), "--ttft-p99-ms", "0.001")

    (load,) = report["loads"]  # nothing keeps a microsecond, so one user is all
    # Two whole blocks of each prompt but the first of all (the warm-up's) are found: 256 of 300 tokens.
    assert load["prefix_cache_hits"] / load["prefix_cache_queries"] == pytest.approx(256 / 300, abs=0.001)
    assert not report["met"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (
            ("--api-key-env", "THE_KEY", "--model", "other", *LENGTHS),
            "does not serve 'other' (it serves tiny",
        ),
        (LENGTHS, "answered 401: it wants a key, and none was given"),
        (
            ("--api-key-env", "THE_KEY", "--input-len", "1000", "--output-len", "25"),
            "longest request has 1,025 tokens, the server's max_model_len is 1,024",
        ),
    ],
)
def test_what_real_vllm_refuses_is_said_before_any_load(
    engine: Engine, tmp_path: Path, argv: tuple[str, ...], complaint: str
) -> None:
    done = tune(engine, tmp_path, *argv)

    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert not list(tmp_path.iterdir())
