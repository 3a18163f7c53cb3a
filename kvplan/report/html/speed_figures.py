"""The figures of speed: the load curve, the Pareto front, and what each knob changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from kvplan.report.html.figures import SMALL_TEXT, WIDTH, drawn, without_left_axis
from kvplan.report.html.safe import shown
from kvplan.report.html.svg import BLUE, INK, MUTED, ORANGE, PAPER, new_figure
from kvplan.report.tune_text import figure as number
from kvplan.units import GIB, format_gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.report.html.figures import Drawn
    from kvplan.report.html.pareto import Candidate
    from kvplan.tune.effects import KnobEffect

_HEIGHT: Final = 310.0
_LONGEST_NAME: Final = 48
_LABEL_WIDTH, _LABEL_HEIGHT = 0.075, 0.07
"""Of a label such as #12, as a share of its panel."""
_SIDES: Final = (
    (0.5, 0.0, "left", "center"),
    (-0.5, 0.0, "right", "center"),
    (0.0, 0.5, "center", "bottom"),
    (0.0, -0.5, "center", "top"),
)
"""Where a label may lie beside its point: direction, and how the text is aligned there."""


class CurvePoint(Protocol):
    """One load of one server."""

    @property
    def concurrency(self) -> int:
        """Users."""

    @property
    def output_throughput(self) -> float | None:
        """Tokens per second."""

    @property
    def p99_ttft_ms(self) -> float | None:
        """Time to the first token."""

    @property
    def p99_tpot_ms(self) -> float | None:
        """Time per further token."""


def load_curve(
    curve: Sequence[CurvePoint], chosen: CurvePoint | None, chosen_as: str = "recommended"
) -> Drawn | None:
    """Throughput against latency of one server under rising load, and the chosen point."""
    known = [point for point in curve if point.output_throughput is not None]
    if not known:
        return None
    figure, panels = new_figure(WIDTH, _HEIGHT, ncols=2)
    fastest = max(p.output_throughput or 0 for p in (*known, *([chosen] if chosen else [])))
    for axes, title, field in zip(
        panels, ("TPOT p99, ms", "TTFT p99, ms"), ("p99_tpot_ms", "p99_ttft_ms"), strict=True
    ):
        _curve_panel(axes, known, chosen, field, chosen_as)
        axes.set_title(title)
        axes.set_xlim(0, 1.12 * fastest)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2)
    said = "; ".join(
        f"{p.concurrency} users: {number(p.output_throughput)} tokens/s, TPOT p99 "
        f"{number(p.p99_tpot_ms, 1, ' ms')}, TTFT p99 {number(p.p99_ttft_ms, 0, ' ms')}"
        for p in known
    )
    return drawn(
        figure,
        "curve",
        title="Throughput against latency under rising load",
        description=f"{said}.",
        caption=f"The figure at each point is its number of users. The diamond is the {chosen_as} setting at "
        "the target's load, from a start of its own.",
    )


def _curve_panel(
    axes: Any, known: list[CurvePoint], chosen: CurvePoint | None, field: str, chosen_as: str
) -> None:
    points = [p for p in known if getattr(p, field) is not None]
    xs, ys = [p.output_throughput for p in points], [getattr(p, field) for p in points]
    axes.plot(xs, ys, color=BLUE, marker="o", markersize=6, label="one server, by number of users")
    for point, x, y in zip(points, xs, ys, strict=True):
        place: dict[str, Any] = {"xytext": (-7, 5), "textcoords": "offset points", "ha": "right"}
        axes.annotate(f"{point.concurrency}", (x, y), fontsize=SMALL_TEXT, color=INK, **place)
    own = None if chosen is None else getattr(chosen, field)
    if chosen is not None and chosen.output_throughput is not None and own is not None:
        label = f"{chosen_as}, {chosen.concurrency} users"
        style: dict[str, Any] = {"marker": "D", "markersize": 9, "color": ORANGE, "linestyle": "none"}
        axes.plot([chosen.output_throughput], [own], label=label, **style)
        ys = [*ys, own]
    axes.set_xlabel("output tokens a second")
    axes.set_ylim(0, 1.15 * max(ys, default=1) or 1)
    axes.grid()


