"""The whole answer for one set of settings on one card: ledger, capacity, verdict. A function of values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.errors import FailureClass
from kvplan.memory.budget import Budget, BudgetLine, LineName, remaining, requested_bytes
from kvplan.memory.capacity import Capacity
from kvplan.memory.interval import Interval
from kvplan.memory.overhead import combine
from kvplan.memory.verdict import (
    Verdict,
    free_memory_message,
    likeliest_failure,
    probability_at_least,
    said,
    start_check_message,
)
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.config.version_rules import VersionRules
    from kvplan.memory.capacity import RequestLengths
    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.kv_cache.plan import KvCachePlan
    from kvplan.memory.overhead import Overhead
    from kvplan.memory.weights import WeightsPerGpu


class Estimate(FrozenRecord):
    """What one GPU's memory becomes, what it serves, and whether vLLM starts."""

    shape: ModelShape
    gpu: GpuSpec
    rules: VersionRules
    settings: ResolvedSettings
    lengths: RequestLengths | None
    weights: WeightsPerGpu
    overhead: Overhead
    plan: KvCachePlan
    tightest_stage: int
    """Pipeline stage whose figures these are (0 without pipeline parallelism)."""
    budget: Budget
    capacity: Capacity
    verdict: Verdict
    max_model_len: int
    """The length served: with `auto`, the longest that fits at the expected memory."""

    @property
    def num_gpus(self) -> int:
        """GPUs that one replica takes."""
        return self.settings.tensor_parallel_size * self.settings.pipeline_parallel_size

    @property
    def estimated_max_model_len(self) -> int | None:
        """The length that vLLM would name at the expected KV memory; None if not even one token fits."""
        return self._longest_at(self.budget.available_kv_bytes.mid)

    def _longest_at(self, available_kv_bytes: int) -> int | None:
        in_widest = _as_widest_stage(self.plan, self.tightest_stage, available_kv_bytes)
        return self.plan.estimated_max_model_len(in_widest) or None

    def explain(self, name: LineName) -> str:
        """The formula of a ledger line with its numbers."""
        budget = self.budget
        if name == "weights":
            return self.weights.explanation
        if name == "other":
            loading = _loading_bytes(self.gpu, self.weights, self.tightest_stage)
            return (
                f"{self.overhead.explain(name)}; beside the tensors, loading leaves {loading:,} B of rotary "
                "tables and whole allocator blocks"
            )
        if name in {"activations", "cuda_graphs"}:
            return self.overhead.explain(name)
        kv_bytes, rest = budget.available_kv_bytes.mid, budget.line("unrequested").bytes.mid
        if name == "unrequested":
            return (
                f"{budget.total_bytes:,} - {budget.total_bytes - rest:,} = {rest:,} B; the CUDA context and "
                "what vLLM does not count live here"
            )
        if self.settings.kv_cache_memory_bytes is not None:
            return f"{kv_bytes:,} B given"
        requested = budget.requested_bytes
        share = f"{budget.total_bytes:,} x {self.settings.gpu_memory_utilization:g}"
        return (
            f"{self.rules.requested_rounding}({share}) = {requested:,}; {requested:,} - "
            f"{requested - kv_bytes:,} = {kv_bytes:,} B"
        )

    @property
    def message(self) -> str | None:
        """What vLLM would print, with the expected numbers; None when it starts."""
        if self.verdict.failure is None:
            return None
        if self.verdict.failure is FailureClass.OOM_CUDAGRAPH:
            return "CUDA out of memory while graphs are captured or the first requests run"
        if self.verdict.failure is FailureClass.OOM_WEIGHTS:
            return "CUDA out of memory while the weights are loaded"
        if self.verdict.failure is FailureClass.FREE_MEMORY_LOW:
            return free_memory_message(
                free_bytes=self.verdict.free_bytes,
                total_bytes=self.gpu.total_bytes,
                gpu_memory_utilization=self.settings.gpu_memory_utilization,
                requested_bytes=self.budget.requested_bytes,
            )
        kv_bytes = self.budget.available_kv_bytes
        # Where it is tight, the start that fails is one at the low end.
        available = kv_bytes.mid if self.verdict.starts == "no" else kv_bytes.low
        blocks = _blocks(self.plan, self.tightest_stage, available)
        return start_check_message(
            self.rules,
            max_model_len=self.max_model_len,
            needed_bytes=self.verdict.needed_bytes,
            available_bytes=_checked(self.plan, self.tightest_stage, available),
            estimated_max_model_len=self._longest_at(available),
            capacity_tokens=self.plan.kv_cache_tokens(blocks, self.max_model_len),
        )


