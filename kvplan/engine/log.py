"""vLLM's log: followed while it grows, read for the facts of a start and the line that decides a failure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvplan.engine.log_file import STOP_MARK
from kvplan.engine.patterns import LogPatterns, log_patterns
from kvplan.errors import FailureClass
from kvplan.launch import StartupFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAX_LINE: Final = 16_384
"""Characters of a line that are kept: no line that decides anything is longer."""
_CHUNK: Final = 1 << 18
_MAX_READ: Final = 8 << 20
_MAX_BEHIND: Final = 64 << 20
_MAX_LINES: Final = 4000
_MAX_LAST_READS: Final = 16
_KEPT_FRAMES: Final = 200

_OUT_OF_MEMORY: Final = frozenset(failure for failure in FailureClass if failure.startswith("oom_"))
_FRAME: Final = re.compile(r'\bFile ".+", line \d+, in ')
# An exception's last line (`ValueError: ...`, pydantic's `Value error, ...`), or argparse's `error: ...`.
_ERROR: Final = re.compile(
    r"(?:^|[\s\]])(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)(?::|$)"
    r"|(?:^|: )error: |^Value error, |^terminate called"
)
_VALIDATION: Final = re.compile(r"\d+ validation errors? for \w+$")
_VALIDATION_LINES: Final = 3
_DIED: Final = "died unexpectedly"
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_PREFIX: Final = re.compile(
    r"^(?:\([\w :.=-]+ pid=\d+[^)]*\) ?)*"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[?[\w./-]+:\d+\] ?)?)?"
)


def message_of(line: str) -> str:
    """The line without process, level, time and file: `(EngineCore pid=7) INFO 11-29 … [core.py:1] x` -> `x`.

    Source: vLLM 0.6.6 to 0.32.0 logger.py; the process name since 0.10, brackets around the file since 0.8.
    """
    line = _COLOUR.sub("", line) if "\x1b" in line else line
    return _PREFIX.sub("", line, count=1).strip()


class LogReader:
    """Follows a growing file; memory stays bounded however long its lines are and however far it is ahead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.skipped_bytes = 0
        """What was passed over because the file grew faster than it was worth reading."""
        self.skipped_lines = 0
        """Lines out of the middle of such a flood."""
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Whole lines since the last call, of at most 8 MiB; a file that isn't there yet has none."""
        try:
            with self.path.open("rb") as file:
                lines = self._read(file.seek(0, 2), file)
        except FileNotFoundError:
            return []
        if len(lines) <= _MAX_LINES:
            return lines
        self.skipped_lines += len(lines) - _MAX_LINES
        return lines[: _MAX_LINES // 2] + lines[-_MAX_LINES // 2 :]

    def last_lines(self) -> Iterator[str]:
        """What is left of a vLLM that has failed, a last line without its newline too."""
        for _ in range(_MAX_LAST_READS):  # it may be dead, or hang, or still be flooding its log
            fresh = self.new_lines()
            if not fresh:
                break
            yield from fresh
        if self._rest:
            yield _text(self._rest)
            self._rest = b""

    def _read(self, size: int, file: Any) -> list[str]:
        if size - self.offset > _MAX_BEHIND:
            target = size - _MAX_READ
            self.skipped_bytes += target - self.offset
            self.offset = target
            self._rest = b""
        file.seek(self.offset)
        lines: list[str] = []
        budget = _MAX_READ
        while budget > 0 and (chunk := file.read(min(_CHUNK, budget))):
            budget -= len(chunk)
            self.offset += len(chunk)
            *whole, rest = chunk.split(b"\n")
            if whole:
                lines.append(_text(self._rest + whole[0]))
                lines += [_text(line) for line in whole[1:]]
                self._rest = rest[:MAX_LINE]
            elif len(self._rest) < MAX_LINE:
                self._rest += rest[: MAX_LINE - len(self._rest)]
        return lines


def _text(line: bytes) -> str:
    return line[:MAX_LINE].decode("utf-8", "replace").rstrip("\r").strip("\0")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why vLLM failed, as far as its log tells."""

    failure: FailureClass
    phase: str | None
    decisive_line: str | None
    numbers: dict[str, Any] = field(default_factory=dict)
    """Fields of StartupFacts: what vLLM said it needs, has, and could do."""


class LogWatch:
    """Takes a log line by line and knows, at any moment, its facts, its phase and its failure."""

    def __init__(self, patterns: LogPatterns | None = None) -> None:
        self._patterns = patterns or log_patterns()
        self._facts: dict[str, Any] = {}
        self._best: tuple[int, Failure] | None = None
        self._frames: list[str] = []
        self._first_error: str | None = None
        self.phase: str | None = None
        """The phase of the start that has begun; None before the first."""
        self._ended = False
        self._validation: list[str] = []
        self.fatal_line: str | None = None
        """A line after which vLLM will not serve (again), even if it lives on."""

    def feed(self, line: str) -> None:
        """The next line."""
        message = message_of(line)
        # What vLLM prints while it is stopped reads like a crash (0.32: EngineDeadError with a traceback).
        self._ended = self._ended or message.startswith(STOP_MARK)
        if not message or self._ended:
            return
        if _FRAME.search(message):
            self._frames = [*self._frames[-_KEPT_FRAMES:], message]
            return
        if "Traceback (most recent call last)" in message:
            self._frames = []
        if self.phase != "serving":
            self._take_facts(message)
            self._take_phase(message)
        if self._validation or _VALIDATION.search(message):
            message = self._joined(message)
        if _ERROR.search(message):
            self._take_failure(message)
        if self.fatal_line is None and self._patterns.fatal.search(message):
            self.fatal_line = message
            if self._first_error is None and _DIED in message:
                # What the others say of it ("RuntimeError: cancelled") is no cause.
                self._first_error = message

    def facts(self) -> StartupFacts:
        """What was printed so far, a failure's numbers included."""
        numbers = self._best[1].numbers if self._best else {}
        return StartupFacts(**(self._facts | numbers))

    def failure(self) -> Failure | None:
        """The most telling failure line so far; None while there is none."""
        if self._best is not None:
            return self._best[1]
        line = self._first_error or self.fatal_line
        return None if line is None else Failure(FailureClass.UNKNOWN, self.phase, line)

    def _take_facts(self, message: str) -> None:
        for pattern in self._patterns.facts:
            if (match := pattern.regex.search(message)) is not None:
                for gives in pattern.gives:
                    value = gives.read(match)
                    if value is not None:
                        self._facts[gives.fact] = gives.keep(self._facts.get(gives.fact), value)

    def _take_phase(self, message: str) -> None:
        for phase, regex in self._patterns.phases:
            if regex.search(message):
                self.phase = phase

    def _take_failure(self, message: str) -> None:
        rank_to_beat = self._best[0] if self._best else len(self._patterns.failures)
        for rank, pattern in enumerate(self._patterns.failures[:rank_to_beat]):
            match = pattern.regex.search(message)
            if match is None:
                continue
            numbers = {gives.fact: gives.read(match) for gives in pattern.gives}
            failure, phase = self._class_and_phase(pattern.failure, pattern.phase)
            told = {fact: value for fact, value in numbers.items() if value is not None}
            if self._best is not None and self._best[1].failure in _OUT_OF_MEMORY:
                # A better word for the same event; the allocator's figures still hold.
                told = self._best[1].numbers | told
            self._best = rank, Failure(failure, phase, message, told)
            return
        if self._first_error is None and _ERROR.match(message):
            self._first_error = message

    def _joined(self, message: str) -> str:
        """Pydantic's three lines (what for, which field, what is wrong) as one; empty until the third.

        Where the second is a `Value error, ...`, it says all that the others could.
        """
        self._validation.append(message)
        if len(self._validation) < _VALIDATION_LINES and not message.startswith("Value error, "):
            return ""
        lines, self._validation = self._validation, []
        return message if message.startswith("Value error, ") else ": ".join(lines)

    def _class_and_phase(
        self, failure: FailureClass | str, phase: str | None
    ) -> tuple[FailureClass, str | None]:
        if failure != "oom":
            return FailureClass(failure), phase or self.phase or "arguments"
        for known in self._patterns.oom_frames:
            if any(known.regex.search(frame) for frame in reversed(self._frames)):
                return known.failure, known.phase
        return self._patterns.oom_phases.get(self.phase or "weights", FailureClass.UNKNOWN), self.phase


def parse_startup(lines: Iterable[str]) -> StartupFacts:
    """The facts of a whole log, of any vLLM from 0.6 to 0.32."""
    return _watch_all(lines).facts()


def classify_failure(lines: Iterable[str]) -> Failure:
    """Why a vLLM whose whole log this is has failed; `unknown` if it does not say."""
    return _watch_all(lines).failure() or Failure(FailureClass.UNKNOWN, None, None)


def _watch_all(lines: Iterable[str]) -> LogWatch:
    watch = LogWatch()
    for line in lines:
        watch.feed(line)
    return watch
