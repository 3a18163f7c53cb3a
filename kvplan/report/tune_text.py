"""A tuning report as text for a terminal, or as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.report.quality import HEADER, LEFT, quality_line, quality_rows
from kvplan.report.table import render_table
from kvplan.units import GIB, format_bytes, format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.report.tune import TuneReport
    from kvplan.tune.effects import KnobEffect
    from kvplan.tune.recommend import BoundaryEnd, LoadSummary, Prediction
    from kvplan.tune.trial import Trial

LIMITS: Final = {
    "cgroup": "a kernel-enforced memory cgroup of that size",
    "rss": "no memory cgroup could be made: the process tree's RSS was watched instead",
    "gpu": "a GPU",
    "none": "nothing bounded the memory",
}
_SHOWN_OR_FIXED: Final = frozenset(
    {
        "model",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_seqs",
        "kv_cache_dtype",
        "block_size",
        "max_model_len",
        "enforce_eager",
        "dtype",
        "quantization",
        "tensor_parallel_size",
    }
)
UNKNOWN: Final = "n/a"
_NAMES: Final = {"recommended": "recommendation", "nearest": "nearest setting"}


def render_text(report: TuneReport, *, markdown: bool) -> str:
    """The whole report; the verdict is its first line."""
    sections: list[tuple[str | None, str | None]] = [
        (None, _headline(report, markdown=markdown)),
        (None, _block(report.command, markdown=markdown, language="sh")),
        ("Measured at the target", _measured(report, markdown=markdown)),
        ("Memory boundary", _boundary(report, markdown=markdown)),
        ("One server under rising load", _curve(report, markdown=markdown)),
        ("What each knob bought, one at a time", _effects(report, markdown=markdown)),
        ("Answers of the quantised KV cache", _answers(report, markdown=markdown)),
        ("Predicted beside measured", _predictions(report, markdown=markdown)),
        ("Launches", _launches(report, markdown=markdown)),
        ("Failures and their evidence", _failures(report, markdown=markdown)),
        ("vLLM YAML", _block(report.yaml, markdown=markdown, language="yaml")),
        ("How", "\n".join(_how(report, markdown=markdown))),
    ]
    parts = []
    for title, body in sections:
        if body:
            heading = f"## {title}\n\n" if markdown else f"{(title or '').upper()}\n"
            parts.append(body if title is None else heading + body)
    return "\n\n".join(parts)


def figure(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A measured number, or n/a."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}{unit}"


def percent(change: float | None) -> str:
    """A relative change with its sign."""
    return UNKNOWN if change is None else f"{100 * change:+.1f} %"


def utilization(value: float | None) -> str:
    """Utilisations of the search have three decimals, the low end five."""
    return UNKNOWN if value is None else f"{value:.5f}".rstrip("0").ljust(5, "0")


def gib(value: float | None) -> str:
    """GiB with two decimals, MiB and less in their own unit, or n/a."""
    if value is None:
        return UNKNOWN
    return format_gib(value) if value >= GIB / 10 else format_bytes(round(value))


def _headline(report: TuneReport, *, markdown: bool) -> str:
    answer, target = report.recommendation, report.problem.target_concurrency
    if answer.met:
        measured = answer.measured
        line = f"meets the target: {target} users at once"
        if measured is not None:
            line += (
                f", {figure(measured.output_throughput)} output tokens/s, TTFT p99 "
                f"{figure(measured.p99_ttft_ms, 0, ' ms')}, TPOT p99 {figure(measured.p99_tpot_ms, 1, ' ms')}"
            )
    else:
        known = "the nearest is shown" if answer.settings else "nothing to show"
        line = f"no setting was shown to meet the target of {target} users at once; {known}"
    line = f"**{line}**" if markdown else line
    if report.tuned_by is not None:
        line = f"being tuned by {report.tuned_by}; so far:\n{line}"
    reasons = [f"{'- ' if markdown else '  '}{reason}" for reason in answer.reasons]
    return "\n".join([line, *([""] if markdown and reasons else []), *reasons])


def _block(text: str | None, *, markdown: bool, language: str) -> str | None:
    if text is None:
        return None
    text = text.rstrip("\n")
    return f"```{language}\n{text}\n```" if markdown else "\n".join(f"  {line}" for line in text.split("\n"))


def _measured(report: TuneReport, *, markdown: bool) -> str | None:
    answer = report.recommendation
    measured = answer.measured
    if measured is None:
        return None
    state = "from a cold start" if answer.is_confirmed else "not confirmed from a cold start"
    rows = [
        ("output tokens/s", figure(measured.output_throughput)),
        ("requests/s", figure(measured.request_throughput, 2)),
        ("TTFT p50 / p99", f"{figure(measured.p50_ttft_ms)} / {figure(measured.p99_ttft_ms)} ms"),
        ("TPOT p50 / p99", f"{figure(measured.p50_tpot_ms, 1)} / {figure(measured.p99_tpot_ms, 1)} ms"),
        ("end to end p99", f"{figure(measured.p99_e2el_ms)} ms"),
        ("preemptions", figure(measured.preemptions)),
        ("answered / failed", f"{measured.completed} / {measured.failed}"),
        ("KV cache", f"{figure(answer.kv_cache_tokens)} tokens"),
        ("requests of the longest length it holds", figure(answer.requests_at_longest)),
        (
            "KV cache used at most",
            UNKNOWN if measured.peak_kv_usage is None else f"{measured.peak_kv_usage:.0%}",
        ),
        ("memory used at most", gib(measured.peak_memory_bytes)),
    ]
    where = f"trial {measured.trial}, {state}, {measured.repeats} repeats of {measured.concurrency} users"
    bullet = "- " if markdown else "  "
    notes = [f"{bullet}{note}" for note in measured.notes]
    table = render_table((where, ""), rows, markdown=markdown)
    return "\n\n".join([table, *(["\n".join(notes)] if notes else [])])


def _boundary(report: TuneReport, *, markdown: bool) -> str | None:
    answer = report.recommendation
    rows = []
    if answer.boundary_failed is not None:
        rows.append(
            _end_row(f"lowest that failed: {_failure(answer.boundary_failed)}", answer.boundary_failed)
        )
    elif answer.boundary_survived is not None:
        top = utilization(report.problem.space.highest_utilization)
        rows.append((f"no failure up to {top}", "", "", ""))
    if answer.boundary_survived is not None:
        rows.append(_end_row("highest that survived", answer.boundary_survived))
    if answer.settings is not None and answer.settings.get("gpu_memory_utilization") is not None:
        kv = answer.settings.get("kv_cache_memory_bytes")
        rows.append(
            (
                report.chosen_as,
                utilization(answer.settings["gpu_memory_utilization"]),
                gib(kv),
                f"{answer.trial}",
            )
        )
    if answer.low_end_utilization is not None:
        rows.append(
            ("one request of max_model_len just fits", utilization(answer.low_end_utilization), "", "")
        )
    if answer.low_end is not None:
        rows.append(_end_row(f"too low: {_failure(answer.low_end)}", answer.low_end))
    if not rows:
        return None
    card = f"of a card of {format_gib(report.problem.card_bytes)}"
    table = render_table((card, "utilisation", "KV cache", "trial"), rows, markdown=markdown)
    return "\n\n".join([table, *([_headroom(report)] if answer.headroom_bytes is not None else [])])


def _end_row(name: str, end: BoundaryEnd) -> tuple[str, str, str, str]:
    return name, utilization(end.gpu_memory_utilization), gib(end.kv_cache_bytes), f"{end.trial}"


def _failure(end: BoundaryEnd) -> str:
    if end.failure == "killed" and end.oom_kill_count:
        return f"killed by the kernel (oom_kill {end.oom_kill_count})"
    return end.failure or "unknown"


def _headroom(report: TuneReport) -> str:
    answer = report.recommendation
    text = (
        f"The {_NAMES[report.chosen_as]} is {utilization(answer.headroom_utilization)} of the card "
        f"({gib(answer.headroom_bytes)}) below what survived"
    )
    if answer.boundary_failed is not None and answer.settings is not None:
        to_failure = answer.boundary_failed.gpu_memory_utilization - answer.settings["gpu_memory_utilization"]
        distance = gib(to_failure * report.problem.card_bytes)
        text += f" and {utilization(to_failure)} ({distance}) below what failed"
    return (
        f"{text}. Peaks of memory outside vLLM's budget differed by "
        f"{gib(answer.peak_spread_bytes)} between launches."
    )


def _curve(report: TuneReport, *, markdown: bool) -> str | None:
    answer = report.recommendation
    if not answer.curve:
        return None
    rows = [_curve_row(point) for point in answer.curve]
    header = ("users", "tokens/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms", "preempted", "KV used")
    table = render_table(header, rows, left=(), markdown=markdown)
    if answer.first_preemption is None:
        said = "No request was preempted at any of these loads."
    else:
        said = f"The first preemptions came at {answer.first_preemption} users."
    return f"{table}\n\n{said} (trial {answer.curve[0].trial})"


def _curve_row(point: LoadSummary) -> tuple[str, ...]:
    return (
        f"{point.concurrency}",
        figure(point.output_throughput),
        figure(point.p50_ttft_ms),
        figure(point.p99_ttft_ms),
        figure(point.p50_tpot_ms, 1),
        figure(point.p99_tpot_ms, 1),
        figure(point.preemptions),
        UNKNOWN if point.peak_kv_usage is None else f"{point.peak_kv_usage:.0%}",
    )


def _effects(report: TuneReport, *, markdown: bool) -> str | None:
    effects = report.recommendation.effects
    if not effects:
        return None
    header = ("knob", "from", "to", "tokens/s", "95 % interval", "KV tokens", "verdict")
    table = render_table(header, [_effect_row(e) for e in effects], left=(0, 1, 2, 6), markdown=markdown)
    bullet = "- " if markdown else "  "
    why = [f"{bullet}{effect.knob} {effect.to_value}: {effect.why}" for effect in effects]
    return table + "\n\n" + "\n".join(why)


def _effect_row(effect: KnobEffect) -> tuple[str, ...]:
    interval = (
        UNKNOWN
        if effect.change_low is None or effect.change_high is None
        else f"{percent(effect.change_low)} to {percent(effect.change_high)}"
    )
    tokens = f"{figure(effect.kv_cache_tokens_from)} -> {figure(effect.kv_cache_tokens_to)}"
    speed = percent(effect.output_throughput_change)
    return (
        effect.knob,
        f"{effect.from_value}",
        f"{effect.to_value}",
        "as before" if effect.verdict == "capacity" else speed,
        "" if effect.verdict == "capacity" else interval,
        tokens,
        effect.verdict,
    )


def _answers(report: TuneReport, *, markdown: bool) -> str | None:
    found = report.recommendation.quality
    if not found:
        return None
    bullet = "- " if markdown else "  "
    lines = [f"{bullet}{quality_line(finding)}" for finding in found]
    rows = quality_rows(found)
    table = render_table(HEADER, rows, left=LEFT, markdown=markdown) + "\n\n" if rows else ""
    return table + "\n".join(lines)


def _predictions(report: TuneReport, *, markdown: bool) -> str | None:
    predictions = report.recommendation.predictions
    if not predictions:
        return None
    rows = [
        (p.name, _quantity(p, p.predicted), _quantity(p, p.measured), _gap(p), p.source) for p in predictions
    ]
    return render_table(
        ("", "predicted", "measured", "difference", "from"), rows, left=(0, 4), markdown=markdown
    )


def _quantity(prediction: Prediction, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if prediction.unit == "bytes":
        return gib(value)
    return utilization(value) if prediction.unit == "utilization" else f"{value:,.0f}"


def _gap(prediction: Prediction) -> str:
    if prediction.predicted is None or prediction.measured is None:
        return UNKNOWN
    if prediction.unit == "utilization":
        return f"{prediction.measured - prediction.predicted:+.3f}"
    if prediction.measured == prediction.predicted:
        return "none"
    return percent(prediction.measured / prediction.predicted - 1) if prediction.predicted else UNKNOWN


def _launches(report: TuneReport, *, markdown: bool) -> str | None:
    if not report.trials:
        return None
    header = ("", "phase", "what was tried", "outcome", "ready", "whole", "peak")
    rows = [_launch_row(trial) for trial in report.trials]
    return render_table(header, rows, left=(1, 2, 3), markdown=markdown)


def _launch_row(trial: Trial) -> tuple[str, ...]:
    launch = trial.launch
    ready = None if launch is None else launch.ready_s
    outcome = "ok" if trial.status == "ok" else f"{trial.status}: {trial.failure or 'no class'}"
    return (
        f"{trial.number}",
        trial.spec.phase,
        changed_flags(trial.spec.settings.given()),
        outcome,
        UNKNOWN if ready is None else f"{ready:.0f} s",
        f"{trial.wall_s:.0f} s",
        gib(None if launch is None else launch.peak_bytes),
    )


def changed_flags(settings: dict[str, Any]) -> str:
    """The flags that the search varies, short."""
    utilization_given = settings.get("gpu_memory_utilization")
    kv_bytes = settings.get("kv_cache_memory_bytes")
    parts = [
        f"util {utilization(utilization_given)}" if utilization_given is not None else f"KV {gib(kv_bytes)}"
    ]
    parts += [f"seqs {settings['max_num_seqs']}"] if "max_num_seqs" in settings else []
    parts += [f"KV {settings['kv_cache_dtype']}"] if "kv_cache_dtype" in settings else []
    parts += [f"block {settings['block_size']}"] if "block_size" in settings else []
    parts += [f"{name} {value}" for name, value in settings.items() if name not in _SHOWN_OR_FIXED]
    return ", ".join(parts)


def _failures(report: TuneReport, *, markdown: bool) -> str | None:
    lines = [_failure_text(end, markdown=markdown) for end in report.recommendation.failures]
    return "\n".join(lines) if lines else None


def _failure_text(end: BoundaryEnd, *, markdown: bool) -> str:
    evidence = end.evidence or "no evidence"
    where = f"; log {end.log_path}" if end.log_path else ""
    line = f"trial {end.trial}: {_failure(end)}: {evidence}{where}"
    return f"- {line}" if markdown else f"  {line}"


def _how(report: TuneReport, *, markdown: bool) -> Iterator[str]:
    bullet = "- " if markdown else "  "
    context, problem = report.header["context"], report.problem
    yield f"{bullet}{problem.model}, vLLM {context['vllm_version']}, on {_machine(context, problem.device)}"
    if problem.device == "cpu":
        yield (
            f"{bullet}the card is {format_gib(problem.card_bytes)} of memory: "
            + "; ".join(LIMITS[name] for name in report.memory_limit.split(", "))
        )
        yield (
            f"{bullet}gpu_memory_utilization was applied to it by kvplan with vLLM's accounting (KV cache "
            "= share of the card - the worker's memory before it) through --kv-cache-memory-bytes; vLLM's "
            "own share on CPU is of a NUMA node's total"
        )
    lengths = problem.lengths
    yield (
        f"{bullet}workload: {lengths.mean_input} tokens in and {lengths.mean_output} out on average, at most "
        f"{lengths.longest_input} and {lengths.longest_output}; worst case: {problem.max_model_len} "
        "tokens for every request"
    )
    yield f"{bullet}run {report.run}: {report.cost}; kvplan {report.header['kvplan_version']}"
    yield from (f"{bullet}{note}" for note in report.recommendation.notes)
    if report.tuned_by is not None:
        yield f"{bullet}not finished: {report.tuned_by} is tuning it"
    elif not report.is_finished:
        yield f"{bullet}not finished: continue with kvplan tune --resume {report.run}"
    elif report.recommendation.stopped:
        yield f"{bullet}ended early: {report.recommendation.stopped}"
    yield from (f"{bullet}warning: {warning}" for warning in report.warnings)


def _machine(context: Any, device: str) -> str:
    machine = context["machine"]
    if device == "cuda":
        return str(machine.get("gpu") or "a GPU")
    return f"{machine['cores']} cores of {machine['cpu']}"