def estimate(
    *,
    shape: ModelShape,
    gpu: GpuSpec,
    rules: VersionRules,
    settings: ResolvedSettings,
    weights: WeightsPerGpu,
    overhead: Overhead,
    plan: KvCachePlan,
    lengths: RequestLengths | None = None,
    used_bytes: int = 0,
) -> Estimate:
    """Put the parts together for the tightest GPU.

    Args:
        shape: the model.
        gpu: the card.
        rules: how that vLLM version accounts.
        settings: every flag resolved.
        weights: per GPU, by pipeline stage.
        overhead: activations, graphs, context and other.
        plan: the KV cache's layout.
        lengths: the workload, if one was given.
        used_bytes: memory already in use on the card by others.
    """
    requested = requested_bytes(gpu.total_bytes, settings.gpu_memory_utilization, rules.requested_rounding)
    stage, kv_bytes = _tightest_stage(requested, gpu, settings, weights, overhead, plan)
    ledger = _ledger(requested, gpu, settings, weights, overhead, stage, kv_bytes)
    blocks = (
        Interval.exactly(settings.num_gpu_blocks_override)
        if settings.num_gpu_blocks_override
        else kv_bytes.map(lambda size: _blocks(plan, stage, size))
    )
    length = settings.max_model_len
    if length == -1:
        length = plan.estimated_max_model_len(_as_widest_stage(plan, stage, kv_bytes.mid)) or 1
    return Estimate(
        shape=shape,
        gpu=gpu,
        rules=rules,
        settings=settings,
        lengths=lengths,
        weights=weights,
        overhead=overhead,
        plan=plan,
        tightest_stage=stage,
        budget=ledger,
        capacity=Capacity(plan, blocks, length, lengths),
        verdict=_verdict(
            rules, gpu, settings, overhead, plan, ledger, stage=stage, length=length, used_bytes=used_bytes
        ),
        max_model_len=length,
    )


def _blocks(plan: KvCachePlan, stage: int, available_bytes: int) -> int:
    if plan.is_attention_free:
        return plan.num_blocks(available_bytes)
    return max(available_bytes, 0) // plan.stage_bytes_per_block[stage]


def _checked(plan: KvCachePlan, stage: int, available_bytes: int) -> int:
    """What the start check compares with: the null block, of this stage's size, may be set aside first."""
    widest = plan.check_bytes(_as_widest_stage(plan, stage, available_bytes))
    own = plan.stage_bytes_per_block[stage]
    return widest if own == plan.bytes_per_block else widest * own // plan.bytes_per_block


def _as_widest_stage(plan: KvCachePlan, stage: int, available_bytes: int) -> int:
    """A stage's bytes in the measure of the widest stage, for arithmetic that knows only that one."""
    own = plan.stage_bytes_per_block[stage]
    if own in {0, plan.bytes_per_block}:
        return available_bytes
    return available_bytes * plan.bytes_per_block // own


def _tightest_stage(
    requested: int,
    gpu: GpuSpec,
    settings: ResolvedSettings,
    weights: WeightsPerGpu,
    overhead: Overhead,
    plan: KvCachePlan,
) -> tuple[int, Interval]:
    """The stage that makes fewest blocks, and its KV bytes."""
    if settings.kv_cache_memory_bytes is not None:
        given = Interval.exactly(settings.kv_cache_memory_bytes)
        widest = max(range(len(plan.stage_bytes_per_block)), key=plan.stage_bytes_per_block.__getitem__)
        return widest, given
    util = settings.gpu_memory_utilization
    share = Interval(
        requested - int((gpu.total_bytes - gpu.total_bytes_low) * util),
        requested,
        requested + int((gpu.total_bytes_high - gpu.total_bytes) * util),
    )
    charged = (overhead.activations, overhead.cuda_graphs)
    left = [
        remaining(share, combine((weights.per_stage[stage], *charged, _other(gpu, weights, overhead, stage))))
        for stage in range(settings.pipeline_parallel_size)
    ]
    tightest = min(range(len(left)), key=lambda s: left[s].mid / (plan.stage_bytes_per_block[s] or 1))
    return tightest, left[tightest]


