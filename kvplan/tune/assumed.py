"""A server that behaves as the memory arithmetic says: the answers of a dry run, and of tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvplan.errors import FailureClass
from kvplan.launch import Launch, StartupFacts
from kvplan.tune.repeats import next_load
from kvplan.tune.trial import LoadResult, Trial, TrialSpec, status_of

if TYPE_CHECKING:
    from kvplan.tune.card import KvRules
    from kvplan.tune.problem import Problem
    from kvplan.tune.trial import LoadLevel


@dataclass(slots=True)
class AssumedServer:
    """Memory as stated, speed unknown: what a dry run may assume and no more."""

    problem: Problem
    kv_rules: KvRules
    non_kv_bytes: int
    """Inside vLLM's budget, before the KV cache."""
    unbudgeted_bytes: int
    """Outside the budget."""
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
        kv_bytes = settings.kv_cache_memory_bytes
        if kv_bytes is None:
            requested = math.ceil(self.problem.card_bytes * (settings.gpu_memory_utilization or 0))
            kv_bytes = requested - self.non_kv_bytes
        used = kv_bytes + self.non_kv_bytes + self.unbudgeted_bytes
        failure = None
        if kv_bytes <= 0:
            failure = FailureClass.NO_KV_MEMORY
        elif plan.check_bytes(kv_bytes) < plan.request_bytes(self.problem.max_model_len):
            failure = FailureClass.KV_TOO_SMALL
        elif used > self.problem.card_bytes:
            failure = FailureClass.KILLED if self.problem.device == "cpu" else FailureClass.OOM_SERVING
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
            non_kv_bytes=self.non_kv_bytes,
        )

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
