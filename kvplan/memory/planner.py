"""Planner: one model on one card of one vLLM version, asked about many settings.

What does not change between questions (weights, the KV layout) is computed once, so that the search and the
gate can ask hundreds of thousands of times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvplan.config.defaults import resolve
from kvplan.memory.estimate import Estimate, estimate
from kvplan.memory.kv_cache.plan import plan_kv_cache
from kvplan.memory.overhead import overhead_inputs, predict_overhead
from kvplan.memory.overhead.correction import corrected
from kvplan.memory.weights import WeightsPerGpu, weights_per_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.model_shape import ModelShape
    from kvplan.architecture.stored_weights import StoredWeights
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.config.serving import ServingConfig
    from kvplan.config.version_rules import VersionRules
    from kvplan.memory.capacity import RequestLengths
    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.overhead.correction import Correction


@dataclass
class Planner:
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
    correction: Correction | None = None
    """What launches of this model, card and version measured here."""
    _weights: dict[tuple[object, ...], WeightsPerGpu] = field(default_factory=dict, repr=False)

    def estimate(self, serving: ServingConfig) -> Estimate:
        """The whole answer for these flags.

        Raises:
            InputError: flags that vLLM refuses before it looks at memory.
            UnsupportedModelError: no exact rule covers the model with these flags.
        """
        settings = resolve(serving, rules=self.rules, gpu=self.gpu, shape=self.shape)
        return self.estimate_resolved(settings)

    def estimate_resolved(self, settings: ResolvedSettings) -> Estimate:
        """The whole answer for settings whose defaults are filled in."""
        plan = plan_kv_cache(self.shape, settings, self.gpu)
        weights = self._weights_for(settings)
        overhead = predict_overhead(
            overhead_inputs(self.shape, self.model_config, settings, self.gpu, weights.bytes.mid)
        )
        if self.correction is not None:
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

    def _weights_for(self, settings: ResolvedSettings) -> WeightsPerGpu:
        key = (
            settings.dtype,
            settings.quantization,
            settings.tensor_parallel_size,
            settings.pipeline_parallel_size,
            settings.data_parallel_size,
            settings.enable_expert_parallel,
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
                vllm_version=settings.vllm_version,
            )
        return self._weights[key]