def _loading_bytes(gpu: GpuSpec, weights: WeightsPerGpu, stage: int) -> int:
    """What "Model loading took" counts beyond the tensors; the CPU has no caching allocator to round up."""
    if gpu.platform == "cpu":
        return 0
    return max(0, weights.allocated_per_stage[stage].mid - weights.per_stage[stage].mid)


def _other(gpu: GpuSpec, weights: WeightsPerGpu, overhead: Overhead, stage: int) -> Interval:
    return overhead.other.map(lambda size: size + _loading_bytes(gpu, weights, stage))


def _ledger(
    requested: int,
    gpu: GpuSpec,
    settings: ResolvedSettings,
    weights: WeightsPerGpu,
    overhead: Overhead,
    stage: int,
    kv_bytes: Interval,
) -> Budget:
    stage_weights = weights.per_stage[stage]
    before_kv = (
        BudgetLine("weights", stage_weights, weights.source),
        BudgetLine("activations", overhead.activations, overhead.source),
        BudgetLine("cuda_graphs", overhead.cuda_graphs, overhead.source),
        BudgetLine("other", _other(gpu, weights, overhead, stage), overhead.source),
    )
    used = sum(line.bytes.mid for line in before_kv)
    kv_line = BudgetLine(
        "kv_cache",
        kv_bytes,
        "requested - weights - activations - graphs - other"
        if settings.kv_cache_memory_bytes is None
        else "--kv-cache-memory-bytes",
    )
    rest = Interval.exactly(gpu.total_bytes - used - kv_bytes.mid)
    unrequested = BudgetLine("unrequested", rest, "total - everything above")
    return Budget(gpu.total_bytes, requested, (*before_kv, kv_line, unrequested))


def _verdict(
    rules: VersionRules,
    gpu: GpuSpec,
    settings: ResolvedSettings,
    overhead: Overhead,
    plan: KvCachePlan,
    ledger: Budget,
    *,
    stage: int,
    length: int,
    used_bytes: int,
) -> Verdict:
    """The start checks of vLLM, each with its probability; the least likely one decides."""
    kv_bytes = ledger.available_kv_bytes
    needed = plan.blocks_for_request(length if settings.max_model_len > 0 else 1)
    needed *= plan.stage_bytes_per_block[stage]
    checked = kv_bytes.map(lambda size: _checked(plan, stage, size))
    p_kv = probability_at_least(checked, max(needed, 1))
    p_free, free_mid = _free_memory(rules, gpu, overhead, ledger, used_bytes)
    p_late = _late_memory(gpu, overhead, ledger, used_bytes) if gpu.platform == "cuda" else 1.0
    probability = min(p_kv, p_free, p_late)
    starts = said(probability)
    failure = None
    if starts != "yes":
        failure = likeliest_failure(
            weights_bytes=ledger.line("weights").bytes.mid,
            total_bytes=gpu.total_bytes,
            available_kv_bytes=checked.mid,
            p_free_memory=p_free,
            p_kv=p_kv,
        )
        if p_late < min(p_kv, p_free):
            failure = FailureClass.OOM_CUDAGRAPH
    return Verdict(starts, round(probability, 4), failure, needed, free_mid)


def _free_memory(
    rules: VersionRules, gpu: GpuSpec, overhead: Overhead, ledger: Budget, used_bytes: int
) -> tuple[float, int]:
    """P(free memory at start >= requested), and the expected free bytes."""
    free = remaining(
        Interval(gpu.total_bytes_low, gpu.total_bytes, gpu.total_bytes_high), overhead.outside_budget
    )
    free = free.map(lambda size: size - used_bytes)
    if not rules.free_memory_check or gpu.platform != "cuda":
        return 1.0, free.mid
    return probability_at_least(free, ledger.requested_bytes), free.mid


def _late_memory(gpu: GpuSpec, overhead: Overhead, ledger: Budget, used_bytes: int) -> float:
    """P(what vLLM plans with, and what it does not count, fit the card together)."""
    planned = gpu.total_bytes - ledger.line("unrequested").bytes.mid
    slack = remaining(
        Interval(gpu.total_bytes_low, gpu.total_bytes, gpu.total_bytes_high),
        combine((overhead.outside_budget, overhead.cuda_graphs_outside)),
    ).map(lambda size: size - planned - used_bytes)
    return probability_at_least(slack, 0)
