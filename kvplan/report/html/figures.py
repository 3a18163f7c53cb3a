"""The report's figures. Each is drawn by matplotlib, says in words what it shows, and needs no colour to be read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.report.html.ledger import TITLES
from kvplan.report.html.svg import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    RULE,
    VIOLET,
    inline_svg,
    new_figure,
)
from kvplan.report.tune_text import figure as number
from kvplan.report.tune_text import utilization
from kvplan.units import GIB, format_gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.report.html.ledger import Ledger, LineName
    from kvplan.report.html.pareto import Candidate
    from kvplan.report.html.samples import MemorySeries
    from kvplan.report.tune import TuneReport
    from kvplan.tune.recommend import KnobEffect, LoadSummary

WIDTH: Final = 760.0
_LEDGER_COLOURS: Final[dict[LineName, str]] = {
    "weights": VIOLET,
    "before_kv": ORANGE,
    "kv_cache": BLUE,
    "outside": GREY,
    "free": RULE,
    "unknown": RULE,
}
_LEDGER_WORDS: Final[dict[LineName, str]] = {
    "weights": "weights",
    "before_kv": "before KV",
    "kv_cache": "KV cache",
    "outside": "outside",
    "free": "free",
    "unknown": "not measured",
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """One figure of the page."""

    name: str
    svg: str
    caption: str


def swatch(line: LineName) -> str:
    """The CSS variable of a ledger line's colour."""
    from kvplan.report.html.svg import variable_of

    return variable_of(_LEDGER_COLOURS[line])


def ledger_bar(ledgers: Sequence[Ledger]) -> Drawn:
    """The card as one bar a ledger."""
    figure, axes = new_figure(WIDTH, 56 + 58 * len(ledgers))
    total = ledgers[0].total_bytes / GIB
    for row, ledger in enumerate(ledgers):
        left = 0.0
        for line, size in ledger.parts:
            width = max(size, 0) / GIB
            axes.barh(
                row, width, left=left, height=0.5, color=_LEDGER_COLOURS[line], edgecolor=PAPER, linewidth=1.5
            )
            if width > 0.075 * total:
                axes.text(
                    left + width / 2,
                    row - 0.34,
                    _LEDGER_WORDS[line],
                    ha="center",
                    va="bottom",
                    fontsize=10,
                    color=MUTED,
                )
            left += width
    axes.axvline(total, color=INK, linewidth=1.4)
    axes.set_yticks(range(len(ledgers)), [ledger.name for ledger in ledgers], color=INK)
    axes.set_ylim(len(ledgers) - 0.6, -0.7)
    axes.set_xlim(0, total * 1.02)
    axes.set_xlabel("GiB of the card")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    said = "; ".join(
        f"{ledger.name}: "
        + ", ".join(f"{_LEDGER_WORDS[line]} {format_gib(size)}" for line, size in ledger.parts)
        for ledger in ledgers
    )
    return _drawn(
        figure,
        "ledger",
        "Where the card's memory goes",
        f"A card of {format_gib(total * GIB)}. {said}.",
        "The line at the right end is the card. The table has the figures.",
    )


def boundary_bracket(report: TuneReport) -> Drawn | None:
    """Every utilisation that was tried, in the order tried, with what came of it."""
    answer = report.recommendation
    tried = [t for t in report.trials if t.gpu_memory_utilization is not None]
    if not tried:
        return None
    figure, axes = new_figure(WIDTH, 92 + 26 * len(tried))
    low = None if answer.boundary_survived is None else answer.boundary_survived.gpu_memory_utilization
    high = None if answer.boundary_failed is None else answer.boundary_failed.gpu_memory_utilization
    if low is not None and high is not None:
        axes.axvspan(low, high, color=RED, alpha=0.14, linewidth=0)
    xs = [t.gpu_memory_utilization or 0.0 for t in tried]
    span = max(0.05, max(xs) - min(xs))
    for row, trial in enumerate(tried):
        x = trial.gpu_memory_utilization
        colour, marker = (
            (GREEN, "o") if trial.survived else (RED, "X") if trial.status == "infeasible" else (ORANGE, "s")
        )
        axes.plot(
            [x],
            [row],
            marker=marker,
            markersize=9,
            color=colour,
            linestyle="none",
            markeredgewidth=0,
            clip_on=False,
        )
        outcome = "survived" if trial.survived else f"{trial.failure or trial.status}"
        axes.annotate(
            f"{utilization(x)}  {outcome}",
            (x, row),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            color=INK,
            annotation_clip=False,
        )
    chosen = None if answer.settings is None else answer.settings.get("gpu_memory_utilization")
    if chosen is not None:
        axes.axvline(chosen, color=BLUE, linestyle=(0, (4, 3)), linewidth=1.6)
        axes.annotate(
            f"recommended {utilization(chosen)}",
            (chosen, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-5, 4),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=10,
            color=BLUE,
            annotation_clip=False,
        )
    axes.set_yticks(range(len(tried)), [f"#{t.number} {t.spec.phase}" for t in tried], color=INK)
    axes.set_ylim(len(tried) - 0.4, -0.6)
    axes.set_xlim(max(0.0, min(xs) - 0.08 * span), min(1.0, max(xs)) + 0.42 * span)
    axes.set_xlabel("gpu_memory_utilization (share of the card)")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    said = ", ".join(
        f"trial {t.number} at {utilization(t.gpu_memory_utilization)} {'survived' if t.survived else f'failed ({t.failure or t.status})'}"
        for t in tried
    )
    return _drawn(
        figure,
        "boundary",
        "The memory boundary, bracketed",
        f"{said}.",
        "Circles survived the worst case, crosses failed with the class beside them, squares failed without an explanation. The shaded band is what is left between the highest survivor and the lowest failure.",
    )