def pareto_front(
    points: Sequence[Candidate], chosen: int | None, chosen_as: str = "recommended"
) -> Drawn | None:
    """Throughput and time a token, each against headroom."""
    complete = [point for point in points if point.is_complete]
    if not complete:
        return None
    figure, panels = new_figure(WIDTH, _HEIGHT, ncols=2)
    titles = ("output tokens a second (higher is better)", "TPOT p99, ms (lower is better)")
    for axes, title, field in zip(panels, titles, ("output_throughput", "p99_tpot_ms"), strict=True):
        places = [((p.headroom_bytes or 0) / GIB, float(getattr(p, field))) for p in complete]
        for point, (x, y) in zip(complete, places, strict=True):
            axes.plot([x], [y], linestyle="none", **_marker(point, chosen))
        left, right = min(0.0, *(x for x, _ in places)), max(x for x, _ in places)
        axes.set_xlim(left - 0.05 * (right - left), right + 0.15 * max(right - left, 1e-3))
        axes.set_ylim(0, 1.2 * max(y for _, y in places) or 1)
        axes.set_title(title)
        axes.set_xlabel("headroom, GiB free at the highest use")
        axes.grid()
        _label(axes, complete, places)
    said = "; ".join(
        f"trial {p.trial}{' (on the front)' if p.is_on_front else ''}: {number(p.output_throughput)} tokens/s"
        f", TPOT p99 {number(p.p99_tpot_ms, 1, ' ms')}, {format_gib(p.headroom_bytes or 0)} free"
        for p in complete
    )
    return drawn(
        figure,
        "pareto",
        title="Throughput, headroom and time a token",
        description=f"{said}.",
        caption="Filled: on the front, no other trial is at least as good in all three. Hollow: beaten. "
        f"Diamond: {chosen_as}. Numbers are trials; where they would lie on one another, the table has them.",
    )


def _marker(point: Candidate, chosen: int | None) -> dict[str, Any]:
    if point.trial == chosen:
        return {"marker": "D", "markersize": 9, "color": ORANGE}
    if point.is_on_front:
        return {"marker": "o", "markersize": 7, "color": BLUE}
    hollow = {"markerfacecolor": PAPER, "markeredgecolor": MUTED, "markeredgewidth": 1.5}
    return {"marker": "o", "markersize": 7, **hollow}


def _label(axes: Any, points: list[Candidate], places: list[tuple[float, float]]) -> None:
    """Trial numbers, each on a side of its point where nothing else lies; none where all are taken."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    spots = [((x - left) / (right - left), (y - bottom) / (top - bottom)) for x, y in places]
    taken = list(spots)
    for point, (x, y), own in zip(points, places, spots, strict=True):
        for dx, dy, ha, va in _SIDES:
            centre = (own[0] + dx * 1.5 * _LABEL_WIDTH, own[1] + dy * 2 * _LABEL_HEIGHT)
            others = [spot for spot in taken if spot != own]
            if all(
                abs(centre[0] - u) > _LABEL_WIDTH or abs(centre[1] - v) > _LABEL_HEIGHT for u, v in others
            ):
                place: dict[str, Any] = {"xytext": (16 * dx, 16 * dy), "textcoords": "offset points"}
                axes.annotate(
                    f"#{point.trial}", (x, y), ha=ha, va=va, fontsize=SMALL_TEXT, color=INK, **place
                )
                taken.append(centre)
                break


def knob_effects(effects: Sequence[KnobEffect]) -> Drawn | None:
    """What each knob changed, with its interval."""
    known = [effect for effect in effects if effect.output_throughput_change is not None]
    if not known:
        return None
    figure, axes = new_figure(WIDTH, 70 + 34 * len(known))
    axes.axvline(0, color=INK, linewidth=1.2)
    for row, effect in enumerate(known):
        change = 100 * (effect.output_throughput_change or 0)
        if effect.change_low is not None and effect.change_high is not None:
            ends = [100 * effect.change_low, 100 * effect.change_high]
            axes.plot(ends, [row, row], color=BLUE, linewidth=2.4, solid_capstyle="butt")
        axes.plot([change], [row], marker="o", markersize=8, color=BLUE)
        place: dict[str, Any] = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{change:+.1f} %", (change, row), fontsize=SMALL_TEXT, color=INK, **place)
    names = [shown(f"{e.knob}: {e.from_value} → {e.to_value}", _LONGEST_NAME) for e in known]
    axes.set_yticks(range(len(known)), names, color=INK)
    axes.set_ylim(len(known) - 0.4, -0.8)
    axes.margins(x=0.12)
    axes.set_xlabel("change of output tokens a second, %")
    axes.grid(axis="x")
    without_left_axis(axes)
    said = "; ".join(
        f"{name}: {100 * (e.output_throughput_change or 0):+.1f} %"
        for name, e in zip(names, known, strict=True)
    )
    return drawn(
        figure,
        "effects",
        title="What each knob changed, one at a time",
        description=f"{said}.",
        caption="Dot: the change. Bar: its 95 % interval, when there is one. An interval across 0 decides "
        "nothing.",
    )
