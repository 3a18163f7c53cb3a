"""Memory over time of each trial, from the samples that the run kept beside its journal."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kvplan.tune.trial import Trial

FILE_NAME: Final = "memory.jsonl"
_MOST_LINES: Final = 100_000
_LONGEST_LINE: Final = 4096
_POINTS: Final = 160
"""Drawn of one trial: more than its figure has pixels would only make the page larger."""


@dataclass(frozen=True, slots=True)
class MemorySeries:
    """Memory use of one trial; (seconds since its start, bytes)."""

    trial: Trial
    points: tuple[tuple[float, int], ...]

    @property
    def peak_bytes(self) -> int:
        """The highest sample."""
        return max(size for _, size in self.points)


def memory_series(trials: Iterable[Trial], folder: Path) -> tuple[MemorySeries, ...]:
    """The trials that left samples, in their order."""
    found = []
    for trial in trials:
        points = tuple(_read(folder / "trials" / f"{trial.number}" / FILE_NAME))
        if points:
            found.append(MemorySeries(trial, thinned(points)))
    return tuple(found)


def thinned(points: tuple[tuple[float, int], ...], most: int = _POINTS) -> tuple[tuple[float, int], ...]:
    """At most `most` points: of each stretch its highest, so that no peak is lost."""
    if len(points) <= most:
        return points
    step = len(points) / most
    stretches = (points[round(i * step) : round((i + 1) * step)] for i in range(most))
    return tuple(max(stretch, key=lambda point: point[1]) for stretch in stretches if stretch)


def _read(path: Path) -> Iterator[tuple[float, int]]:
    """The samples of a file; lines that are none (torn, or no work of ours) are passed over."""
    try:
        with path.open("rb") as file:
            for line in islice(iter(lambda: file.readline(_LONGEST_LINE), b""), _MOST_LINES):
                point = _point(line)
                if point is not None:
                    yield point
    except OSError:
        return


def _point(line: bytes) -> tuple[float, int] | None:
    try:
        record = json.loads(line)
        at_s, size = float(record["at_s"]), int(record["bytes"])
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return (at_s, size) if math.isfinite(at_s) and 0 <= size < 2**60 else None
