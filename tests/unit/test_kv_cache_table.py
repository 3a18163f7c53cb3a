"""The KV cache of every case in tests/data/kv_table.jsonl equals what vLLM 0.32.0's own classes answered.

The table is made by tests/bench/make_kv_table.py; nothing in it was computed by kvplan.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.architecture.model_shape import ModelShape, model_shape
from kvplan.config.resolved import ResolvedSettings
from kvplan.errors import InputError
from kvplan.memory.hardware import GpuSpec, cpu_spec
from kvplan.memory.kv_cache.plan import plan_kv_cache

DATA = Path(__file__).parents[1] / "data"
ROWS = [json.loads(line) for line in (DATA / "kv_table.jsonl").read_text().splitlines()]

NOT_ANSWERED = {
    # vLLM 0.32.0 (or the Transformers beside it) does not load the config at all, so there is no figure.
    "baichuan-inc__Baichuan2-7B-Base h100": "served up to 0.23.0, needs the repository's own code",
    "microsoft__Phi-3-small-8k-instruct h100": "served up to 0.9.2, needs the repository's own code",
    "mosaicml__mpt-7b h100": "served up to 0.28.0",
    "internlm__internlm2_5-7b h100": "the config class is in the repository's own code",
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1 h100": "the config class is in the repository's own code",
    "MiniMaxAI__MiniMax-M3 h100": "this config's model_type is not one that Transformers knows",
    "meta-llama__Llama-3.1-405B-Instruct-FP8 h100": "fbgemm_fp8 needs --allow-deprecated-quantization",
    "moonshotai__Kimi-K3 h100": "needs the compiled FlashKDA module",
}
IN_OUR_WORDS = {
    # vLLM stops on an assertion or an arithmetic error that says nothing to a user.
    "microsoft__phi-4 h100 tp=4": "",
    "deepseek-ai__DeepSeek-V4-Flash h100 max_model_len=32768 block_size=64": (
        "integer division or modulo by zero"
    ),
}
SSM_BACKENDS = {"GDN_ATTN", "MAMBA1_ATTN", "MAMBA2_ATTN", "SHORT_CONV_ATTN", "KIMI_K3_KDA"}


@functools.cache
def shape_of(model: str) -> ModelShape:
    name = f"{model.replace('/', '__', 1)}.json"
    folder = DATA / ("made_configs" if model.startswith("made/") else "configs")
    return model_shape(json.loads((folder / name).read_text()))


def gpu_of(row: dict[str, Any]) -> GpuSpec:
    gpu = row["gpu"]
    if gpu["name"] == "CPU":
        return cpu_spec(2**34)
    total = gpu["total_bytes"]
    return GpuSpec("asked", gpu["name"], total, total, total, tuple(gpu["capability"]))


def settings_of(row: dict[str, Any]) -> ResolvedSettings:
    flags, resolved = row["flags"], row["resolved"]
    name, _, value = flags.get("set", "").partition("=")
    extra: dict[str, Any] = {name: json.loads(value)} if name else {}
    length = flags.get("max_model_len", resolved.get("max_model_len", shape_of(row["model"]).max_model_len))
    dtype = resolved.get("dtype", flags.get("dtype", "bfloat16")).removeprefix("torch.")
    return ResolvedSettings(
        vllm_version=(0, 32, 0),
        gpu_memory_utilization=0.92,
        max_model_len=-1 if length == "auto" else length,
        max_num_seqs=resolved.get("max_num_seqs", 1024),
        max_num_batched_tokens=resolved.get("max_num_batched_tokens", 8192),
        dtype=dtype,
        kv_cache_dtype=flags.get("kv_cache_dtype", "auto"),
        kv_cache_dtype_skip_layers=tuple(map(str, flags.get("kv_cache_dtype_skip_layers", ()))),
        block_size=flags.get("block_size"),
        num_gpu_blocks_override=flags.get("num_gpu_blocks_override"),
        tensor_parallel_size=flags.get("tp", 1),
        pipeline_parallel_size=flags.get("pp", 1),
        decode_context_parallel_size=flags.get("dcp", 1),
        enable_prefix_caching=not flags.get("no_prefix_caching", False),
        async_scheduling=resolved.get("async_scheduling", True),
        disable_hybrid_kv_cache_manager=flags.get("disable_hybrid_kv_cache_manager", False),
        attention_backend=flags.get("attention_backend"),
        mamba_cache_dtype=extra.get("mamba_cache_dtype", "auto"),
        mamba_ssm_cache_dtype=extra.get("mamba_ssm_cache_dtype", "auto"),
        num_speculative_tokens=extra.get("speculative_config", {}).get("num_speculative_tokens", 0),
    )


def answered(row: dict[str, Any]) -> bool:
    return "stages" in row


@pytest.mark.parametrize("row", [r for r in ROWS if answered(r)], ids=lambda row: row["id"])
def test_the_plan_is_vllms_byte_for_byte(row: dict[str, Any]) -> None:
    plan = plan_kv_cache(shape_of(row["model"]), settings_of(row), gpu_of(row))
    longest = row.get("max_model_len", row["resolved"]["max_model_len"])
    # Attention backends first: a wrong one explains every other difference.
    assert sorted(plan.attention_backends) == sorted(set(row["backends"]) - SSM_BACKENDS)
    assert plan.block_size == row["block_size"]
    assert plan.stage_bytes_per_block == tuple(stage[0] for stage in row["stages"])
    assert [(g.layers, g.block_size) for g in plan.groups] == [(g[0], g[1]) for g in row["groups"]]
    asked = plan.max_model_len
    assert plan.blocks_for_request(asked) == sum(group[3] for group in row["groups"])
    assert plan.request_bytes(asked) == max(stage[1] for stage in row["stages"])
    if row["flags"].get("pp", 1) == row["flags"].get("dcp", 1) == 1:
        # A fraction of a byte a token (DeepSeek-V4's compressed latents) is rounded up.
        assert plan.bytes_per_token == -(-row["growing_bytes_per_token"] // 1)
    if "num_gpu_blocks" in row:
        blocks = plan.num_blocks(row["available_kv_bytes"])
        assert blocks == row["num_gpu_blocks"]
        assert plan.kv_cache_tokens(blocks, longest) == row["kv_cache_size_tokens"]
        assert plan.max_concurrency(blocks, longest) == row["max_concurrency"]


@pytest.mark.parametrize("row", [r for r in ROWS if answered(r)], ids=lambda row: row["id"])
def test_the_start_check_says_what_vllm_says(row: dict[str, Any]) -> None:
    plan = plan_kv_cache(shape_of(row["model"]), settings_of(row), gpu_of(row))
    available = row["available_kv_bytes"]
    checked, needed = plan.check_bytes(available), plan.request_bytes(plan.max_model_len)
    if row["flags"].get("max_model_len") == "auto":
        assert plan.estimated_max_model_len(available) == row["max_model_len"]
    elif "error" not in row:
        assert needed <= checked
    elif row["error"].startswith("No available memory for the cache blocks."):
        assert checked <= 0
    else:
        assert needed > checked > 0
        assert f"{round(needed / 2**30, 2)} GiB KV cache is needed" in row["error"]
        assert f"KV cache memory ({round(checked / 2**30, 2)} GiB)" in row["error"]
        fits = plan.estimated_max_model_len(available)
        assert ("estimated maximum model length is" in row["error"]) == (fits > 0)
        assert fits == 0 or f"estimated maximum model length is {fits}." in row["error"]


@pytest.mark.parametrize(
    "row",
    [r for r in ROWS if not answered(r) and r["id"] not in NOT_ANSWERED],
    ids=lambda row: row["id"],
)
def test_what_vllm_refuses_is_refused_in_its_words(row: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refusal:
        plan_kv_cache(shape_of(row["model"]), settings_of(row), gpu_of(row))
    ours, theirs = refusal.value.message, row["error"]
    if row["id"] in IN_OUR_WORDS:
        assert theirs == IN_OUR_WORDS[row["id"]]
    else:
        # The table keeps the first 1500 characters of a refusal.
        assert ours[:1400] in theirs


def test_every_public_config_is_read_and_asked() -> None:
    asked = {row["id"] for row in ROWS if answered(row)} | set(NOT_ANSWERED)
    for path in sorted((DATA / "configs").glob("*.json")):
        assert f"{path.stem} h100" in asked
        assert shape_of(path.stem.replace("__", "/", 1)).num_layers > 0
