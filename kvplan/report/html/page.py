"""The page: everything that it shows, worked out from the run, and the template filled in."""

from __future__ import annotations

import base64
import hashlib
import posixpath
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from kvplan import __version__
from kvplan.errors import InputError, MissingDependencyError
from kvplan.report.html import tables
from kvplan.report.html.cheat_sheet import cheat_sheet
from kvplan.report.html.commands import launch_command, tune_command
from kvplan.report.html.forms import deployment_of, forms_of
from kvplan.report.html.safe import copied, finalize
from kvplan.report.html.sections import sections
from kvplan.report.html.svg import drawing
from kvplan.report.html.tuned_card import planner_of
from kvplan.report.tune_text import LIMITS
from kvplan.tune.problem import settings_from_dict
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jinja2 import Environment

    from kvplan.load.workload import Workload
    from kvplan.report.html.forms import Form
    from kvplan.report.tune import TuneReport


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed trial and its evidence."""

    trial: int
    kind: str
    evidence: str | None
    log_path: str | None


def render(report: TuneReport, folder: Path) -> str:
    """The whole page; see `render_html`."""
    environment = template_environment()
    script, digest = page_script()
    with drawing():
        parts = tuple(sections(report, folder))
    sheet = cheat_sheet(report, _presets())
    return environment.get_template("page.html.j2").render(
        **_head(report),
        version=__version__,
        script=script,
        script_digest=digest,
        sections=parts,
        failures=tuple(_failures(report)),
        launches=tables.launches_table(report),
        sheet=sheet,
        classes=tables.classes_table(sheet),
        first_changes=tables.first_changes_table(sheet),
        forms=_forms(report),
        **_reproduction(report, folder),
        notes=tuple(_notes(report)),
    )


def page_script() -> tuple[str, str]:
    """The script of every page, and its digest as a content security policy takes it."""
    script = (resources.files("kvplan.report.html") / "templates" / "page.js").read_text("utf-8").strip()
    return script, base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()


def template_environment() -> Environment:
    """Where the pages' templates are found and how they escape.

    Raises:
        MissingDependencyError: jinja2 is not installed.
    """
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
        "title": f"{posixpath.basename(problem.model.rstrip('/')) or problem.model} on {_card(report)}",
        "verdict": _verdict(report),
        "measured": tables.measured_rows(report),
        "facts": (
            ("model", problem.model),
            ("card", f"{format_gib(problem.card_bytes)}: {_limits(report)}"),
            ("machine", where or "a GPU"),
            ("vLLM", context["vllm_version"]),
            ("workload", _workload(report)),
            ("run", f"{report.run}, begun {report.header['at']}"),
            ("cost", report.cost),
        ),
    }


def _verdict(report: TuneReport) -> str:
    so_far = "" if report.tuned_by is None else f"Being tuned by {report.tuned_by}; so far: "
    return so_far + _answer(report)


def _answer(report: TuneReport) -> str:
    answer, target = report.recommendation, report.problem.target_concurrency
    if answer.met:
        return f"Meets the target: {target:,} users at once."
    if answer.settings is None:
        return f"Nothing was shown to serve {target:,} users at once."
    return f"No setting was shown to meet the target of {target:,} users at once. The nearest is below."


def _card(report: TuneReport) -> str:
    size = format_gib(report.problem.card_bytes)
    if report.problem.device == "cpu":
        return f"a CPU card of {size}"
    return f"{report.header['gpu']['name']}, {size}"


def _limits(report: TuneReport) -> str:
    return "; ".join(LIMITS.get(name, name) for name in report.memory_limit.split(", "))


def _workload(report: TuneReport) -> str:
    lengths = report.problem.lengths
    return (
        f"{lengths.mean_input:,} tokens in and {lengths.mean_output:,} out on average, at most "
        f"{lengths.longest_input:,} and {lengths.longest_output:,}"
    )


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
    if report.tuned_by is not None:
        yield f"Not finished: {report.tuned_by} is tuning it."
    elif not report.is_finished:
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
