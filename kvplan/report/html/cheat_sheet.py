"""What holds for this model on this card beyond the run's own workload.

Where the run measured the KV cache, its bytes are the ones used, and the memory model gives only the
difference that other settings make; the blocks and requests are vLLM's own arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.report.html.first_changes import when_full, when_slow
from kvplan.report.html.tuned_card import TunedCard
from kvplan.report.tune_text import figure, percent
from kvplan.tune.identity import workload_from_record
from kvplan.units import round_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvplan.load.workload import Workload
    from kvplan.report.html.first_changes import FirstChange
    from kvplan.report.tune import TuneReport
    from kvplan.tune.effects import KnobEffect


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
class CheatSheet:
    """The sheet; `refusal` says why there is none."""

    basis: str = ""
    classes: tuple[ClassRow, ...] = ()
    fp8_verdict: str = ""
    fp8: tuple[tuple[str, str], ...] = ()
    first_changes: tuple[FirstChange, ...] = ()
    refusal: str | None = None


def cheat_sheet(report: TuneReport, presets: Mapping[str, Workload]) -> CheatSheet:
    """The sheet of a run.

    Args:
        report: the run.
        presets: classes of traffic by name; the run's own comes first by itself.
    """
    try:
        card = TunedCard.of(report)
        own = workload_from_record(report.header["context"]["workload"])
        named = {f"this run: {own.name}": own, **presets}
        return CheatSheet(
            basis=card.basis,
            classes=tuple(_class_row(card, name, workload) for name, workload in named.items()),
            fp8_verdict=_fp8_verdict(report, card),
            fp8=tuple(_fp8_facts(report, card)),
            first_changes=(*when_full(report, card), *when_slow(report, card)),
        )
    except InputError as error:
        return CheatSheet(refusal=error.message)


def _class_row(card: TunedCard, name: str, workload: Workload) -> ClassRow:
    """The settings for one class of traffic."""
    longest = workload.longest_total_len
    length = round_up(longest, card.now.plan.block_size)
    mean, p95 = round(workload.mean_total_len), workload.total_len_quantile(0.95)
    if length > card.planner.shape.max_model_len:
        return ClassRow(name, mean, p95, longest, None, None, None, None, None)
    auto = {"max_model_len": length, "kv_cache_dtype": "auto"}
    return ClassRow(
        name,
        mean,
        p95,
        longest,
        length,
        at_once_mean=card.requests(auto, mean),
        at_once_p95=card.requests(auto, p95),
        at_once_longest=card.requests(auto, longest),
        at_once_p95_fp8=card.requests(auto | {"kv_cache_dtype": "fp8"}, p95),
    )


def _fp8_effect(report: TuneReport) -> KnobEffect | None:
    effects = report.recommendation.effects
    return next(
        (e for e in effects if e.knob == "kv_cache_dtype" and str(e.to_value).startswith("fp8")), None
    )


def _fp8_verdict(report: TuneReport, card: TunedCard) -> str:
    refusal, effect = card.refusal({"kv_cache_dtype": "fp8"}), _fp8_effect(report)
    if refusal is not None:
        return f"Not here: {refusal}"
    if effect is None:
        return "Not known: this run did not try it, and nothing shows that the answers stay good."
    settings = report.recommendation.settings or {}
    if report.recommendation.met and str(settings.get("kv_cache_dtype", "")).startswith("fp8"):
        passed = any(f.verdict.outcome == "passes" for f in report.recommendation.quality)
        said = "Yes: this run recommends it" if passed else "Chosen, and not shown to be safe"
        return f"{said} ({effect.verdict}: {effect.why})"
    if effect.verdict == "failed":
        return f"No: it failed here ({effect.why})"
    return f"Not shown to be safe: {effect.why}."


def _fp8_facts(report: TuneReport, card: TunedCard) -> Iterator[tuple[str, str]]:
    problem, effect = report.problem, _fp8_effect(report)
    longest, target = problem.lengths.longest_request, problem.target_concurrency
    auto = card.requests({"kv_cache_dtype": "auto"}, longest)
    fp8 = card.requests({"kv_cache_dtype": "fp8"}, longest)
    yield "What it buys", f"{figure(auto)} → {figure(fp8)} requests of {longest:,} tokens at once"
    if auto is not None:
        needed = "no" if auto >= target else "yes"
        yield (
            "Needed for this target",
            f"{needed}: the unquantised cache holds {auto:,} of the longest, the target is {target:,}",
        )
    refusal = card.refusal({"kv_cache_dtype": "fp8"})
    yield "Does vLLM take it on this card", refusal or "yes, by its rules for this version and card"
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
