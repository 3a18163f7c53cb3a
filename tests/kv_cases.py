"""Models, cards and settings that the tests of the KV cache share."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from kvplan.architecture.model_shape import ModelShape, model_shape
from kvplan.config.resolved import ResolvedSettings
from kvplan.memory.hardware import GpuSpec, cpu_spec
from kvplan.memory.kv_cache.plan import KvCachePlan, plan_kv_cache
from kvplan.units import GIB

CONFIGS = Path(__file__).parent / "data" / "configs"


def config_of(model: str) -> dict[str, Any]:
    """The public config.json of that model."""
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{model.replace('/', '__', 1)}.json").read_text())
    return loaded


@functools.cache
def shape_of(model: str) -> ModelShape:
    """Its shape, one object for all tests."""
    return model_shape(config_of(model))


def card(major: int, minor: int = 0) -> GpuSpec:
    """A card of that compute capability; its memory does not matter to the KV layout."""
    return GpuSpec(f"sm{major}{minor}", f"Card {major}.{minor}", *(80 * GIB,) * 3, (major, minor))


H100, A100, ADA, TURING, BLACKWELL = card(9), card(8), card(8, 9), card(7, 5), card(10)
CPU = cpu_spec(16 * GIB)


def settings(**changes: Any) -> ResolvedSettings:
    """vLLM 0.32.0 with the batch defaults of a large card, prefix caching as the release has it."""
    base = ResolvedSettings(
        vllm_version=(0, 32, 0),
        gpu_memory_utilization=0.92,
        max_model_len=-1,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        dtype="bfloat16",
        defaulted=("enable_prefix_caching",),
    )
    return base._replace(**changes)


def plan(model: str, gpu: GpuSpec = H100, **changes: Any) -> KvCachePlan:
    """The KV cache of that model on that card."""
    shape = shape_of(model)
    return plan_kv_cache(shape, settings(**{"dtype": shape.dtype, **changes}), gpu)
