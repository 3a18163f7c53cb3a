"""Planner: one model on one card of one vLLM version, asked about many settings.

What does not change between questions (weights, the KV layout) is computed once, so that the search and the
gate can ask hundreds of thousands of times.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from kvplan.architecture.tensors import weight_tensors
from kvplan.config.defaults import resolve
from kvplan.config.resolved import ResolvedSettings
from kvplan.memory.estimate import Estimate, estimate
from kvplan.memory.interval import Interval
from kvplan.memory.kv_cache.plan import plan_kv_cache
from kvplan.memory.overhead import combine, overhead_inputs, predict_overhead
from kvplan.memory.overhead.fitted import FITTED
from kvplan.memory.weights import WeightsPerGpu, weights_per_gpu
from kvplan.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.model_shape import ModelShape
    from kvplan.architecture.stored_weights import StoredWeights
    from kvplan.config.serving import ServingConfig
    from kvplan.config.version_rules import VersionRules
    from kvplan.memory.capacity import RequestLengths
    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.kv_cache.plan import KvCachePlan
    from kvplan.memory.overhead import Overhead
    from kvplan.memory.overhead.coefficients import Coefficients
    from kvplan.memory.overhead.correction import Correction


_ALL_BUT_SHARE: Final = attrgetter(
    *(name for name in ResolvedSettings._fields if name != "gpu_memory_utilization")
)
"""Everything that weights, KV layout and overhead depend on."""


class Planner(Record):
    """Answers for one model, card and vLLM version."""

    shape: ModelShape
    model_config: Mapping[str, Any]
    """The model's config.json."""
    stored: StoredWeights | None
    gpu: GpuSpec
    rules: VersionRules
    lengths: RequestLengths | None = None
    used_bytes: int = 0
    """Memory already in use on the card by others."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """VLLM_* variables that the server will see."""
    coefficients: Coefficients = FITTED
    """Of the overhead model; others only when the fit judges itself."""
    correction: Correction | None = None
    """What launches of this model, card and version measured here."""
    _weights: dict[tuple[object, ...], WeightsPerGpu] = field(default_factory=dict, init=False, repr=False)
    _parts: dict[tuple[object, ...], tuple[KvCachePlan, WeightsPerGpu, Overhead]] = field(
        default_factory=dict, init=False, repr=False
    )

    def estimate(self, serving: ServingConfig) -> Estimate:
        """The whole answer for these flags.

        Raises:
            InputError: flags that vLLM refuses before it looks at memory.
            UnsupportedModelError: no exact rule covers the model with these flags.
        """
        settings = resolve(
            serving, rules=self.rules, gpu=self.gpu, shape=self.shape, environment=self.environment
        )
        return self.estimate_resolved(settings)

    def estimate_resolved(self, settings: ResolvedSettings) -> Estimate:
        """The whole answer for settings whose defaults are filled in."""
        plan, weights, overhead = self._parts_for(settings)
        if self.correction is not None:
            from kvplan.memory.overhead.correction import corrected

            overhead = corrected(overhead, self.correction)
        return estimate(
            shape=self.shape,
            gpu=self.gpu,
            rules=self.rules,
            settings=settings,
            weights=weights,
            overhead=overhead,
            plan=plan,
            lengths=self.lengths,
            used_bytes=self.used_bytes,
        )

    def _parts_for(self, settings: ResolvedSettings) -> tuple[KvCachePlan, WeightsPerGpu, Overhead]:
        """What does not change with the share of the card, which is what a search varies most."""
        key = _ALL_BUT_SHARE(settings)
        if key not in self._parts:
            overhead = predict_overhead(
                overhead_inputs(self.shape, self.model_config, settings, self.gpu), self.coefficients
            )
            self._parts[key] = (
                plan_kv_cache(self.shape, settings, self.gpu),
                self._weights_for(settings),
                self._with_side_memory(overhead, settings),
            )
        return self._parts[key]

    def _with_side_memory(self, overhead: Overhead, settings: ResolvedSettings) -> Overhead:
        """What flags without a line of their own add to `other`, and where graphs are charged."""
        if settings.charges_cudagraphs is False:
            nothing = Interval.exactly(0)
            outside = combine((overhead.cuda_graphs, overhead.cuda_graphs_outside))
            overhead = dataclasses.replace(overhead, cuda_graphs=nothing, cuda_graphs_outside=outside)
        if settings.max_loras:
            from kvplan.memory.lora import lora_bytes

            adapters = lora_bytes(
                weight_tensors(self.model_config),
                max_loras=settings.max_loras,
                max_lora_rank=settings.max_lora_rank,
                tensor_parallel_size=settings.tensor_parallel_size,
                dtype_bytes=4 if settings.dtype == "float32" else 2,
            )
            said = (
                f"LoRA buffers, {settings.max_loras} x rank {settings.max_lora_rank} on every linear layer: "
                f"{adapters.mid:,} B"
            )
            before = overhead.explainer
            overhead = dataclasses.replace(
                overhead,
                other=combine((overhead.other, adapters)),
                explainer=lambda term: f"{before(term)}; {said}" if term == "other" else before(term),
            )
        return overhead

    def _weights_for(self, settings: ResolvedSettings) -> WeightsPerGpu:
        key = (
            settings.dtype,
            settings.quantization,
            settings.tensor_parallel_size,
            settings.pipeline_parallel_size,
            settings.data_parallel_size,
            settings.enable_expert_parallel,
            settings.cpu_offload_bytes,
        )
        if key not in self._weights:
            self._weights[key] = weights_per_gpu(
                self.model_config,
                self.stored,
                dtype=settings.dtype,
                quantization=settings.quantization,
                tensor_parallel_size=settings.tensor_parallel_size,
                pipeline_parallel_size=settings.pipeline_parallel_size,
                enable_expert_parallel=settings.enable_expert_parallel,
                data_parallel_size=settings.data_parallel_size,
                cpu_offload_bytes=settings.cpu_offload_bytes,
                vllm_version=settings.vllm_version,
                compute_capability=self.gpu.compute_capability,
            )
        return self._weights[key]
