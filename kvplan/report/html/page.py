"""The page: everything that it shows, worked out from the run, and the template filled in."""

from __future__ import annotations

import base64
import hashlib
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.errors import InputError, MissingDependencyError
from kvplan.report.html import figures, tables
from kvplan.report.html.cheat_sheet import cheat_sheet, planner_of
from kvplan.report.html.commands import launch_command, tune_command
from kvplan.report.html.forms import deployment_of, forms_of
from kvplan.report.html.ledger import measured_ledger, predicted_ledger
from kvplan.report.html.pareto import candidates
from kvplan.report.html.safe import copied, finalize
from kvplan.report.html.samples import memory_series
from kvplan.report.html.svg import drawing
from kvplan.report.tune_text import LIMITS, utilization
from kvplan.tune.problem import settings_from_dict
from kvplan.units import format_duration, format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jinja2 import Environment

    from kvplan.load.workload import Workload
    from kvplan.report.html.figures import Drawn
    from kvplan.report.html.forms import Form
    from kvplan.report.html.ledger import Ledger
    from kvplan.report.html.tables import Table
    from kvplan.report.tune import TuneReport

_FIGURES_OF_MEMORY: Final = 60
"""Trials whose memory is drawn: an exhaustive grid has hundreds, and the page must stay small."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed trial and its evidence."""

    trial: int
    kind: str
    evidence: str | None
    log_path: str | None


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


def render(report: TuneReport, folder: Path) -> str:
    """The whole page; see `render_html`."""
    environment = _environment()
    script, _, _ = environment.loader.get_source(environment, "page.js")  # type: ignore[union-attr]
    script = script.strip()
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    with drawing():
        sections = tuple(_sections(report, folder))
    sheet = cheat_sheet(report, _presets())
    return environment.get_template("page.html.j2").render(
        **_head(report),
        version=__version__,
        script=script,
        script_digest=digest,
        sections=sections,
        failures=tuple(_failures(report)),
        launches=tables.launches_table(report),
        sheet=sheet,
        classes=tables.classes_table(sheet),
        first_changes=tables.first_changes_table(sheet),
        forms=_forms(report),
        **_reproduction(report, folder),
        notes=tuple(_notes(report)),
    )


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError(
            "the HTML report needs jinja2", "pip install 'kvplan-tuner[report]'"
        ) from error
    from markupsafe import Markup, escape

    def pasted(text: str) -> Markup | None:
        whole = copied(text)
        return None if whole is None else escape(whole)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvplan.report.html"),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pasted"] = pasted
    environment.filters["ours"] = Markup  # SVG, style and script that this package made
    return environment


def _presets() -> dict[str, Workload]:
    from kvplan.load.workload import load_workload
    from kvplan.load.workload_file import preset_paths

    return {name: load_workload(path) for name, path in sorted(preset_paths().items())}


def _head(report: TuneReport) -> dict[str, Any]:
    problem, context = report.problem, report.header["context"]
    machine, on_gpu = context["machine"], problem.device == "cuda"
    where = machine.get("gpu") if on_gpu else f"{machine['cores']} cores of {machine['cpu']}"
    return {
        "report": report,
        "answer": report.recommendation,
        "model": posixpath.basename(problem.model.rstrip("/")) or problem.model,
        "card": format_gib(problem.card_bytes),
        "verdict": _verdict(report),
        "measured": tables.measured_rows(report),
        "facts": (
            ("model", problem.model),
            ("card", f"{format_gib(problem.card_bytes)}: {_limits(report)}"),
            ("machine", where or "a GPU"),
            ("vLLM", context["vllm_version"]),
            ("workload", _workload(report)),
            ("run", f"{report.run}, begun {report.header['at']}"),
            ("cost", f"{len(report.trials)} launches, {format_duration(report.wall_s)}"),
        ),
    }


def _verdict(report: TuneReport) -> str:
    answer, target = report.recommendation, report.problem.target_concurrency
    if answer.met:
        return f"Meets the target: {target:,} users at once."
    if answer.settings is None:
        return f"Nothing was shown to serve {target:,} users at once."
    return f"No setting was shown to meet the target of {target:,} users at once. The nearest is below."


