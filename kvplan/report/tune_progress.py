"""How a tuning run goes, on stderr: a live view on a terminal, quiet lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from kvplan.report.tune_text import changed_flags
from kvplan.tune.session import forecast
from kvplan.units import format_duration, format_gib
from kvplan.visible import harmless

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from rich.console import Console, RenderableType

    from kvplan.tune.run import Watcher
    from kvplan.tune.setup import Prepared
    from kvplan.tune.trial import LoadResult, Trial, TrialSpec

_SPARKS: Final = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Standing:
    """Where a run stands: what the live view and the lines are made of."""

    expected_launches: int
    expected_trial_s: float
    """Mean seconds of a launch; learnt from those that finished."""
    began: float = field(default_factory=time.monotonic)
    number: int = 0
    spec: TrialSpec | None = None
    phase: str = ""
    trial_began: float = 0.0
    best: float | None = None
    """Highest output throughput at the target's load so far."""
    highest_survivor: float | None = None
    walls_s: list[float] = field(default_factory=list)
    loads: list[LoadResult] = field(default_factory=list)

    @property
    def seconds_left(self) -> float:
        """Launches still expected, at the mean of those that finished."""
        mean = sum(self.walls_s) / len(self.walls_s) if self.walls_s else self.expected_trial_s
        running = 0.0 if self.spec is None else time.monotonic() - self.trial_began
        left = max(0, self.expected_launches - len(self.walls_s))
        return max(0.0, left * mean - running)

    def begins(self, number: int, spec: TrialSpec) -> None:
        """A launch begins."""
        self.number, self.spec, self.phase, self.trial_began = number, spec, "starting", time.monotonic()
        self.expected_launches = max(self.expected_launches, len(self.walls_s) + 1)

    def load_ends(self, result: LoadResult) -> None:
        """A load was measured."""
        self.loads.append(result)
        if result.level.kind == "target" and result.is_usable:
            self.best = max(self.best or 0.0, result.output_throughput or 0.0)

    def ends(self, trial: Trial) -> None:
        """A trial is finished."""
        self.walls_s.append(trial.wall_s)
        self.spec = None
        utilization = trial.gpu_memory_utilization
        if trial.survived and utilization is not None and trial.spec.phase in {"boundary", "confirm"}:
            self.highest_survivor = max(self.highest_survivor or 0.0, utilization)

    @property
    def best_text(self) -> str:
        """The best so far in a few words."""
        parts = [] if self.best is None else [f"{self.best:,.0f} output tokens/s"]
        parts += [] if self.highest_survivor is None else [f"utilisation {self.highest_survivor:g} survives"]
        return ", ".join(parts) or "nothing yet"


class LineWatcher:
    """One line a step; for logs and CI."""

    def __init__(self, standing: Standing) -> None:
        self.standing = standing

    def trial_begins(self, number: int, spec: TrialSpec) -> None:
        """Say what is tried and why."""
        self.standing.begins(number, spec)
        flags = changed_flags(spec.settings.given())
        _say(f"[{number}/{self.standing.expected_launches}] {spec.phase}: {flags}")

    def phase(self, text: str) -> None:
        """Phases inside a trial are for the live view, except what a reader must know of."""
        self.standing.phase = text
        if text.startswith(("waiting", "cleaned up", "memory held")):
            _say(f"    {text}")

    def load_ends(self, result: LoadResult) -> None:
        """Say what a load gave."""
        self.standing.load_ends(result)
        speed = result.output_throughput
        shown = "n/a" if speed is None else f"{speed:,.0f}"
        _say(f"    {result.level.kind} of {result.level.concurrency} users: {shown} output tokens/s")

    def trial_ends(self, trial: Trial) -> None:
        """Say how it ended, and what is left."""
        self.standing.ends(trial)
        outcome = "ok" if trial.survived else f"{trial.status}: {trial.failure or 'no class'}"
        left = format_duration(self.standing.seconds_left)
        _say(
            f"    {outcome} in {trial.wall_s:.0f} s; best so far {self.standing.best_text}; about {left} left"
        )