def load_curve(curve: Sequence[LoadSummary], chosen: LoadSummary | None) -> Drawn | None:
    """Throughput against latency of one server under rising load, and the chosen point."""
    panels = (("TPOT p99, ms", "p99_tpot_ms"), ("TTFT p99, ms", "p99_ttft_ms"))
    known = [p for p in curve if p.output_throughput is not None]
    if not known:
        return None
    figure, axes = new_figure(WIDTH, 300, ncols=2)
    for axis, (title, field) in zip(axes, panels, strict=True):
        points = [
            (p.output_throughput, getattr(p, field), p.concurrency)
            for p in known
            if getattr(p, field) is not None
        ]
        axis.plot([p[0] for p in points], [p[1] for p in points], color=BLUE, marker="o", markersize=6)
        for x, y, users in points:
            axis.annotate(
                f"{users}",
                (x, y),
                xytext=(-7, 6),
                textcoords="offset points",
                ha="right",
                fontsize=10,
                color=INK,
            )
        y = None if chosen is None else getattr(chosen, field)
        if chosen is not None and chosen.output_throughput is not None and y is not None:
            axis.plot(
                [chosen.output_throughput], [y], marker="D", markersize=9, color=ORANGE, linestyle="none"
            )
            axis.annotate(
                f"recommended: {chosen.concurrency}",
                (chosen.output_throughput, y),
                xytext=(9, -4),
                textcoords="offset points",
                va="top",
                fontsize=10,
                color=ORANGE,
            )
        axis.set_title(title)
        axis.set_xlabel("output tokens a second")
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)
        axis.margins(x=0.3, y=0.2)
        axis.set_xlim(
            0, 1.25 * max(p.output_throughput or 0 for p in (*known, *([chosen] if chosen else [])))
        )
        top = max([p[1] for p in points] + ([y] if y is not None else []), default=1)
        axis.set_ylim(0, 1.2 * top)
        axis.grid()
    said = "; ".join(
        f"{p.concurrency} users: {number(p.output_throughput)} tokens/s, TPOT p99 {number(p.p99_tpot_ms, 1, ' ms')}, TTFT p99 {number(p.p99_ttft_ms, 0, ' ms')}"
        for p in known
    )
    return _drawn(
        figure,
        "curve",
        "Throughput against latency under rising load",
        f"{said}.",
        "One server; the figure at each point is its number of users. The diamond is the recommended setting at the target's load, from a start of its own.",
    )


def pareto_front(points: Sequence[Candidate], chosen: int | None) -> Drawn | None:
    """Throughput and time a token, each against headroom."""
    complete = [p for p in points if p.is_complete]
    if not complete:
        return None
    figure, axes = new_figure(WIDTH, 300, ncols=2)
    panels = (
        ("output tokens a second (higher is better)", "output_throughput"),
        ("TPOT p99, ms (lower is better)", "p99_tpot_ms"),
    )
    for axis, (title, field) in zip(axes, panels, strict=True):
        values = [(float(p.headroom_bytes or 0) / GIB, float(getattr(p, field)), p) for p in complete]
        for x, y, point in values:
            style: dict[str, Any] = (
                {"color": BLUE}
                if point.is_on_front
                else {"markerfacecolor": PAPER, "markeredgecolor": MUTED, "markeredgewidth": 1.5}
            )
            if point.trial == chosen:
                style = {"color": ORANGE}
            axis.plot(
                [x],
                [y],
                marker="D" if point.trial == chosen else "o",
                markersize=9 if point.trial == chosen else 7,
                linestyle="none",
                **style,
            )
        axis.set_title(title)
        axis.set_xlabel("headroom, GiB free at the highest use")
        xs, ys = [v[0] for v in values], [v[1] for v in values]
        left = min(0.0, *xs)
        axis.set_xlim(left, max(xs) + 0.25 * max(max(xs) - left, 1e-3))
        axis.set_ylim(0, 1.25 * max(ys))
        axis.grid()
        _label_apart(axis, values)
    said = "; ".join(
        f"trial {p.trial}{' (on the front)' if p.is_on_front else ''}: {number(p.output_throughput)} tokens/s, TPOT p99 {number(p.p99_tpot_ms, 1, ' ms')}, {format_gib(p.headroom_bytes or 0)} free"
        for p in complete
    )
    return _drawn(
        figure,
        "pareto",
        "Throughput, headroom and time a token",
        f"{said}.",
        "Filled: on the front, no other trial is at least as good in all three. Hollow: beaten. Diamond: recommended. Numbers are trials.",
    )


