"""Public launches of vLLM 0.6.6 to 0.32: from the KV memory that each printed come the tokens it printed.

The logs give the memory in GiB to two decimals, so the figure must lie between what the two ends of that
rounding give. tests/data/launches.jsonl has the address of each log.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvplan.calibration.cases import Case, prepare
from kvplan.calibration.public_launches import read_public_launches
from kvplan.memory.kv_cache.plan import plan_kv_cache
from kvplan.units import GIB

FILE = Path(__file__).parents[1] / "data" / "launches.jsonl"

SAID_IN_WORDS: dict[str, dict[str, Any]] = {
    # Settings that the log's post names in prose, and printed results that the record lists as settings.
    "5090-qwen36-35b-nvfp4-652": {"enable_prefix_caching": True, "defaulted": ()},
    "wsl32-qwen36-35b-64k-mbt16k": {"enable_prefix_caching": True, "defaulted": (), "block_size": None},
    "qwen36-35b-nvfp4-gb10-v0200": {"enable_prefix_caching": True, "defaulted": (), "block_size": None},
    "5000ada-qwen38-27b-fp8-16384": {"enable_prefix_caching": False},
    "5000ada-qwen38-27b-fp8-7168": {"enable_prefix_caching": False},
    "qwen3-next-80b-h200-tp2-v0102": {"block_size": None},
}
FIRST_STAGE = "the memory is the first pipeline stage's, the tokens the smallest stage's"
DRAFT = "a draft model's layers share the cache (MTP), which is refused by name"
NOT_COMPARABLE = {
    "turing24-qwen25-15b-tp2": "attention backend from outside vLLM; 7 MB less on one of two ranks",
    "llmd-v019-meta-llama-llama-3-1-8b-tp1pp2dp1-8192": FIRST_STAGE,
    "llmd-v019-meta-llama-llama-3-1-8b-tp1pp4dp1-8192": FIRST_STAGE,
    "qwen36-35b-nvfp4-gb10-u60": DRAFT,
    "nemotron3-super-120b-nvfp4-gb10": DRAFT,
    "glm52-fp8-h20-3e-256k-mtp": DRAFT,
    "dsv4-flash-preview-h20x2-v026": "DeepSeek-V4 before 0.31 is refused by name",
    "llama31-8b-mi300x-util85-v0211": "cards that are not NVIDIA's are refused by name",
}


LAUNCHES = [json.loads(line) for line in FILE.read_text().splitlines()]
PRINTED = {launch["id"]: launch for launch in LAUNCHES if launch.get("kv_cache_gib")}


def figures(case: Case, rounding: int) -> dict[str, float]:
    """What vLLM prints for the memory that it printed, moved by `rounding` bytes."""
    settings = case.settings._replace(**SAID_IN_WORDS.get(case.launch.id, {}))
    plan = plan_kv_cache(case.planner.shape, settings, case.planner.gpu)
    assert case.launch.kv_cache_bytes is not None
    num_blocks = plan.num_blocks(case.launch.kv_cache_bytes + rounding)
    return {
        "gpu_blocks": num_blocks,
        "kv_cache_tokens": plan.kv_cache_tokens(num_blocks, plan.max_model_len),
        "max_concurrency": plan.max_concurrency(num_blocks, plan.max_model_len),
    }


def test_blocks_tokens_and_concurrency_are_the_printed_ones() -> None:
    prepared, _ = prepare(read_public_launches(FILE))
    compared, wrong = 0, {}
    for case in prepared:
        printed = PRINTED.get(case.launch.id, {})
        names = printed.keys() & {"gpu_blocks", "kv_cache_tokens", "max_concurrency"}
        if case.launch.id in NOT_COMPARABLE or not names:
            continue
        low, high = figures(case, -GIB // 200), figures(case, GIB // 200)
        compared += 1
        for name in names:
            # Concurrency is printed to two decimals.
            margin = 0.005 if name == "max_concurrency" else 0
            if not low[name] - margin <= printed[name] <= high[name] + margin:
                wrong[case.launch.id, name] = (low[name], printed[name], high[name])
    assert wrong == {}
    assert compared >= 65
