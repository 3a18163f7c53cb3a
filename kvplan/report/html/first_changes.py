"""What to change first when a server is slow or full: as the run measured it, else as the model has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.report.tune_text import figure, utilization
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.report.html.tuned_card import TunedCard
    from kvplan.report.tune import TuneReport
    from kvplan.tune.recommend import BoundaryEnd, LoadSummary

_ADVICE_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class FirstChange:
    """A symptom, the change to try first, and what it buys."""

    symptom: str
    change: str
    buys: str
    known_from: str


def when_full(report: TuneReport, card: TunedCard) -> Iterator[FirstChange]:
    """More requests at once: first what was measured, then what the memory model has."""
    from kvplan.memory.advice import advise

    symptom = "Full: requests wait for KV cache or are preempted"
    answer, lengths = report.recommendation, card.planner.lengths
    tokens = report.problem.lengths.longest_request if lengths is None else lengths.total_len.p95
    before = card.requests({}, tokens)
    survived, failed = answer.boundary_survived, answer.boundary_failed
    chosen = card.settings.gpu_memory_utilization
    if (
        survived is not None
        and chosen is not None
        and (survived.gpu_memory_utilization or 0) > chosen
        and survived.kv_cache_bytes
    ):
        after = card.now.plan.concurrent_requests(card.now.plan.num_blocks(survived.kv_cache_bytes), tokens)
        yield FirstChange(
            symptom,
            _as_far_as(survived, report.problem.device),
            f"{figure(before)} → {after:,} requests of {tokens:,} tokens at once; the margin is spent",
            f"measured: it survived in trial {survived.trial}",
        )
    count = 0
    for advice in advise(card.settings, card.now, card.planner.estimate):
        asked = advice.change.get("gpu_memory_utilization")
        if asked is not None and survived is not None:
            continue  # the run measured how far it goes: the model's guess says less
        if asked is not None and failed is not None and asked >= failed.gpu_memory_utilization:
            continue
        flags = ", ".join(f"{name} {value}" for name, value in advice.change.items())
        served = (
            f"{figure(before)} → {figure(card.requests(advice.change, tokens))} requests of {tokens:,} tokens"
        )
        yield FirstChange(
            symptom,
            flags,
            f"{served} at once; {advice.why}",
            "memory model",
        )
        count += 1
        if count == _ADVICE_SHOWN:
            return


def _as_far_as(survived: BoundaryEnd, device: str) -> str:
    """The flag that goes to the highest survivor; on CPU vLLM's share is of a NUMA node, so its bytes."""
    if device == "cpu":
        return f"kv_cache_memory_bytes {survived.kv_cache_bytes}"
    return f"gpu_memory_utilization {utilization(survived.gpu_memory_utilization)}"


def when_slow(report: TuneReport, card: TunedCard) -> Iterator[FirstChange]:
    """What the sweep of one server showed at fewer and at more users, and what was switched off."""
    target, curve = report.problem.target_concurrency, report.recommendation.curve
    here = next((p for p in curve if p.concurrency == target), None)
    if here is not None:
        fewer = max((p for p in curve if p.concurrency < target), key=lambda p: p.concurrency, default=None)
        more = min((p for p in curve if p.concurrency > target), key=lambda p: p.concurrency, default=None)
        if fewer is not None:
            yield from _with_fewer(here, fewer)
        if more is not None:
            yield _with_more(here, more, report.recommendation.launch_noise)
    if card.settings.enforce_eager and card.refusal({"enforce_eager": False}) is None:
        yield _with_graphs(card)


def _with_fewer(here: LoadSummary, fewer: LoadSummary) -> Iterator[FirstChange]:
    cost = f"{figure(here.output_throughput)} → {figure(fewer.output_throughput)} tokens/s in all"
    for symptom, name, field, digits in (
        ("Slow to the first token", "TTFT p99", "p99_ttft_ms", 0),
        ("Slow between tokens", "TPOT p99", "p99_tpot_ms", 1),
    ):
        now, then = getattr(here, field), getattr(fewer, field)
        if now is not None and then is not None and then < now:
            yield FirstChange(
                symptom,
                f"fewer at once: max_num_seqs {fewer.concurrency}",
                f"{name} {figure(now, digits)} → {figure(then, digits)} ms; {cost}",
                f"measured in trial {here.trial}, {here.concurrency} and {fewer.concurrency} users",
            )


def _with_more(here: LoadSummary, more: LoadSummary, noise: float) -> FirstChange:
    old, new = here.output_throughput, more.output_throughput
    tpot = f"TPOT p99 {figure(here.p99_tpot_ms, 1)} → {figure(more.p99_tpot_ms, 1)} ms"
    speed = f"{figure(old)} → {figure(new)} tokens/s, {tpot}"
    buys = speed if old and new and new > old * (1 + noise) else f"nothing that is decided: {speed}"
    return FirstChange(
        "Too few tokens a second in all",
        f"more at once: max_num_seqs {more.concurrency}",
        buys,
        f"measured in trial {here.trial}, {here.concurrency} and {more.concurrency} users",
    )


def _with_graphs(card: TunedCard) -> FirstChange:
    with_graphs = card.planner.estimate(card.settings.with_flags(enforce_eager=False))
    cost = with_graphs.budget.line("cuda_graphs").bytes.mid + with_graphs.overhead.cuda_graphs_outside.mid
    memory = (
        f"it takes {format_gib(cost)} for graphs" if cost else "it takes no memory that the model knows of"
    )
    return FirstChange(
        "Slow between tokens",
        "enforce_eager off: vLLM compiles and captures graphs",
        f"{memory}, a longer start; the speed was not measured in this run",
        "memory model",
    )
