"""`kvplan estimate --device cpu --kv-cache-memory-bytes N` against what real vLLM prints for the same N.

Three small models of different head layouts; in CI each block size and dtype once or more, the whole product
in the longer run:

    pytest tests/vllm/test_estimate_against_vllm.py -m vllm_full -s
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.engine.demo_model import make_demo_model
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine
from kvplan.units import GIB

if TYPE_CHECKING:
    from pathlib import Path

KV_BYTES: Final = 123_456_789  # no multiple of any block: what is rounded shows
MAX_MODEL_LEN: Final = 1000

MODELS: Final[dict[str, dict[str, Any]]] = {
    "mha": {
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "gqa": {
        "num_hidden_layers": 3,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    "mqa": {
        "num_hidden_layers": 5,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 128,
    },
}
BLOCK_SIZES: Final = (32, 128)
DTYPES: Final = ("auto", "fp8")
IN_CI: Final = [("mha", 32, "auto"), ("gqa", 128, "fp8"), ("mqa", 32, "fp8"), ("mqa", 128, "auto")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def printed_by_vllm(
    folder: Path, work_dir: Path, block_size: int, dtype: str
) -> tuple[int | None, float | None]:
    """KV tokens and maximum concurrency in vLLM's log."""
    settings = ServingConfig(
        kv_cache_memory_bytes=KV_BYTES,
        max_model_len=MAX_MODEL_LEN,
        block_size=block_size,
        kv_cache_dtype=dtype,
        enforce_eager=True,
    )
    plan = LaunchPlan(
        model=str(folder),
        settings=settings,
        device="cpu",
        work_dir=work_dir,
        card_bytes=4 * GIB,
        ready_timeout_s=240,
    )
    with running_engine(plan) as engine:
        facts = engine.launch.facts
    return facts.kv_cache_tokens, facts.max_concurrency


def estimated(folder: Path, block_size: int, dtype: str) -> tuple[int, float]:
    """The same two figures from the command line, without a start."""
    argv = [
        *(sys.executable, "-m", "kvplan", "estimate", "--device", "cpu", "--vllm-version", "0.32.0"),
        *("--model", str(folder), "--kv-cache-memory-bytes", str(KV_BYTES), "--format", "json"),
        *("--max-model-len", str(MAX_MODEL_LEN), "--block-size", str(block_size), "--kv-cache-dtype", dtype),
    ]
    answer = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    tokens, concurrency = answer["kv_cache"]["tokens"], answer["capacity"]["max_concurrency"]
    assert tokens["low"] == tokens["high"]
    return tokens["mid"], concurrency["mid"]


def compare(models: Path, tmp_path: Path, name: str, block_size: int, dtype: str) -> str:
    folder = make_demo_model(models / name, **MODELS[name])
    tokens, concurrency = printed_by_vllm(folder, tmp_path / "trial", block_size, dtype)
    our_tokens, our_concurrency = estimated(folder, block_size, dtype)
    assert (our_tokens, round(our_concurrency, 2)) == (tokens, concurrency)
    return f"{name}  block {block_size:3}  {dtype:4}  {tokens:>9,} tokens  {concurrency:8.2f}x  equal"


@pytest.mark.vllm
@pytest.mark.parametrize(("name", "block_size", "dtype"), IN_CI)
def test_the_estimate_is_what_vllm_prints(
    models: Path, tmp_path: Path, name: str, block_size: int, dtype: str
) -> None:
    compare(models, tmp_path, name, block_size, dtype)


@pytest.mark.vllm_full
@pytest.mark.parametrize(
    ("name", "block_size", "dtype"), list(itertools.product(MODELS, BLOCK_SIZES, DTYPES))
)
def test_the_whole_product(models: Path, tmp_path: Path, name: str, block_size: int, dtype: str) -> None:
    print(compare(models, tmp_path, name, block_size, dtype))
