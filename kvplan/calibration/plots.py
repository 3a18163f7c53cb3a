"""The calibration study as plots: predicted against printed, residuals by version and card, term by term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.config.version import format_vllm_version
from kvplan.errors import MissingDependencyError
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvplan.calibration.evaluate import Outcome
    from kvplan.calibration.study import Study

_LIMIT_PERCENT = 6.0
"""Of the card: residuals beyond are drawn at the edge, with their figure."""


def write_plots(study: Study, folder: Path) -> list[Path]:
    """Write the plots as SVG files; their paths.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingDependencyError(
            "the plots need matplotlib", "pip install 'kvplan-tuner[plots]'"
        ) from error
    mpl.use("svg")
    # Without these the files differ from run to run.
    mpl.rcParams["svg.hashsalt"] = "kvplan"
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = [o for o in study.outcomes if o.error_percent is not None]
    drawings: dict[str, Callable[[list[Outcome]], Any]] = {
        "predicted-against-printed": _scatter,
        "residuals-by-version": _by_version,
        "residuals-by-card": _by_card,
        "intervals": _intervals,
    }
    written = []
    for name, draw in drawings.items():
        path = folder / f"{name}.svg"
        draw(outcomes).savefig(path, metadata={"Date": None})
        written.append(path)
    return written


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def _scatter(outcomes: list[Outcome]) -> Any:
    figure, axes = _axes(6, 6)
    for kind, marker in (("dense", "o"), ("mixture or hybrid", "s"), ("vision", "^")):
        points = [o for o in outcomes if _kind(o) == kind]
        measured = [(o.case.launch.kv_cache_bytes or 0) / GIB for o in points]
        predicted = [o.answer.budget.available_kv_bytes.mid / GIB for o in points]
        axes.scatter(measured, predicted, marker=marker, s=22, alpha=0.7, label=kind)
    top = max((o.case.launch.kv_cache_bytes or 0) / GIB for o in outcomes) * 1.05
    axes.plot([-5, top], [-5, top], color="black", linewidth=0.8)
    axes.set_xlabel("printed by vLLM, GiB")
    axes.set_ylabel("predicted without seeing it, GiB")
    axes.set_title("Available KV cache memory")
    axes.legend()
    return figure


def _by_version(outcomes: list[Outcome]) -> Any:
    def version(o: Outcome) -> str:
        return format_vllm_version(o.case.settings.vllm_version)

    return _residuals(outcomes, version, "vLLM version", _numbers)


def _by_card(outcomes: list[Outcome]) -> Any:
    return _residuals(outcomes, lambda o: o.answer.gpu.id, "card", lambda label: [label])


def _residuals(
    outcomes: list[Outcome],
    label: Callable[[Outcome], str],
    title: str,
    order: Callable[[str], list[Any]],
) -> Any:
    labels = sorted({label(o) for o in outcomes}, key=order)
    figure, axes = _axes(8, 0.32 * len(labels) + 1.6)
    for outcome in outcomes:
        error = outcome.error_percent or 0.0
        shown = max(-_LIMIT_PERCENT, min(_LIMIT_PERCENT, error))
        row = labels.index(label(outcome))
        colour = "tab:blue" if outcome.covered else "tab:red"
        axes.plot(shown, row, "o", color=colour, alpha=0.6, markersize=5)
        if shown != error:
            axes.annotate(
                f"{error:+.0f} %", (shown, row), xytext=(0, 5), textcoords="offset points", fontsize=7
            )
    axes.axvspan(2, _LIMIT_PERCENT, color="tab:red", alpha=0.06)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted minus printed, % of the card (red: outside its 80 % interval)")
    axes.set_title(f"Residuals by {title}")
    return figure


def _intervals(outcomes: list[Outcome]) -> Any:
    """Where the printed figure lies in its interval: 0 is the middle, -1 and 1 are the ends."""
    figure, axes = _axes(7, 3.2)
    positions = sorted(max(-3.0, min(3.0, _position(o))) for o in outcomes)
    axes.plot(positions, [(i + 0.5) / len(positions) for i in range(len(positions))], "o", markersize=3)
    axes.axvspan(-1, 1, color="tab:green", alpha=0.1)
    axes.set_xlabel("position of the printed figure in the predicted interval (-1 low end, 1 high end)")
    axes.set_ylabel("share of launches below")
    axes.set_title("80 % intervals")
    return figure


def _position(outcome: Outcome) -> float:
    interval = outcome.answer.budget.available_kv_bytes
    distance = (outcome.case.launch.kv_cache_bytes or 0) - interval.mid
    side = interval.high - interval.mid if distance > 0 else interval.mid - interval.low
    return distance / side if side else 0.0


def _kind(outcome: Outcome) -> str:
    facts = outcome.case.facts
    if facts.encoder is not None:
        return "vision"
    return "mixture or hybrid" if facts.moe is not None or facts.is_hybrid else "dense"


def _numbers(label: str) -> list[Any]:
    return [int(part) for part in label.split(".")]
