"""The calibration study as text or Markdown: errors by card, version, kind, source; what lies outside."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any, Final

from kvplan.calibration.evaluate import weighted_quantile
from kvplan.config.version import format_vllm_version
from kvplan.report.table import render_table
from kvplan.units import GIB, format_gib
from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kvplan.calibration.evaluate import Outcome, Score
    from kvplan.calibration.study import Study
    from kvplan.launch import Launch

SCHEMA: Final = "kvplan.calibration/1"
OUTSIDE_PERCENT: Final = 2.0


def render_study(study: Study, *, markdown: bool = False) -> str:
    """Headline, tables by group, what lies outside, what was not answered."""
    title = "## " if markdown else ""
    sections = [
        f"{title}{_headline(study)}",
        _score_table(study.score, markdown=markdown),
        *(
            f"{title}By {name}\n\n{_group_table(study.outcomes, key, name, markdown=markdown)}"
            for name, key in GROUPS.items()
        ),
        f"{title}Outside the interval, or off by more than {OUTSIDE_PERCENT:g} % of the card\n\n"
        + _outside_table(study.outcomes, markdown=markdown),
    ]
    if study.unanswered:
        rows = [(u.launch.id, str(u.launch.model)) for u in study.unanswered]
        reasons = [u.reason for u in study.unanswered]
        titles = ("launch", "model")
        table = render_table(
            titles, rows, left=(0, 1), beneath=reasons, beneath_title="why", markdown=markdown
        )
        sections.append(f"{title}Not answered\n\n{table}")
    return "\n\n".join(sections)


def _headline(study: Study) -> str:
    how = "each source predicted by a fit to all the others" if study.left_out else "the fitted model"
    return f"Available KV memory, predicted against printed: {how}"


def _score_table(figures: Score, *, markdown: bool) -> str:
    rows = [
        ("usable launches answered", str(figures.launches)),
        ("with a printed KV cache", str(figures.with_kv)),
        ("absolute error, median", f"{figures.median_abs_percent:.2f} % of the card"),
        ("absolute error, 90th percentile", f"{figures.p90_abs_percent:.2f} %"),
        ("each source counting once, median", f"{figures.source_median_abs_percent:.2f} %"),
        ("each source counting once, 90th percentile", f"{figures.source_p90_abs_percent:.2f} %"),
        ("promising over 2 % too much", f"{100 * figures.over_promised_share:.0f} % of launches"),
        ("80 % intervals that hold", f"{100 * figures.coverage:.0f} %"),
        ("called tight", f"{100 * figures.tight_share:.0f} %"),
        ("failed for memory, called `starts`", ", ".join(figures.failed_called_yes) or "none"),
        ("started, called `does not start`", ", ".join(figures.started_called_no) or "none"),
    ]
    return render_table(("", ""), rows, left=(0, 1), markdown=markdown)


def _kind(outcome: Outcome) -> str:
    facts = outcome.case.facts
    kinds = {
        "vision": facts.encoder is not None,
        "mixture": facts.moe is not None,
        "hybrid": facts.is_hybrid,
        "latent attention": facts.is_mla,
    }
    return ", ".join(name for name, holds in kinds.items() if holds) or "dense"


GROUPS: Final[dict[str, Callable[[Outcome], str]]] = {
    "card": lambda o: o.answer.gpu.name,
    "version": lambda o: format_vllm_version(o.case.settings.vllm_version),
    "model kind": _kind,
    "source": lambda o: o.case.launch.source,
}


def _group_table(
    outcomes: Iterable[Outcome], key: Callable[[Outcome], str], name: str, *, markdown: bool
) -> str:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.error_percent is not None:
            groups.setdefault(key(outcome), []).append(outcome)
    rows = [(label, *_group_row(members)) for label, members in sorted(groups.items(), key=_natural)]
    header = (name, "launches", "median error %", "median off %", "p90 off %", "in interval")
    return render_table(header, rows, markdown=markdown)


def _natural(item: tuple[str, Any]) -> list[tuple[int, int | str]]:
    """0.9.2 before 0.10.0."""
    import re

    return [(0, int(p)) if p.isdigit() else (1, p) for p in re.split(r"(\d+)", item[0]) if p]


def _group_row(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    errors = [o.error_percent for o in outcomes if o.error_percent is not None]
    sizes = [(abs(e), 1.0) for e in errors]
    return (
        str(len(errors)),
        f"{statistics.median(errors):+.2f}",
        f"{weighted_quantile(sizes, 0.5):.2f}",
        f"{weighted_quantile(sizes, 0.9):.2f}",
        f"{sum(bool(o.covered) for o in outcomes)}/{len(outcomes)}",
    )


def _outside_table(outcomes: Iterable[Outcome], *, markdown: bool) -> str:
    outside = [
        o
        for o in outcomes
        if o.error_percent is not None and (not o.covered or abs(o.error_percent) > OUTSIDE_PERCENT)
    ]
    outside.sort(key=lambda o: -abs(o.error_percent or 0))
    rows = [
        (
            o.case.launch.id,
            f"{o.error_percent:+.2f}",
            f"{(o.case.launch.kv_cache_bytes or 0) / GIB:.2f}",
            "{} to {}".format(*(f"{size / GIB:.2f}" for size in _ends(o))),
        )
        for o in outside
    ]
    if not rows:
        return "none"
    reasons = [o.case.launch.why_outside or "no reason found" for o in outside]
    header = ("launch", "error %", "printed GiB", "interval GiB")
    return render_table(header, rows, beneath=reasons, beneath_title="reason found", markdown=markdown)


def _ends(outcome: Outcome) -> tuple[int, int]:
    interval = outcome.answer.budget.available_kv_bytes
    return interval.low, interval.high


def study_as_dict(study: Study) -> dict[str, Any]:
    """The study as JSON types (`kvplan.calibration/1`)."""
    return {
        "schema": SCHEMA,
        "leave_one_source_out": study.left_out,
        "score": {
            k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(study.score).items()
        },
        "coefficients": dataclasses.asdict(study.coefficients),
        "launches": [
            {
                "id": o.case.launch.id,
                "source": o.case.launch.source,
                "measured_kv_bytes": o.case.launch.kv_cache_bytes,
                "predicted_kv_bytes": o.answer.budget.available_kv_bytes.as_dict(),
                "error_percent": o.error_percent,
                "in_interval": o.covered,
                "outcome": o.case.launch.outcome,
                "verdict": o.answer.verdict.starts,
                "why_outside": o.case.launch.why_outside,
            }
            for o in study.outcomes
        ],
        "unanswered": [
            {"id": u.launch.id, "model": u.launch.model, "why": u.reason} for u in study.unanswered
        ],
    }


def render_taken(launch: Launch, store: Path) -> str:
    """What was read out of a log and where it is kept now."""
    facts = launch.facts
    sizes = {
        "weights": facts.weights_bytes,
        "activation peak": facts.activation_peak_bytes,
        "non-torch": facts.non_torch_bytes,
        "CUDA graphs": facts.cudagraph_bytes,
        "available for the KV cache": facts.available_kv_bytes,
    }
    lines = [
        visible(f"{launch.model} on {launch.gpu or launch.device}, vLLM {facts.vllm_version}")
        + f": {launch.outcome}"
        + (f" ({launch.failure})" if launch.failure else ""),
        *(f"  {name:<28}{format_gib(size)}" for name, size in sizes.items() if size is not None),
        f"  {'flags':<28}"
        + (visible(", ".join(f"{k}={v}" for k, v in launch.settings.items())) or "none printed"),
        f"kept in {visible(str(store))}",
    ]
    if facts.available_kv_bytes is None:
        lines.append("no available KV memory in it: estimates are not corrected by this launch")
    return "\n".join(lines)