def knob_effects(effects: Sequence[KnobEffect]) -> Drawn | None:
    """What each knob changed, with its interval."""
    known = [e for e in effects if e.output_throughput_change is not None]
    if not known:
        return None
    figure, axes = new_figure(WIDTH, 70 + 34 * len(known))
    axes.axvline(0, color=INK, linewidth=1.2)
    for row, effect in enumerate(known):
        change = 100 * (effect.output_throughput_change or 0)
        if effect.change_low is not None and effect.change_high is not None:
            axes.plot(
                [100 * effect.change_low, 100 * effect.change_high],
                [row, row],
                color=BLUE,
                linewidth=2.4,
                solid_capstyle="butt",
            )
        axes.plot([change], [row], marker="o", markersize=8, color=BLUE)
        axes.annotate(
            f"{change:+.1f} %",
            (change, row),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            color=INK,
        )
    axes.set_yticks(
        range(len(known)), [f"{e.knob}: {e.from_value} → {e.to_value}"[:60] for e in known], color=INK
    )
    axes.set_ylim(len(known) - 0.4, -0.8)
    axes.margins(x=0.12)
    axes.set_xlabel("change of output tokens a second, %")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    said = "; ".join(
        f"{e.knob} from {e.from_value} to {e.to_value}: {100 * (e.output_throughput_change or 0):+.1f} %"
        for e in known
    )
    return _drawn(
        figure,
        "effects",
        "What each knob changed, one at a time",
        f"{said}.",
        "Dot: the change. Bar: its 95 % interval, when there is one. An interval across 0 decides nothing.",
    )


def memory_over_time(series: MemorySeries, card_bytes: int, longest_s: float) -> Drawn:
    """Memory of one trial since its start; the same axes in every trial."""
    figure, axes = new_figure(330, 170)
    axes.fill_between(
        [t for t, _ in series.points],
        [b / GIB for _, b in series.points],
        color=BLUE,
        alpha=0.18,
        linewidth=0,
    )
    axes.plot([t for t, _ in series.points], [b / GIB for _, b in series.points], color=BLUE, linewidth=1.5)
    axes.axhline(card_bytes / GIB, color=RED, linewidth=1.2, linestyle=(0, (4, 3)))
    axes.set_xlim(0, longest_s)
    axes.set_ylim(0, 1.12 * max(card_bytes, series.peak_bytes) / GIB)
    axes.set_xlabel("s since the start")
    axes.set_ylabel("GiB")
    axes.grid(axis="y")
    trial = series.trial
    outcome = "survived" if trial.survived else f"{trial.failure or trial.status}"
    return _drawn(
        figure,
        f"memory-{trial.number}",
        f"Memory of trial {trial.number} over time",
        f"{len(series.points)} points over {series.points[-1][0]:.0f} s; highest {format_gib(series.peak_bytes)} of {format_gib(card_bytes)}.",
        f"#{trial.number} {trial.spec.phase}, {outcome}: at most {format_gib(series.peak_bytes)}",
    )


def _label_apart(axis: Any, values: list[tuple[float, float, Candidate]]) -> None:
    """Trial numbers beside their points, pushed down where they would lie on one another."""
    bottom, top = axis.get_ylim()
    left, right = axis.get_xlim()
    least, near = (top - bottom) * 0.065, (right - left) * 0.09
    placed: list[tuple[float, float]] = []
    for x, y, point in sorted(values, key=lambda v: -v[1]):
        at = y
        while any(abs(x - px) < near and abs(at - py) < least - 1e-9 for px, py in placed):
            at -= least / 4
        placed.append((x, at))
        axis.annotate(
            f"#{point.trial}",
            (x, at),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            color=INK,
        )


def _drawn(figure: Any, name: str, title: str, description: str, caption: str) -> Drawn:
    return Drawn(
        name, inline_svg(figure, name=f"figure-{name}", title=title, description=description), caption
    )


def finite(value: float | None) -> float | None:
    """The value, or None for what is no number (a utilisation that a trial did not have)."""
    return None if value is None or not math.isfinite(value) else value