class LiveWatcher:
    """A live view on a terminal: trial, phase, best so far, throughput of the loads, time left."""

    def __init__(self, standing: Standing, console: Console) -> None:
        from rich.live import Live

        self.standing = standing
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._view)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def trial_begins(self, number: int, spec: TrialSpec) -> None:
        """A launch begins."""
        self.standing.begins(number, spec)

    def phase(self, text: str) -> None:
        """What it does now."""
        self.standing.phase = text

    def load_ends(self, result: LoadResult) -> None:
        """A load was measured."""
        self.standing.load_ends(result)

    def trial_ends(self, trial: Trial) -> None:
        """Above the live view each finished trial keeps its line."""
        self.standing.ends(trial)
        outcome = "ok" if trial.survived else f"{trial.status}: {trial.failure or 'no class'}"
        flags = changed_flags(trial.spec.settings.given())
        self._console.print(
            f"[{trial.number}] {trial.spec.phase}: {flags}: {outcome} ({trial.wall_s:.0f} s)", markup=False
        )

    def _view(self) -> RenderableType:
        from rich.table import Table

        standing = self.standing
        table = Table.grid(padding=(0, 2))
        if standing.spec is not None:
            running = format_duration(time.monotonic() - standing.trial_began)
            table.add_row("trial", f"{standing.number} of about {standing.expected_launches}, {running}")
            table.add_row("tries", changed_flags(standing.spec.settings.given()))
            table.add_row("to learn", standing.spec.decides)
            table.add_row("now", standing.phase)
        table.add_row("best so far", standing.best_text)
        speeds = [load.output_throughput or 0.0 for load in standing.loads[-40:]]
        table.add_row("tokens/s", sparkline(speeds) if speeds else "nothing measured yet")
        table.add_row("time left", f"about {format_duration(standing.seconds_left)}")
        return table


def sparkline(values: list[float]) -> str:
    """Heights between 0 and the largest value."""
    top = max(values, default=0.0) or 1.0
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(value / top * (len(_SPARKS) - 1)))] for value in values)


@dataclass(slots=True)
class Watching:
    """Opens the right watcher once the run is known, and closes it whatever happens."""

    runs_dir: Path
    stack: contextlib.ExitStack
    folder: Path | None = None

    def of(self, folder: Path, prepared: Prepared) -> Watcher:
        """The watcher of a run that begins, after saying what it is about to do."""
        self.folder = folder
        plan = forecast(prepared, self.runs_dir)
        problem, budget = prepared.problem, prepared.budget
        _say(
            f"run {folder.name}: about {len(plan.trials)} launches and {plan.minutes_text} min "
            f"({plan.start_s:.0f} s a start: {plan.start_source}); at most {budget.max_launches} launches "
            f"and {budget.max_minutes:g} min; {problem.model} on a card of {format_gib(problem.card_bytes)}"
        )
        if prepared.assumptions:
            _say("assumed: " + "; ".join(prepared.assumptions))
        for warning in prepared.warnings:
            _say(f"warning: {warning}")
        standing = Standing(len(plan.trials), plan.mean_trial_s)
        if not sys.stderr.isatty():
            return LineWatcher(standing)
        from rich.console import Console

        return self.stack.enter_context(LiveWatcher(standing, Console(stderr=True)))

    def how_to_go_on(self) -> str:
        """What to say when the run was interrupted."""
        if self.folder is None:
            return "kvplan: interrupted before anything was launched"
        return (
            f"kvplan: interrupted; vLLM is stopped and what was measured is in {self.folder}\n"
            f"  go on:    kvplan tune --resume {self.folder}\n"
            f"  look:     kvplan report {self.folder}"
        )


@contextlib.contextmanager
def watching(runs_dir: Path) -> Iterator[Watching]:
    """A place for a run's watcher."""
    with contextlib.ExitStack() as stack:
        yield Watching(runs_dir, stack)


def _say(text: str) -> None:
    sys.stderr.write(harmless(text) + "\n")
    sys.stderr.flush()
