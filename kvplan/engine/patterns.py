"""The log patterns of profiles/engines/log-patterns.yaml, compiled; loaded when the first log is read."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.errors import FailureClass
from kvplan.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEMA: Final = "kvplan.log-patterns/1"
_FILE: Final = "engines/log-patterns.yaml"

_UNIT_BYTES: Final = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "int": lambda text: int(text.replace(",", "")),
    "bytes": int,
    "float": float,
    "s": float,
    "text": str,
    "GiB": lambda text: round(float(text) * GIB),
    "MiB": lambda text: round(float(text) * MIB),
}


@dataclass(frozen=True, slots=True)
class Gives:
    """One number or name that a line tells."""

    fact: str
    """A field of StartupFacts."""
    group: str
    how: str | None
    unit_group: str | None
    of_many: str = "last"
    """Which of several values holds: `last`, or `min` or `max` over the workers that print one each."""

    def keep(self, old: Any, new: Any) -> Any:
        """The value to hold after another one has come."""
        if old is None or self.of_many == "last":
            return new
        return min(old, new) if self.of_many == "min" else max(old, new)

    def read(self, match: re.Match[str]) -> Any:
        """The value, or None when the line leaves it out."""
        text = match[self.group]
        if text is None:
            return None
        if self.unit_group is not None:
            return round(float(text) * _UNIT_BYTES[match[self.unit_group]])
        return _READ[self.how or "text"](text)


@dataclass(frozen=True, slots=True)
class FactPattern:
    """A line that tells something about a start."""

    regex: re.Pattern[str]
    gives: tuple[Gives, ...]


@dataclass(frozen=True, slots=True)
class FailurePattern:
    """A line that decides why vLLM failed."""

    failure: FailureClass | Literal["oom"]
    phase: str | None
    regex: re.Pattern[str]
    gives: tuple[Gives, ...]


@dataclass(frozen=True, slots=True)
class OomFrame:
    """A frame of a traceback that tells what was being done when memory ran out."""

    regex: re.Pattern[str]
    failure: FailureClass
    phase: str


@dataclass(frozen=True, slots=True)
class LogPatterns:
    """All that is known about vLLM's log."""

    facts: tuple[FactPattern, ...]
    phases: tuple[tuple[str, re.Pattern[str]], ...]
    """In the order of a start."""
    failures: tuple[FailurePattern, ...]
    """Most telling first."""
    fatal: re.Pattern[str]
    oom_frames: tuple[OomFrame, ...]
    """The innermost first."""
    oom_phases: Mapping[str, FailureClass]


@functools.cache
def log_patterns() -> LogPatterns:
    """The shipped patterns."""
    import yaml

    record = yaml.safe_load(_find().read_text("utf-8"))
    if record["schema"] != SCHEMA:
        raise ValueError(f"{_FILE}: schema is {record['schema']!r}, not {SCHEMA}")
    return LogPatterns(
        facts=tuple(FactPattern(re.compile(entry["regex"]), _gives(entry)) for entry in record["facts"]),
        phases=tuple((entry["phase"], re.compile(entry["regex"])) for entry in record["phases"]),
        failures=tuple(_failure(entry) for entry in record["failures"]),
        fatal=re.compile("|".join(record["fatal"])),
        oom_frames=tuple(
            OomFrame(re.compile(entry["frame"]), FailureClass(entry["class"]), entry["phase"])
            for entry in record["oom_frames"]
        ),
        oom_phases={phase: FailureClass(name) for phase, name in record["oom_phases"].items()},
    )


def _failure(entry: Mapping[str, Any]) -> FailurePattern:
    name = entry["class"]
    return FailurePattern(
        failure="oom" if name == "oom" else FailureClass(name),
        phase=entry.get("phase"),
        regex=re.compile(entry["regex"]),
        gives=_gives(entry),
    )


def _gives(entry: Mapping[str, Any]) -> tuple[Gives, ...]:
    return tuple(
        Gives(
            item["fact"], item["group"], item.get("as"), item.get("unit_group"), item.get("of_many", "last")
        )
        for item in entry.get("gives", ())
    )


def _find() -> Path:
    """The file in the wheel, or in the source tree of an editable install."""
    package = Path(__file__).parents[1]
    shipped = package / "_profiles" / _FILE
    return shipped if shipped.is_file() else package.parent / "profiles" / _FILE
