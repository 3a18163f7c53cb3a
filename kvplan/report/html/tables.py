"""The report's tables: cells of text, with what is a number said once a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.report.html.figures import swatch
from kvplan.report.html.ledger import TITLES
from kvplan.report.html.words import finite, gib_column
from kvplan.report.quality import HEADER, LEFT, quality_rows
from kvplan.report.tune_text import UNKNOWN, changed_flags, figure, gib, percent, utilization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.report.html.cheat_sheet import CheatSheet
    from kvplan.report.html.ledger import Ledger
    from kvplan.report.html.pareto import Candidate
    from kvplan.report.tune import TuneReport
    from kvplan.tune.answers import QualityFinding
    from kvplan.tune.effects import KnobEffect
    from kvplan.tune.recommend import BoundaryEnd, LoadSummary, Prediction
    from kvplan.tune.trial import Trial


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of each row is its header."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[int] = frozenset({0})
    highlighted: int | None = None
    """The row that is the recommendation."""
    keys: tuple[str, ...] = ()
    """CSS colours of a figure that the rows explain, one a row."""


def ledger_table(ledgers: Sequence[Ledger]) -> Table:
    """Every part of the card in every ledger."""
    card = ledgers[0].total_bytes
    lines = [line for line in TITLES if any(ledger.bytes_of(line) is not None for ledger in ledgers)]
    rows = [
        (TITLES[line], *(gib_column(ledger.bytes_of(line), card) for ledger in ledgers)) for line in lines
    ]
    total = ("the card", *(gib_column(ledger.total_bytes, card) for ledger in ledgers))
    return Table(
        "The card's memory, part by part",
        ("part", *(f"{ledger.name}, GiB" for ledger in ledgers)),
        (*rows, total),
        keys=(*(swatch(line) for line in lines), ""),
    )


def boundary_table(report: TuneReport) -> Table | None:
    """The ends of the bracket and the recommendation between them."""
    answer, card = report.recommendation, report.problem.card_bytes
    chosen = next((t for t in report.trials if t.number == answer.trial), None)
    kv_bytes = None if chosen is None else chosen.kv_cache_bytes
    rows: list[tuple[str, ...]] = []

    def end(name: str, found: BoundaryEnd | None) -> None:
        if found is not None:
            outcome = failure_of(found) if found.failure else "survived"
            at = utilization(finite(found.gpu_memory_utilization))
            rows.append((name, at, gib_column(found.kv_cache_bytes, card), f"#{found.trial}", outcome))

    end("lowest that failed", answer.boundary_failed)
    end("highest that survived", answer.boundary_survived)
    settings = answer.settings or {}
    highlighted = None
    if settings.get("gpu_memory_utilization") is not None:
        highlighted = len(rows)
        at = utilization(settings["gpu_memory_utilization"])
        state = "confirmed from a cold start" if answer.is_confirmed else "not confirmed"
        rows.append((report.chosen_as, at, gib_column(kv_bytes, card), f"#{answer.trial}", state))
    if answer.low_end_utilization is not None:
        at = utilization(answer.low_end_utilization)
        rows.append(("one request of max_model_len just fits", at, UNKNOWN, UNKNOWN, "arithmetic"))
    end("too low", answer.low_end)
    header = ("", "utilisation", "KV cache, GiB", "trial", "outcome")
    return Table("The memory boundary", header, tuple(rows), frozenset({0, 4}), highlighted) if rows else None


def failure_of(end: BoundaryEnd) -> str:
    """The class of a failure, and the kernel's own count where it was the kernel."""
    if end.failure == "killed" and end.oom_kill_count:
        return f"killed by the kernel (oom_kill {end.oom_kill_count})"
    return end.failure or UNKNOWN


def curve_table(
    curve: Sequence[LoadSummary], chosen: LoadSummary | None, chosen_as: str = "recommended"
) -> Table | None:
    """One server under rising load, and the recommended (or nearest) setting at the target."""
    if not curve and chosen is None:
        return None
    rows = [_load_row(f"{point.concurrency}", point) for point in curve]
    if chosen is not None:
        rows.append(_load_row(f"{chosen.concurrency}, {chosen_as}", chosen))
    times = ("TTFT p50, ms", "TTFT p99, ms", "TPOT p50, ms", "TPOT p99, ms")
    header = ("users", "tokens/s", *times, "preempted", "KV used")
    last = None if chosen is None else len(rows) - 1
    return Table("Throughput and latency by number of users", header, tuple(rows), frozenset({0}), last)


def _load_row(name: str, point: LoadSummary) -> tuple[str, ...]:
    return (
        name,
        figure(point.output_throughput),
        figure(point.p50_ttft_ms),
        figure(point.p99_ttft_ms),
        figure(point.p50_tpot_ms, 1),
        figure(point.p99_tpot_ms, 1),
        figure(point.preemptions),
        UNKNOWN if point.peak_kv_usage is None else f"{point.peak_kv_usage:.0%}",
    )


def pareto_table(points: Sequence[Candidate], chosen: int | None, card_bytes: int) -> Table | None:
    """Every measured setting, and whether another beats it in everything."""
    rows = tuple(
        (
            f"#{p.trial}",
            p.settings,
            figure(p.output_throughput),
            figure(p.p99_tpot_ms, 1),
            gib_column(p.headroom_bytes, card_bytes),
            figure(p.kv_cache_tokens),
            ("on the front" if p.is_on_front else "beaten") if p.is_complete else UNKNOWN,
        )
        for p in points
    )
    marked = next((i for i, p in enumerate(points) if p.trial == chosen), None)
    header = ("trial", "settings", "tokens/s", "TPOT p99, ms", "headroom, GiB", "KV tokens", "front")
    return (
        Table("Every setting measured at the target", header, rows, frozenset({0, 1, 6}), marked)
        if rows
        else None
    )


