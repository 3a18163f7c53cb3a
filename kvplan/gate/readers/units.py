"""systemd units and supervisord programs: line readers with each format's own substitution."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from kvplan.gate.argv import CommandReader
from kvplan.gate.docker_run import count_visible
from kvplan.gate.reading import Surroundings
from kvplan.gate.shell import read_shell
from kvplan.gate.taint import Word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.gate.reading import Reading

_BRACED: Final = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}")
_BARE: Final = re.compile(r"\$([A-Za-z_]\w*)")
_SPECIFIER: Final = re.compile(r"%([%a-zA-Z])")
_SUPERVISOR: Final = re.compile(r"%\((\w+)\)[sd]|%%")


def _logical(lines: list[str], start: int) -> tuple[list[tuple[int, str]], int]:
    """The pieces of a line with backslash continuations; comment lines inside are skipped."""
    pieces: list[tuple[int, str]] = []
    i = start
    while i < len(lines):
        text = lines[i]
        if i > start and text.lstrip()[:1] in {"#", ";"}:
            i += 1
            continue
        continued = text.rstrip().endswith("\\")
        pieces.append((i, text.rstrip().removesuffix("\\") if continued else text))
        i += 1
        if not continued:
            break
    return pieces, i


def is_systemd(text: str) -> bool:
    """Whether the text is a unit with a service."""
    return bool(re.search(r"(?m)^\s*\[Service\]\s*$", text)) and "ExecStart" in text


def read_systemd(reading: Reading) -> None:
    """Record the launch of ExecStart."""
    lines = reading.text.split("\n")
    env: dict[str, str] = {}
    starts: list[list[tuple[int, str]]] = []
    i = 0
    while i < len(lines):
        pieces, following = _logical(lines, i)
        key, equals, _ = pieces[0][1].partition("=")
        if equals and key.strip() == "Environment":
            env |= _assignments("".join(text for _, text in pieces).partition("=")[2])
        elif equals and key.strip() == "ExecStart":
            starts.append(pieces)
        i = max(following, i + 1)
    for pieces in starts:
        _exec_start(reading, pieces, env)


def _assignments(text: str) -> dict[str, str]:
    try:
        parts = shlex.split(text, posix=True)
    except ValueError:
        return {}
    return {part.partition("=")[0]: part.partition("=")[2] for part in parts if "=" in part}


def _exec_start(reading: Reading, pieces: list[tuple[int, str]], env: dict[str, str]) -> None:
    first, head = pieces[0]
    value = head.partition("=")[2]
    values = [(first, value), *pieces[1:]]
    words: list[Word] = []
    for row, text, column in _tokens(values):
        words += _systemd_word(reading, text, env, row + 1, column)
    if not words:
        return
    words[0] = words[0].with_text(words[0].text.lstrip("-@+!:|"))

    def run_text(text: str, word: Word, around: Surroundings) -> None:
        read_shell(text, reading, around, lambda row, column, _: (word.line + row, column + 1), dict(env))

    around = Surroundings("systemd", env=env, num_gpus=count_visible(env.get("CUDA_VISIBLE_DEVICES")))
    CommandReader(reading, run_text).read(words, around)


def _tokens(rows: list[tuple[int, str]]) -> Iterator[tuple[int, str, int]]:
    """Words with row and column; quotes group, over continued lines too, and are kept for the caller."""
    current, quote, place = "", "", (0, 0)
    for row, text in rows:
        for column, char in enumerate(text + " "):
            if quote:
                current += char
                quote = "" if char == quote else quote
            elif char in "\"'" and not current:
                quote, place, current = char, (row, column), char
            elif char.isspace():
                if current:
                    yield place[0], current, place[1] + 1
                current = ""
            else:
                if not current:
                    place = (row, column)
                if char in "\"'":
                    quote = char
                current += char
    if current:
        yield place[0], current, place[1] + 1


def _systemd_word(reading: Reading, token: str, env: dict[str, str], line: int, column: int) -> list[Word]:
    """`${X}` is one word, a bare `$X` alone is split, `%i` is known only when the unit is started."""
    bare = _BARE.fullmatch(token)
    if bare:
        value = env.get(bare[1])
        if value is None:
            return [Word(reading.taint.unknown(bare[1]), line, column)]
        try:
            return [Word(part, line, column) for part in shlex.split(value)]
        except ValueError:
            return [Word(value, line, column)]
    text = token
    if "'" in text or '"' in text:
        try:
            parts = shlex.split(text, posix=True)
            text = parts[0] if parts else ""
        except ValueError:
            text = text.strip("\"'")
    text = _SPECIFIER.sub(lambda m: "%" if m[1] == "%" else reading.taint.unknown(m[1]), text)

    def braced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return env[match[1]] if match[1] in env else reading.taint.unknown(match[1])

    return [Word(_BRACED.sub(braced, text), line, column)]


def is_supervisord(text: str) -> bool:
    """Whether the text holds supervisor programs."""
    return bool(re.search(r"(?m)^\s*\[program:[^\]]+\]", text))


def read_supervisord(reading: Reading) -> None:
    """Record the launch of every program's `command`."""
    lines = reading.text.split("\n")
    section: str | None = None
    env: dict[str, str] = {}
    command: tuple[int, str] | None = None
    for row, line in enumerate([*lines, "[end]"]):
        text = re.split(r"\s;", line, maxsplit=1)[0].rstrip()
        header = re.fullmatch(r"\s*\[([^\]]+)\]\s*", text)
        if header:
            if section is not None and section.startswith("program:") and command is not None:
                _program(reading, section.partition(":")[2], command, env)
            section, env, command = header[1], {}, None
            continue
        key, equals, value = text.partition("=")
        if (
            line[:1].isspace()
            and command is not None
            and line.strip()
            and not line.lstrip().startswith((";", "#"))
        ):
            command = (command[0], f"{command[1]}\n{text}")
        elif equals and key.strip() == "command":
            command = (row, value.strip())
        elif equals and key.strip() == "environment":
            env = {
                match[1]: match[2].strip("\"'")
                for match in re.finditer(r"(\w+)=(\"[^\"]*\"|'[^']*'|[^,\s]*)", value)
            }


def _program(reading: Reading, name: str, command: tuple[int, str], env: dict[str, str]) -> None:
    row, text = command

    def one(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        known = env.get(match[1].removeprefix("ENV_")) if match[1].startswith("ENV_") else None
        return known if known is not None else reading.taint.unknown(match[1])

    around = Surroundings(
        "supervisord", env=env, name=name, num_gpus=count_visible(env.get("CUDA_VISIBLE_DEVICES"))
    )
    try:
        parts = shlex.split(_SUPERVISOR.sub(one, text).replace("\n", " "), posix=True)
    except ValueError:
        reading.miss(row + 1, "command cannot be split into words")
        return

    def run_text(inner: str, word: Word, at: Surroundings) -> None:
        read_shell(inner, reading, at, lambda _, __, ___: (word.line, word.column), dict(env))

    CommandReader(reading, run_text).read([Word(part, row + 1) for part in parts], around)
