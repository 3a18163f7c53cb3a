"""A server that behaves as the memory arithmetic says: the answers of a dry run, and of tests."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvplan.errors import FailureClass
from kvplan.launch import Launch, StartupFacts
from kvplan.tune.repeats import next_load
from kvplan.tune.trial import LoadResult, Trial, TrialSpec, status_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.config.serving import ServingConfig
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.kv_cache.plan import KvCachePlan
    from kvplan.tune.card import KvRules
    from kvplan.tune.problem import Problem
    from kvplan.tune.trial import LoadLevel


_EVEN: Final = 0.5
"""A launch that is likelier to start than not is expected to; "tight" is on either side of it."""
_NOT_BEFORE_KV: Final = frozenset({"kv_cache", "unrequested"})


@dataclass(frozen=True, slots=True)
class _Memory:
    """The memory of one launch, in bytes, and how it fails."""

    kv_bytes: int
    non_kv_bytes: int
    unbudgeted_bytes: int
    failure: FailureClass | None


@dataclass(slots=True)
class AssumedServer:
    """Memory as stated, speed unknown: what a dry run may assume and no more."""

    problem: Problem
    kv_rules: KvRules
    non_kv_bytes: int
    """Inside vLLM's budget, before the KV cache."""
    unbudgeted_bytes: int
    """Outside the budget."""
    estimate: Callable[[ServingConfig], Estimate] | None = None
    """The memory model asked about every launch; None leaves it at the two sizes above."""
    trials: list[Trial] = field(default_factory=list)

    def run_trial(self, spec: TrialSpec) -> Trial:
        """The trial that the arithmetic expects."""
        trial = self._trial(spec)
        self.trials.append(trial)
        return trial

    def speed(self, spec: TrialSpec, level: LoadLevel, repeat: int) -> float | None:
        """Output tokens per second of a load; unknown here."""
        del spec, level, repeat
        return None

    def _trial(self, spec: TrialSpec) -> Trial:
        settings = spec.settings
        plan = self.kv_rules(settings)
        memory = self._memory(settings, plan)
        kv_bytes, failure = memory.kv_bytes, memory.failure
        used = kv_bytes + memory.non_kv_bytes + memory.unbudgeted_bytes
        blocks = plan.num_blocks(kv_bytes)
        launch = Launch(
            outcome="started" if failure is None else "failed",
            settings=settings.given(),
            device=self.problem.device,
            model=self.problem.model,
            gpu_total_bytes=self.problem.card_bytes,
            failure=failure,
            facts=StartupFacts(
                kv_cache_tokens=plan.kv_cache_tokens(blocks, self.problem.max_model_len),
                block_size=plan.block_size,
            ),
            peak_bytes=used if failure is None else None,
        )
        holds = plan.concurrent_requests(blocks, self.problem.lengths.longest_request)
        return Trial(
            number=len(self.trials) + 1,
            spec=spec,
            status=status_of(failure),
            launch=launch,
            loads=() if failure else tuple(self._loads(spec, holds)),
            failure=failure,
            evidence=None if failure is None else "by the arithmetic",
            kv_cache_bytes=kv_bytes,
            non_kv_bytes=memory.non_kv_bytes,
        )

    def _memory(self, settings: ServingConfig, plan: KvCachePlan) -> _Memory:
        """What the launch takes, and what becomes of it: the model's own verdict where it was given."""
        if self.estimate is None:
            kv_bytes = settings.kv_cache_memory_bytes
            if kv_bytes is None:
                requested = math.ceil(self.problem.card_bytes * (settings.gpu_memory_utilization or 0))
                kv_bytes = requested - self.non_kv_bytes
            memory = _Memory(kv_bytes, self.non_kv_bytes, self.unbudgeted_bytes, None)
            return dataclasses.replace(memory, failure=self._failure(memory, plan))
        answer = self.estimate(settings)
        lines, overhead = answer.budget.lines, answer.overhead
        memory = _Memory(
            kv_bytes=answer.budget.available_kv_bytes.mid,
            non_kv_bytes=sum(line.bytes.mid for line in lines if line.name not in _NOT_BEFORE_KV),
            unbudgeted_bytes=overhead.outside_budget.mid + overhead.cuda_graphs_outside.mid,
            failure=None,
        )
        if answer.verdict.probability < _EVEN:
            return dataclasses.replace(memory, failure=answer.verdict.failure)
        # The verdict ends with the start; what the loads make of it is the arithmetic of the whole card.
        return dataclasses.replace(memory, failure=self._failure(memory, plan))

    def _failure(self, memory: _Memory, plan: KvCachePlan) -> FailureClass | None:
        """By the sizes alone."""
        if memory.kv_bytes <= 0:
            return FailureClass.NO_KV_MEMORY
        if plan.check_bytes(memory.kv_bytes) < plan.request_bytes(self.problem.max_model_len):
            return FailureClass.KV_TOO_SMALL
        if memory.kv_bytes + memory.non_kv_bytes + memory.unbudgeted_bytes > self.problem.card_bytes:
            return FailureClass.KILLED if self.problem.device == "cpu" else FailureClass.OOM_SERVING
        return None

    def _loads(self, spec: TrialSpec, holds: int) -> list[LoadResult]:
        loads: list[LoadResult] = []
        while (asked := next_load(spec.levels, loads, self.problem.seed)) is not None:
            level, repeat = asked
            running = min(level.concurrency, spec.settings.max_num_seqs or level.concurrency)
            loads.append(
                LoadResult(
                    level=level,
                    repeat=repeat,
                    completed=level.concurrency,
                    failed=0,
                    output_throughput=self.speed(spec, level, repeat),
                    preemptions=max(0, level.concurrency - holds),
                    peak_running=running,
                )
            )
        return loads