def effects_table(effects: Sequence[KnobEffect]) -> Table | None:
    """What each knob changed, with its interval where there is one."""
    rows = tuple(_effect_row(effect) for effect in effects)
    header = ("knob", "from", "to", "tokens/s", "95 % interval", "KV tokens", "verdict", "why")
    return Table("One variable at a time", header, rows, frozenset({0, 1, 2, 6, 7})) if rows else None


def _effect_row(effect: KnobEffect) -> tuple[str, ...]:
    low, high = effect.change_low, effect.change_high
    interval = UNKNOWN if low is None or high is None else f"{percent(low)} to {percent(high)}"
    is_capacity = effect.verdict == "capacity"
    return (
        effect.knob,
        f"{effect.from_value}",
        f"{effect.to_value}",
        "as before" if is_capacity else percent(effect.output_throughput_change),
        "" if is_capacity else interval,
        f"{figure(effect.kv_cache_tokens_from)} → {figure(effect.kv_cache_tokens_to)}",
        effect.verdict,
        effect.why,
    )


def quality_table(findings: Sequence[QualityFinding]) -> Table | None:
    """How the answers of each quantised cache compare with those of the unquantised one."""
    rows = tuple(quality_rows(findings))
    return Table("Answers, measure by measure", HEADER, rows, frozenset(LEFT)) if rows else None


def predictions_table(predictions: Sequence[Prediction]) -> Table | None:
    """What was known before it was measured, beside what was measured."""
    rows = tuple(
        (p.name, _quantity(p, p.predicted), _quantity(p, p.measured), _gap(p), p.source) for p in predictions
    )
    header = ("", "predicted", "measured", "difference", "predicted from")
    return Table("Predictions and what came of them", header, rows, frozenset({0, 4})) if rows else None


def _quantity(prediction: Prediction, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if prediction.unit == "bytes":
        return gib(value)
    return utilization(value) if prediction.unit == "utilization" else f"{value:,.0f}"


def _gap(prediction: Prediction) -> str:
    predicted, measured = prediction.predicted, prediction.measured
    if predicted is None or measured is None:
        return UNKNOWN
    if prediction.unit == "utilization":
        return f"{measured - predicted:+.3f}"
    if measured == predicted:
        return "none"
    return percent(measured / predicted - 1) if predicted else UNKNOWN


def launches_table(report: TuneReport) -> Table | None:
    """Every launch of the run."""
    rows = tuple(_launch_row(trial, report.problem.card_bytes) for trial in report.trials)
    marked = next((i for i, t in enumerate(report.trials) if t.number == report.recommendation.trial), None)
    header = (
        "trial",
        "phase",
        "what was tried",
        "what it decides",
        "outcome",
        "ready, s",
        "whole, s",
        "highest memory, GiB",
    )
    return Table("Launches, in order", header, rows, frozenset({0, 1, 2, 3, 4}), marked) if rows else None


def _launch_row(trial: Trial, card_bytes: int) -> tuple[str, ...]:
    launch = trial.launch
    return (
        f"#{trial.number}",
        trial.spec.phase,
        changed_flags(trial.spec.settings.given()),
        trial.spec.decides,
        "ok" if trial.status == "ok" else f"{trial.status}: {trial.failure or 'no class'}",
        figure(None if launch is None else launch.ready_s),
        figure(trial.wall_s),
        gib_column(None if launch is None else launch.peak_bytes or None, card_bytes),
    )


def classes_table(sheet: CheatSheet) -> Table | None:
    """Settings by class of traffic."""
    rows = tuple(
        (
            row.name,
            f"{row.mean_tokens:,}",
            f"{row.p95_tokens:,}",
            f"{row.longest_tokens:,}",
            figure(row.max_model_len),
            figure(row.at_once_p95),
            figure(row.at_once_mean),
            figure(row.at_once_longest),
            figure(row.at_once_p95_fp8),
        )
        for row in sheet.classes
    )
    lengths = ("traffic", "tokens, mean", "P95", "longest")
    served = ("--max-num-seqs up to", "at once, mean", "at once, longest", "up to, fp8 KV")
    header = (*lengths, "--max-model-len", *served)
    return Table("Settings by class of traffic", header, rows) if rows else None


def first_changes_table(sheet: CheatSheet) -> Table | None:
    """Symptom, change, what it buys."""
    rows = tuple((c.symptom, c.change, c.buys, c.known_from) for c in sheet.first_changes)
    header = ("when it is", "change first", "what it buys", "known from")
    return Table("What to change first", header, rows, frozenset({0, 1, 2, 3})) if rows else None


def measured_rows(report: TuneReport) -> tuple[tuple[str, str], ...]:
    """The figures of the recommendation, biggest first."""
    answer = report.recommendation
    load = answer.measured
    pairs: list[tuple[str, Any]] = [
        ("output tokens/s", None if load is None else figure(load.output_throughput)),
        ("TTFT p99", None if load is None else figure(load.p99_ttft_ms, 0, " ms")),
        ("TPOT p99", None if load is None else figure(load.p99_tpot_ms, 1, " ms")),
        ("requests of the longest length the KV cache holds", figure(answer.requests_at_longest)),
        ("distance to the highest survivor", gib(answer.headroom_bytes)),
        ("highest memory", gib(None if load is None else load.peak_memory_bytes)),
    ]
    return tuple((name, UNKNOWN if value is None else value) for name, value in pairs)
