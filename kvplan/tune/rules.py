"""vLLM's KV-cache arithmetic for one model on one card, as a function of the settings alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kvplan.architecture.model_shape import model_shape
from kvplan.catalog.engines import rules_for
from kvplan.config.defaults import resolve
from kvplan.memory.kv_cache.plan import KvCachePlan, plan_kv_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.config.serving import ServingConfig
    from kvplan.config.version import VllmVersion
    from kvplan.memory.hardware import GpuSpec
    from kvplan.tune.card import KvRules


def kv_rules(model_config: Mapping[str, Any], gpu: GpuSpec, version: VllmVersion) -> KvRules:
    """The KV-cache plan of any settings, each worked out once.

    Raises:
        UnsupportedModelError: the model has no exact rule.
    """
    shape, rules = model_shape(model_config), rules_for(version)
    known: dict[str, KvCachePlan] = {}

    def plan_of(settings: ServingConfig) -> KvCachePlan:
        # Neither decides how the cache is laid out, only how much of it there is.
        layout = dataclasses.replace(settings, gpu_memory_utilization=None, kv_cache_memory_bytes=None)
        key = repr(layout.given())
        if key not in known:
            known[key] = plan_kv_cache(shape, resolve(layout, rules=rules, gpu=gpu, shape=shape), gpu)
        return known[key]

    return plan_of