def _limits(report: TuneReport) -> str:
    return "; ".join(LIMITS.get(name, name) for name in report.memory_limit.split(", "))


def _workload(report: TuneReport) -> str:
    lengths = report.problem.lengths
    return (
        f"{lengths.mean_input:,} tokens in and {lengths.mean_output:,} out on average, at most "
        f"{lengths.longest_input:,} and {lengths.longest_output:,}"
    )


def _sections(report: TuneReport, folder: Path) -> Iterator[Section]:
    answer, problem = report.recommendation, report.problem
    ledgers = tuple(_ledgers(report))
    yield Section(
        "ledger",
        "Where the card's memory goes",
        "The recommended setting as it ran, above what the memory model says of it without a launch.",
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
        _all_of(figures.load_curve(answer.curve, answer.measured)),
        tables.curve_table(answer.curve, answer.measured),
        "n/a: no load was measured.",
    )
    points = candidates(problem, report.trials)
    yield Section(
        "pareto",
        "Throughput, headroom and time a token",
        f"Every setting that was measured at the target of {problem.target_concurrency:,} users. Launches of one "
        "setting differ by about 5 % in tokens a second: nearer points are not told apart.",
        _all_of(figures.pareto_front(points, answer.trial)),
        tables.pareto_table(points, answer.trial),
        "n/a: no setting was measured at the target.",
    )
    yield Section(
        "effects",
        "What each knob changed, one at a time",
        "Against the probe, everything else equal.",
        _all_of(figures.knob_effects(answer.effects)),
        tables.effects_table(answer.effects),
        "n/a: no other value of a knob was tried.",
    )
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
        lead += (
            f" No samples were kept of {', '.join(without[:20])}{' and more' if len(without) > 20 else ''}."
        )
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
    text = (
        f"The recommendation is {utilization(answer.headroom_utilization)} of the card "
        f"({format_gib(answer.headroom_bytes)}) below what survived"
    )
    chosen = (answer.settings or {}).get("gpu_memory_utilization")
    if answer.boundary_failed is not None and chosen is not None:
        distance = answer.boundary_failed.gpu_memory_utilization - chosen
        text += f" and {utilization(distance)} ({format_gib(distance * report.problem.card_bytes)}) below what failed"
    if answer.peak_spread_bytes is not None:
        text += f". Peaks of memory outside vLLM's budget differed by {format_gib(answer.peak_spread_bytes)} between launches"
    return f"{text}."


def _failures(report: TuneReport) -> Iterator[Failure]:
    for end in report.recommendation.failures:
        yield Failure(end.trial, tables.failure_of(end), end.evidence, end.log_path)


def _forms(report: TuneReport) -> tuple[Form, ...]:
    settings = report.recommendation.settings
    if settings is None:
        return ()
    try:
        planner = planner_of(report.header, report.problem.target_concurrency)
        caching = planner.estimate(settings_from_dict(settings)).settings.enable_prefix_caching
    except InputError:
        caching = bool(settings.get("enable_prefix_caching", True))
    return forms_of(deployment_of(report, prefix_caching=caching))


def _reproduction(report: TuneReport, folder: Path) -> dict[str, Any]:
    command, notes = tune_command(report)
    kept = ((trial, launch_command(report, trial, folder)) for trial in report.trials)
    return {
        "tune_command": command,
        "tune_notes": notes,
        "launch_commands": tuple((trial, command) for trial, command in kept if command is not None),
    }


def _notes(report: TuneReport) -> Iterator[str]:
    yield from report.recommendation.notes
    if not report.is_finished:
        yield f"Not finished; it goes on with: kvplan tune --resume {report.run}"
    elif report.recommendation.stopped:
        yield f"Ended early: {report.recommendation.stopped}"
    if report.problem.device == "cpu":
        yield (
            "On CPU gpu_memory_utilization was applied by kvplan with vLLM's accounting, through "
            "--kv-cache-memory-bytes: vLLM's own share there is of a NUMA node's total."
        )
    yield from (f"Assumed: {text}" for text in report.header.get("assumptions", ()))
    yield from (f"Warning: {text}" for text in report.warnings)
