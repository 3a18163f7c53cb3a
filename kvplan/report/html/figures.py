"""The figures of memory. Each says in words what it shows, and needs no colour to be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.report.html.safe import shown
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
    variable_of,
)
from kvplan.report.tune_text import utilization
from kvplan.units import GIB, format_gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.report.html.ledger import Ledger, LineName
    from kvplan.report.html.samples import MemorySeries
    from kvplan.report.tune import TuneReport
    from kvplan.tune.trial import Trial

WIDTH: Final = 760.0
SMALL_TEXT: Final = 10
_LONGEST_NAME: Final = 24
DASHED: Final = (0, (4, 3))
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
_LEAST_LABELLED: Final = 0.075
"""Share of the card below which a part is too narrow for its name."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One figure of the page."""

    name: str
    title: str
    svg: str
    caption: str


def drawn(figure: Any, name: str, *, title: str, description: str, caption: str) -> Drawn:
    """A finished figure of the page."""
    svg = inline_svg(figure, name=f"figure-{name}", title=title, description=description)
    return Drawn(name, title, svg, caption)


def without_left_axis(axes: Any) -> None:
    """Rows by name need neither line nor ticks at the left."""
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def swatch(line: LineName) -> str:
    """The CSS variable of a ledger line's colour."""
    return variable_of(_LEDGER_COLOURS[line])


def ledger_bar(ledgers: Sequence[Ledger]) -> Drawn:
    """The card as one bar a ledger."""
    figure, axes = new_figure(WIDTH, 56 + 58 * len(ledgers))
    total = ledgers[0].total_bytes / GIB
    for row, ledger in enumerate(ledgers):
        _bar(axes, row, ledger, total)
    axes.axvline(total, color=INK, linewidth=1.4)
    axes.set_yticks(range(len(ledgers)), [ledger.name for ledger in ledgers], color=INK)
    axes.set_ylim(len(ledgers) - 0.6, -0.7)
    axes.set_xlim(0, total * 1.02)
    axes.set_xlabel("GiB of the card")
    without_left_axis(axes)
    said = "; ".join(f"{ledger.name}: {_said(ledger)}" for ledger in ledgers)
    return drawn(
        figure,
        "ledger",
        title="Where the card's memory goes",
        description=f"A card of {format_gib(total * GIB)}. {said}.",
        caption="The line at the right end is the card; the table has the figures.",
    )


def _bar(axes: Any, row: int, ledger: Ledger, total: float) -> None:
    left = 0.0
    for line, size in ledger.parts:
        width = max(size, 0) / GIB
        colour = _LEDGER_COLOURS[line]
        axes.barh(row, width, left=left, height=0.5, color=colour, edgecolor=PAPER, linewidth=1.5)
        if width > _LEAST_LABELLED * total:
            place = {"ha": "center", "va": "bottom", "fontsize": SMALL_TEXT, "color": MUTED}
            axes.text(left + width / 2, row - 0.34, _LEDGER_WORDS[line], **place)
        left += width


def _said(ledger: Ledger) -> str:
    return ", ".join(f"{_LEDGER_WORDS[line]} {format_gib(size)}" for line, size in ledger.parts)


def boundary_bracket(report: TuneReport) -> Drawn | None:
    """Every utilisation that was tried, in the order tried, with what came of it."""
    answer = report.recommendation
    tried = [(t, t.gpu_memory_utilization) for t in report.trials if t.gpu_memory_utilization is not None]
    if not tried:
        return None
    figure, axes = new_figure(WIDTH, 92 + 26 * len(tried))
    if answer.boundary_survived is not None and answer.boundary_failed is not None:
        low, high = answer.boundary_survived, answer.boundary_failed
        band = (low.gpu_memory_utilization, high.gpu_memory_utilization)
        axes.axvspan(*band, color=RED, alpha=0.14, linewidth=0)
    for row, (trial, x) in enumerate(tried):
        _probe(axes, row, trial, x)
    chosen = None if answer.settings is None else answer.settings.get("gpu_memory_utilization")
    if chosen is not None:
        axes.axvline(chosen, color=BLUE, linestyle=DASHED, linewidth=1.6)
        place: dict[str, Any] = {
            "xytext": (-5, 4),
            "textcoords": "offset points",
            "ha": "right",
            "va": "bottom",
        }
        place |= {"fontsize": SMALL_TEXT, "color": BLUE, "annotation_clip": False}
        text = f"{report.chosen_as} {utilization(chosen)}"
        axes.annotate(text, (chosen, 1), xycoords=("data", "axes fraction"), **place)
    axes.set_yticks(
        range(len(tried)), [shown(f"#{t.number} {t.spec.phase}", _LONGEST_NAME) for t, _ in tried], color=INK
    )
    axes.set_ylim(len(tried) - 0.4, -0.6)
    lowest, highest = min(x for _, x in tried), max(x for _, x in tried)
    span = max(0.05, highest - lowest)
    axes.set_xlim(max(0.0, lowest - 0.08 * span), highest + 0.42 * span)
    axes.set_xlabel("gpu_memory_utilization (share of the card)")
    axes.grid(axis="x")
    without_left_axis(axes)
    said = ", ".join(f"trial {t.number} at {utilization(x)} {_outcome(t)}" for t, x in tried)
    return drawn(
        figure,
        "boundary",
        title="The memory boundary, bracketed",
        description=f"{said}.",
        caption="Circles survived the worst case, crosses failed with the class beside them, squares failed "
        "without an explanation. The shaded band is what is left between the highest survivor and the lowest "
        "failure.",
    )


def _probe(axes: Any, row: int, trial: Trial, x: float) -> None:
    colour, marker = (ORANGE, "s") if trial.status == "failed" else (RED, "X")
    if trial.survived:
        colour, marker = GREEN, "o"
    axes.plot([x], [row], marker=marker, markersize=9, color=colour, linestyle="none", markeredgewidth=0)
    place: dict[str, Any] = {"xytext": (10, 0), "textcoords": "offset points", "va": "center"}
    text = f"{utilization(x)}  {_outcome(trial)}"
    axes.annotate(text, (x, row), fontsize=SMALL_TEXT, color=INK, annotation_clip=False, **place)


def _outcome(trial: Trial) -> str:
    return "survived" if trial.survived else f"{trial.failure or trial.status}"


def memory_over_time(series: MemorySeries, card_bytes: int, longest_s: float) -> Drawn:
    """Memory of one trial since its start; the same axes in every trial."""
    figure, axes = new_figure(330, 170)
    times, sizes = [t for t, _ in series.points], [size / GIB for _, size in series.points]
    axes.fill_between(times, sizes, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(times, sizes, color=BLUE, linewidth=1.5)
    axes.axhline(card_bytes / GIB, color=RED, linewidth=1.2, linestyle=DASHED)
    axes.set_xlim(0, longest_s)
    axes.set_ylim(0, 1.12 * max(card_bytes, series.peak_bytes) / GIB)
    axes.set_xlabel("s since the start")
    axes.set_ylabel("GiB")
    axes.grid(axis="y")
    trial, peak = series.trial, format_gib(series.peak_bytes)
    return drawn(
        figure,
        f"memory-{trial.number}",
        title=f"Memory of trial {trial.number} over time",
        description=f"Over {series.points[-1][0]:.0f} s; highest {peak} of {format_gib(card_bytes)}.",
        caption=f"#{trial.number} {trial.spec.phase}, {_outcome(trial)}: at most {peak}",
    )
