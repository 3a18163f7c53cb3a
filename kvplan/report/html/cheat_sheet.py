"""What holds for this model on this card beyond the run's own workload, asked of the memory model.

Where the run measured the KV cache, its bytes are the ones used, and the memory model gives only the difference
that other settings make; the blocks and requests are vLLM's own arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError
from kvplan.report.tune_text import figure, percent, utilization
from kvplan.tune.choose import LAUNCH_NOISE
from kvplan.tune.identity import workload_from_record
from kvplan.tune.problem import settings_from_dict
from kvplan.units import format_gib, round_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvplan.config.serving import ServingConfig
    from kvplan.load.workload import Workload
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.planner import Planner
    from kvplan.report.tune import TuneReport
    from kvplan.tune.recommend import KnobEffect, LoadSummary

_ADVICE_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class ClassRow:
    """Settings for one class of traffic. None is "n/a"."""

    name: str
    mean_tokens: int
    p95_tokens: int
    longest_tokens: int
    max_model_len: int | None
    """The longest request in whole blocks; None when the model takes no such length."""
    at_once_mean: int | None
    at_once_p95: int | None
    """Also the highest max_num_seqs that memory allows at that length."""
    at_once_longest: int | None
    at_once_p95_fp8: int | None


@dataclass(frozen=True, slots=True)
class FirstChange:
    """A symptom, the change to try first, and what it buys."""

    symptom: str
    change: str
    buys: str
    known_from: str


@dataclass(frozen=True, slots=True)
class CheatSheet:
    """The sheet; `refusal` says why there is none."""

    basis: str = ""
    classes: tuple[ClassRow, ...] = ()
    fp8_verdict: str = ""
    fp8: tuple[tuple[str, str], ...] = ()
    first_changes: tuple[FirstChange, ...] = ()
    refusal: str | None = None


def planner_of(header: Mapping[str, Any], target_concurrency: int) -> Planner:
    """The memory model for a journal's model, card, version and workload.

    Raises:
        InputError: the model or version has no exact rule here.
    """
    from kvplan.architecture.model_shape import model_shape
    from kvplan.catalog.engines import rules_for
    from kvplan.config.version import parse_vllm_version
    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.planner import Planner
    from kvplan.planning import lengths_of

    gpu = dict(header["gpu"])
    if gpu["compute_capability"] is not None:
        gpu["compute_capability"] = tuple(gpu["compute_capability"])
    workload = workload_from_record(header["context"]["workload"])
    return Planner(
        shape=model_shape(header["model_config"]),
        model_config=header["model_config"],
        stored=None,
        gpu=GpuSpec(**gpu),
        rules=rules_for(parse_vllm_version(header["context"]["vllm_version"])),
        lengths=lengths_of(workload, target_concurrency),
    )


def cheat_sheet(report: TuneReport, presets: Mapping[str, Workload]) -> CheatSheet:
    """The sheet of a run.

    Args:
        report: the run.
        presets: classes of traffic by name; the run's own comes first by itself.
    """
    try:
        card = _Card.of(report)
        own = workload_from_record(report.header["context"]["workload"])
        named = {f"this run: {own.name}": own, **presets}
        return CheatSheet(
            basis=card.basis,
            classes=tuple(card.row(name, workload) for name, workload in named.items()),
            fp8_verdict=_fp8_verdict(report, card),
            fp8=tuple(_fp8_facts(report, card)),
            first_changes=(*_when_full(report, card), *_when_slow(report, card)),
        )
    except InputError as error:
        return CheatSheet(refusal=error.message)


@dataclass(frozen=True, slots=True)
class _Card:
    """The recommended settings on this card, and how much KV cache they have."""

    planner: Planner
    settings: ServingConfig
    now: Estimate
    kv_bytes: int
    basis: str

    @classmethod
    def of(cls, report: TuneReport) -> _Card:
        problem, answer = report.problem, report.recommendation
        planner = planner_of(report.header, problem.target_concurrency)
        trial = next((t for t in report.trials if t.number == answer.trial), None)
        if answer.settings is not None and trial is not None and trial.survived and trial.kv_cache_bytes:
            settings = settings_from_dict(answer.settings)
            if problem.device == "cpu":
                settings = settings.with_flags(kv_cache_memory_bytes=trial.kv_cache_bytes)
            basis = (
                f"{format_gib(trial.kv_cache_bytes)} of KV cache, as trial {trial.number} had it, through vLLM's "
                "arithmetic of blocks; what other settings change in it comes from the memory model"
            )
            return cls(planner, settings, planner.estimate(settings), trial.kv_cache_bytes, basis)
        settings = problem.base_settings().with_flags(
            gpu_memory_utilization=report.header["assumed"]["probe_utilization"]
        )
        now = planner.estimate(settings)
        kv_bytes = max(0, now.budget.available_kv_bytes.mid)
        basis = f"nothing started: {format_gib(kv_bytes)} of KV cache as the memory model expects, unmeasured"
        return cls(planner, settings, now, kv_bytes, basis)

    def requests(self, flags: Mapping[str, Any], num_tokens: int) -> int | None:
        """Requests of that length that run at once with some flags changed; None where vLLM refuses."""
        try:
            after = self.planner.estimate(self.settings.with_flags(**flags))
        except InputError:
            return None
        change = after.budget.available_kv_bytes.mid - self.now.budget.available_kv_bytes.mid
        return after.plan.concurrent_requests(
            after.plan.num_blocks(max(0, self.kv_bytes + change)), num_tokens
        )

    def refusal(self, flags: Mapping[str, Any]) -> str | None:
        """Why vLLM does not take the flags; None when it does."""
        try:
            self.planner.estimate(self.settings.with_flags(**flags))
        except InputError as error:
            return error.message
        return None

    def row(self, name: str, workload: Workload) -> ClassRow:
        """The settings for one class of traffic."""
        longest = workload.longest_total_len
        length = round_up(longest, self.now.plan.block_size)
        mean, p95 = round(workload.mean_total_len), workload.total_len_quantile(0.95)
        if length > self.planner.shape.max_model_len:
            return ClassRow(name, mean, p95, longest, None, None, None, None, None)
        auto = {"max_model_len": length, "kv_cache_dtype": "auto"}
        return ClassRow(
            name,
            mean,
            p95,
            longest,
            length,
            at_once_mean=self.requests(auto, mean),
            at_once_p95=self.requests(auto, p95),
            at_once_longest=self.requests(auto, longest),
            at_once_p95_fp8=self.requests(auto | {"kv_cache_dtype": "fp8"}, p95),
        )


def _fp8_effect(report: TuneReport) -> KnobEffect | None:
    effects = report.recommendation.effects
    return next(
        (e for e in effects if e.knob == "kv_cache_dtype" and str(e.to_value).startswith("fp8")), None
    )


def _fp8_verdict(report: TuneReport, card: _Card) -> str:
    refusal, effect = card.refusal({"kv_cache_dtype": "fp8"}), _fp8_effect(report)
    if refusal is not None:
        return f"Not here: {refusal}"
    if effect is None:
        return "Not known: this run did not try it. Memory allows it; whether the answers stay good is not shown."
    if str((report.recommendation.settings or {}).get("kv_cache_dtype", "")).startswith("fp8"):
        return f"Yes: this run recommends it ({effect.verdict}: {effect.why})"
    if effect.verdict == "failed":
        return f"No: it failed here ({effect.why})"
    return f"Not shown to be safe: {effect.verdict}: {effect.why}"


def _fp8_facts(report: TuneReport, card: _Card) -> Iterator[tuple[str, str]]:
    problem, effect = report.problem, _fp8_effect(report)
    longest, target = problem.lengths.longest_request, problem.target_concurrency
    auto = card.requests({"kv_cache_dtype": "auto"}, longest)
    fp8 = card.requests({"kv_cache_dtype": "fp8"}, longest)
    yield "What it buys", f"{figure(auto)} → {figure(fp8)} requests of {longest:,} tokens at once"
    if auto is not None:
        needed = "no" if auto >= target else "yes"
        yield (
            "Needed for this target",
            f"{needed}: the unquantised cache holds {auto:,} of the longest requests, the target is {target:,}",
        )
    refusal = card.refusal({"kv_cache_dtype": "fp8"})
    yield (
        "Does vLLM take it on this card",
        "yes, by its rules for this version and card" if refusal is None else refusal,
    )
    if effect is None:
        yield "Speed", "not measured in this run"
        return
    interval = (
        "no interval"
        if effect.change_low is None or effect.change_high is None
        else f"95 % interval {percent(effect.change_low)} to {percent(effect.change_high)}"
    )
    yield (
        "Speed",
        f"{percent(effect.output_throughput_change)} output tokens/s, {interval} (trial {effect.to_trial})",
    )


def _when_full(report: TuneReport, card: _Card) -> Iterator[FirstChange]:
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
        and survived.gpu_memory_utilization > chosen
        and survived.kv_cache_bytes
    ):
        after = card.now.plan.concurrent_requests(card.now.plan.num_blocks(survived.kv_cache_bytes), tokens)
        yield FirstChange(
            symptom,
            f"gpu_memory_utilization {utilization(survived.gpu_memory_utilization)}",
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
        yield FirstChange(
            symptom,
            flags,
            f"{figure(before)} → {figure(card.requests(advice.change, tokens))} requests of {tokens:,} tokens at once; {advice.why}",
            "memory model",
        )
        count += 1
        if count == _ADVICE_SHOWN:
            return


def _when_slow(report: TuneReport, card: _Card) -> Iterator[FirstChange]:
    """What the sweep of one server showed at fewer and at more users, and what was switched off."""
    target, curve = report.problem.target_concurrency, report.recommendation.curve
    here = next((p for p in curve if p.concurrency == target), None)
    if here is not None:
        fewer = max((p for p in curve if p.concurrency < target), key=lambda p: p.concurrency, default=None)
        more = min((p for p in curve if p.concurrency > target), key=lambda p: p.concurrency, default=None)
        if fewer is not None:
            yield from _with_fewer(here, fewer)
        if more is not None:
            yield _with_more(here, more)
    if card.settings.enforce_eager:
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
                f"{name} {figure(now, digits)} → {figure(then, digits)} ms while {fewer.concurrency} are served; {cost}",
                f"measured in trial {here.trial}, {here.concurrency} and {fewer.concurrency} users",
            )


def _with_more(here: LoadSummary, more: LoadSummary) -> FirstChange:
    old, new = here.output_throughput, more.output_throughput
    speed = f"{figure(old)} → {figure(new)} tokens/s, TPOT p99 {figure(here.p99_tpot_ms, 1)} → {figure(more.p99_tpot_ms, 1)} ms"
    buys = speed if old and new and new > old * (1 + LAUNCH_NOISE) else f"nothing that was measured: {speed}"
    return FirstChange(
        "Too few tokens a second in all",
        f"more at once: max_num_seqs {more.concurrency}",
        buys,
        f"measured in trial {here.trial}, {here.concurrency} and {more.concurrency} users",
    )


def _with_graphs(card: _Card) -> FirstChange:
    with_graphs = card.planner.estimate(card.settings.with_flags(enforce_eager=False))
    cost = with_graphs.budget.line("cuda_graphs").bytes.mid + with_graphs.overhead.cuda_graphs_outside.mid
    return FirstChange(
        "Slow between tokens",
        "enforce_eager off: vLLM compiles and captures graphs",
        f"{format_gib(cost)} for graphs and a longer start; the speed was not measured in this run",
        "memory model",
    )
