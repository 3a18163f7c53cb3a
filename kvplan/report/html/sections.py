"""The parts of the page that are figures and tables: one idea each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.errors import InputError
from kvplan.report.html import figures, speed_figures, tables
from kvplan.report.html.ledger import measured_ledger, predicted_ledger
from kvplan.report.html.pareto import candidates
from kvplan.report.html.samples import memory_series
from kvplan.report.html.tuned_card import planner_of
from kvplan.report.html.words import listed
from kvplan.report.quality import quality_line
from kvplan.report.tune_text import utilization
from kvplan.tune.problem import settings_from_dict
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvplan.report.html.figures import Drawn
    from kvplan.report.html.ledger import Ledger
    from kvplan.report.html.tables import Table
    from kvplan.report.tune import TuneReport

_FIGURES_OF_MEMORY: Final = 60
"""Trials whose memory is drawn: an exhaustive grid has hundreds, and the page must stay small."""
_NAMED_WITHOUT_SAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: figures and tables of one idea."""

    name: str
    title: str
    lead: str
    drawn: tuple[Drawn, ...] = ()
    table: Table | None = None
    missing: str = "n/a"
    """What is said when there is neither."""


def sections(report: TuneReport, folder: Path) -> Iterator[Section]:
    """Every part, in the order of the page; to be used within `drawing()`."""
    answer, problem = report.recommendation, report.problem
    ledgers = tuple(_ledgers(report))
    yield Section(
        "ledger",
        "Where the card's memory goes",
        f"The {report.chosen_as} setting as it ran, above what the memory model says of it without a launch.",
        (figures.ledger_bar(ledgers),) if ledgers else (),
        tables.ledger_table(ledgers) if ledgers else None,
        "n/a: nothing started, and the memory model has no rule for this model.",
    )
    yield Section(
        "boundary",
        "Memory boundary",
        _headroom(report),
        _all_of(figures.boundary_bracket(report)),
        tables.boundary_table(report),
        "n/a: no utilisation was tried.",
    )
    first = answer.first_preemption
    preempted = (
        "No request was preempted at any of these loads."
        if first is None
        else f"The first preemptions came at {first:,} users."
    )
    yield Section(
        "curve",
        "One server under rising load",
        preempted if answer.curve else "",
        _all_of(speed_figures.load_curve(answer.curve, answer.measured, report.chosen_as)),
        tables.curve_table(answer.curve, answer.measured, report.chosen_as),
        "n/a: no load was measured.",
    )
    points = candidates(problem, report.trials)
    yield Section(
        "pareto",
        "Throughput, headroom and time a token",
        f"All settings measured at the target of {problem.target_concurrency:,} users. Launches that should "
        f"be as fast differed by up to {answer.launch_noise:.0%}: nearer points are not told apart.",
        _all_of(speed_figures.pareto_front(points, answer.trial, report.chosen_as)),
        tables.pareto_table(points, answer.trial, problem.card_bytes),
        "n/a: no setting was measured at the target.",
    )
    yield Section(
        "effects",
        "What each knob changed, one at a time",
        "Against the probe, everything else equal.",
        _all_of(speed_figures.knob_effects(answer.effects)),
        tables.effects_table(answer.effects),
        "n/a: no other value of a knob was tried.",
    )
    if answer.quality:
        said = ". ".join(quality_line(finding) for finding in answer.quality) + "."
        table = tables.quality_table(answer.quality)
        yield Section("answers", "Answers of the quantised KV cache", said, table=table, missing=said)
    yield _memory_section(report, folder)
    yield Section(
        "predictions",
        "Predicted beside measured",
        "What arithmetic and the memory model said before the launch that measured it.",
        table=tables.predictions_table(answer.predictions),
        missing="n/a: nothing was predicted that was also measured.",
    )


def _memory_section(report: TuneReport, folder: Path) -> Section:
    series = memory_series(report.trials, folder)
    longest = max((one.points[-1][0] for one in series), default=1.0)
    drawn = tuple(
        figures.memory_over_time(one, report.problem.card_bytes, max(longest, 1.0))
        for one in series[:_FIGURES_OF_MEMORY]
    )
    without = [f"#{t.number}" for t in report.trials if t.number not in {one.trial.number for one in series}]
    lead = "Sampled while vLLM ran; the dashed line is the card."
    if without:
        lead += f" No samples were kept of {listed(without, _NAMED_WITHOUT_SAMPLES)}."
    if len(series) > len(drawn):
        lead += f" The first {len(drawn)} of {len(series)} trials are drawn."
    missing = "n/a: no memory samples beside this journal."
    return Section("memory", "Memory over time", lead if drawn else "", drawn, missing=missing)


def _all_of(drawn: Drawn | None) -> tuple[Drawn, ...]:
    return () if drawn is None else (drawn,)


def _ledgers(report: TuneReport) -> Iterator[Ledger]:
    answer, problem = report.recommendation, report.problem
    trial = next((t for t in report.trials if t.number == answer.trial), None)
    measured = measured_ledger(problem.card_bytes, trial)
    if measured is not None:
        yield measured
    settings = problem.base_settings() if answer.settings is None else settings_from_dict(answer.settings)
    if settings.gpu_memory_utilization is None and settings.kv_cache_memory_bytes is None:
        settings = settings.with_flags(gpu_memory_utilization=report.header["assumed"]["probe_utilization"])
    try:
        yield predicted_ledger(planner_of(report.header, problem.target_concurrency).estimate(settings))
    except InputError:
        return


def _headroom(report: TuneReport) -> str:
    answer = report.recommendation
    if answer.headroom_utilization is None or answer.headroom_bytes is None:
        return ""
    name = "recommendation" if answer.met else "nearest setting"
    text = (
        f"The {name} is {utilization(answer.headroom_utilization)} of the card "
        f"({format_gib(answer.headroom_bytes)}) below what survived"
    )
    chosen = (answer.settings or {}).get("gpu_memory_utilization")
    if answer.boundary_failed is not None and chosen is not None:
        distance = answer.boundary_failed.gpu_memory_utilization - chosen
        in_gib = format_gib(distance * report.problem.card_bytes)
        text += f" and {utilization(distance)} ({in_gib}) below what failed"
    if answer.peak_spread_bytes is not None:
        spread = format_gib(answer.peak_spread_bytes)
        text += f". Peaks of memory outside vLLM's budget differed by {spread} between launches"
    return f"{text}."
