"""Real vLLM on the CPU, a small model of every kind that it can serve there: blocks, tokens and concurrency.

The models are made up and tiny (tests/data/kv_tiny_configs.json), their weights random. Kinds that vLLM's CPU
backend cannot run are compared in tests/unit/test_kv_cache_table.py only: sparse attention with an indexer,
DeepSeek-V4, Kimi delta attention, and Whisper, which needs its processor's files.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.architecture.model_shape import model_shape
from kvplan.config.resolved import ResolvedSettings
from kvplan.config.serving import ServingConfig
from kvplan.engine.demo_model import make_demo_model
from kvplan.engine.lock import device_lock
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine
from kvplan.errors import InputError
from kvplan.memory.hardware import GpuSpec, cpu_spec
from kvplan.memory.kv_cache.plan import KvCachePlan, plan_kv_cache
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.vllm

HERE = Path(__file__).parent
CONFIGS: dict[str, dict[str, Any]] = json.loads((HERE.parent / "data" / "kv_tiny_configs.json").read_text())

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen2", {"block_size": 32}),
    ("qwen2", {"kv_cache_dtype": "fp8"}),
    ("qwen2", {"kv_cache_dtype": "fp8_e5m2", "block_size": 32}),
    ("qwen2", {"kv_cache_dtype": "int8_per_token_head", "block_size": 64}),
    ("qwen2", {"dtype": "float32"}),
    ("qwen2", {"num_gpu_blocks_override": 77}),
    ("gemma3", {"kv_cache_dtype": "fp8", "block_size": 32}),
    ("gemma3", {"disable_hybrid_kv_cache_manager": True}),
    ("gemma2", {"block_size": 64, "max_num_batched_tokens": 512}),
    ("deepseek2", {"kv_cache_dtype": "fp8"}),
    ("qwen3next", {"enable_prefix_caching": False, "block_size": 32}),
    ("nemotronh", {"mamba_ssm_cache_dtype": "float32", "kv_cache_dtype": "fp8"}),
]
CASES = [(name, dict[str, Any]()) for name in CONFIGS] + VARIANTS
BLOCKS_OF_16 = ("qwen2", {"block_size": 16})


def this_cpu() -> GpuSpec:
    """The CPU with the features on which vLLM's backend looks."""
    flags = Path("/proc/cpuinfo").read_text()
    features = [name for name, flag in (("amx", "amx_tile"), ("avx512_bf16", "avx512_bf16")) if flag in flags]
    return dataclasses.replace(cpu_spec(16 * GIB), arch=" ".join(features))


def planned(name: str, flags: Mapping[str, Any]) -> KvCachePlan:
    shape = model_shape(CONFIGS[name])
    settings = ResolvedSettings(
        vllm_version=(0, 32, 0),
        gpu_memory_utilization=0.9,
        max_model_len=2048,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        dtype=shape.dtype,
        async_scheduling=False,
        defaulted=("enable_prefix_caching",),
    )
    given = {key: value for key, value in flags.items() if key != "kv_cache_memory_bytes"}
    return plan_kv_cache(shape, settings._replace(**given), this_cpu())


def identifier(case: tuple[str, Mapping[str, Any]]) -> str:
    name, flags = case
    return " ".join((name, *(f"{key}={value}" for key, value in flags.items())))


def with_memory(index: int, flags: dict[str, Any]) -> dict[str, Any]:
    return {"kv_cache_memory_bytes": (64 + index) * MIB, **flags}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """What vLLM said to every case, by the case's name."""
    cases = [*CASES, BLOCKS_OF_16]
    asked = [
        {"name": identifier(case), "config": CONFIGS[case[0]], "flags": with_memory(index, case[1])}
        for index, case in enumerate(cases)
    ]
    with device_lock([None], wait_s=1800):
        done = subprocess.run(
            [sys.executable, str(HERE / "real_kv_cache.py")],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert len(lines) == len(cases), done.stderr[-3000:]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("case", CASES, ids=identifier)
def test_blocks_tokens_and_concurrency_are_vllms(
    case: tuple[str, dict[str, Any]], answers: dict[str, dict[str, Any]]
) -> None:
    name, flags = case
    answer = answers[identifier(case)]
    assert "error" not in answer, answer["error"]
    plan = planned(name, flags)
    num_blocks = plan.num_blocks(with_memory(CASES.index(case), {})["kv_cache_memory_bytes"])
    figures = {
        "num_blocks": num_blocks,
        # The shortest group's, as the scheduler has it.
        "block_size": min(group.block_size for group in plan.groups),
        "kv_cache_tokens": plan.kv_cache_tokens(num_blocks, 2048),
        "max_concurrency": plan.max_concurrency(num_blocks, 2048),
    }
    assert figures == {name: answer[name] for name in figures}


def test_blocks_of_16_are_refused_in_vllms_words(answers: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(InputError) as refused:
        planned(*BLOCKS_OF_16)
    assert answers[identifier(BLOCKS_OF_16)]["error"] == refused.value.message


def test_a_server_prints_what_was_planned(tmp_path: Path) -> None:
    model = make_demo_model(tmp_path)
    # The tokenizer of the demo model, beside a model with sliding windows.
    (model / "model.safetensors").unlink()
    (model / "config.json").write_text(json.dumps(CONFIGS["gemma3"]))
    flags = {"block_size": 32, "kv_cache_dtype": "fp8"}
    launch = LaunchPlan(
        model=str(model),
        settings=ServingConfig(
            kv_cache_memory_bytes=64 * MIB,
            max_model_len=2048,
            max_num_seqs=16,
            max_num_batched_tokens=2048,
            enforce_eager=True,
        ).with_flags(load_format="dummy", **flags),
        device="cpu",
        work_dir=tmp_path / "trial",
        ready_timeout_s=240,
    )
    plan = planned("gemma3", flags)
    with running_engine(launch) as engine:
        facts = engine.launch.facts
    assert facts.kv_cache_tokens == plan.kv_cache_tokens(plan.num_blocks(64 * MIB), 2048)
    assert facts.max_concurrency == round(plan.max_concurrency(plan.num_blocks(64 * MIB), 2048), 2)
