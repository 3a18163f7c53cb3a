"""Requests that were really served, read from what people keep: JSON lines, access logs, CSV. Lengths only.

Nothing but token counts, times and conversation ids leaves this module: no prompt and no answer.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError
from kvplan.load.log_times import TIME_TEXT, seconds, time_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

# OpenAI usage; OpenAI Responses and Anthropic; Mooncake and Qwen traces; Azure traces; BurstGPT.
INPUT_NAMES: Final = (
    "prompt_tokens",
    "input_tokens",
    "num_prompt_tokens",
    "input_length",
    "input_len",
    "prompt_len",
    "ContextTokens",
    "Request tokens",
    "input",
)
OUTPUT_NAMES: Final = (
    "completion_tokens",
    "output_tokens",
    "generation_tokens",
    "num_generation_tokens",
    "output_length",
    "output_len",
    "GeneratedTokens",
    "Response tokens",
    "output",
)
TIME_NAMES: Final = (
    "timestamp",
    "@timestamp",
    "time",
    "ts",
    "created",
    "created_at",
    "TIMESTAMP",
    "Timestamp",
)
SESSION_NAMES: Final = ("session_id", "conversation_id", "thread_id", "session", "Session ID")
_PAIR: Final = re.compile(
    rf"""["']?\b(?P<name>[A-Za-z_@]+)["']?\s*[:=]\s*["'\[]?(?P<value>{TIME_TEXT}|[^\s,;"'}}\])]+)"""
)
_ACCESS_LINE: Final = re.compile(r'"(?:GET|POST|PUT|HEAD|OPTIONS|DELETE|PATCH) \S+ HTTP/[\d.]+" \d{3}')
"""The heart of a line of Apache's, nginx's and uvicorn's access logs: the request and its status."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request of the log."""

    input_len: int
    output_len: int
    time_s: float | None = None
    """Unix time, or seconds from wherever the log counts."""
    session: str | None = None


@dataclass(slots=True)
class Traffic:
    """All requests of a log, and what was left out."""

    requests: list[SeenRequest] = field(default_factory=list)
    skipped: int = 0
    """Lines without token counts: failed requests, other endpoints, other log messages."""


def read_requests(path: Path) -> Traffic:
    """Requests of a log: JSON lines with OpenAI-style usage at any depth, or `name=value` text.

    Raises:
        InputError: unreadable, or no line has token counts.
    """
    traffic = Traffic()
    accesses = 0
    for line in _lines(path):
        fields = _json_fields(line) or _text_fields(line)
        request = _request(fields)
        if request is None:
            traffic.skipped += 1
            accesses += _ACCESS_LINE.search(line) is not None
        elif request.time_s is None:
            traffic.requests.append(dataclasses.replace(request, time_s=time_in(line)))
        else:
            traffic.requests.append(request)
    if traffic.requests:
        return traffic
    if accesses:
        raise InputError(
            f"{path}: {accesses:,} lines of a web server's access log, which counts bytes and no tokens",
            "let the proxy add prompt_tokens=N completion_tokens=M, from the answers' `usage`, to each line, "
            "or read vLLM's own counts: kvplan workload http://SERVER",
        )
    raise InputError(
        f"{path}: no line has the tokens of a prompt and of its answer",
        f"looked for {', '.join(INPUT_NAMES[:4])}, ... and {', '.join(OUTPUT_NAMES[:4])}, ...",
    )


def read_csv(path: Path, input_column: str | None = None, output_column: str | None = None) -> Traffic:
    """Requests of a CSV file with a header line.

    Raises:
        InputError: unreadable, a column is missing, or a cell is no whole number (with file:line).
    """
    reader = csv.DictReader(_lines(path))
    columns = reader.fieldnames or []
    input_name = _column(path, columns, input_column, INPUT_NAMES, "--input-column")
    output_name = _column(path, columns, output_column, OUTPUT_NAMES, "--output-column")
    traffic = Traffic()
    for row in reader:
        cells = [(row.get(name) or "").strip() for name in (input_name, output_name)]
        if not all(cells):
            traffic.skipped += 1
            continue
        lens = [_whole(cell) for cell in cells]
        for name, cell, length in zip((input_name, output_name), cells, lens, strict=True):
            if length is None:
                raise InputError(
                    f"{path}:{reader.line_num}: {name} is {cell!r}, not a number of tokens",
                    "name the right columns with --input-column and --output-column",
                )
        request = _request(
            {**{k: v for k, v in row.items() if k}, "prompt_tokens": lens[0], "completion_tokens": lens[1]}
        )
        if request is None:
            traffic.skipped += 1
        else:
            traffic.requests.append(request)
    if not traffic.requests:
        raise InputError(
            f"{path}: no row has a prompt and an answer of at least one token",
            "name the right columns with --input-column and --output-column",
        )
    return traffic


def _column(path: Path, columns: Iterable[str], wanted: str | None, known: tuple[str, ...], flag: str) -> str:
    columns = list(columns)
    if wanted is not None:
        if wanted not in columns:
            raise InputError(f"{path}:1: no column {wanted!r}", f"columns: {', '.join(columns)}")
        return wanted
    found = [name for name in known if name in columns]
    if not found:
        raise InputError(
            f"{path}:1: no column has a known name", f"name it with {flag}; columns: {', '.join(columns)}"
        )
    return found[0]


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for line in file:
                if line.strip():
                    yield line
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", "name a file that you may read"
        ) from error


def _json_fields(line: str) -> dict[str, Any] | None:
    """The scalar fields of the line's JSON object, those of inner objects too; None if there is no object."""
    start = line.find("{")
    if start < 0:
        return None
    try:
        record = json.loads(line[start:])
    except ValueError:
        return None
    return dict(_walk(record)) if isinstance(record, dict) else None


def _walk(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    # Inner objects first: a field nearer to the top wins in the dict that is made of this.
    for value in record.values():
        if isinstance(value, dict):
            yield from _walk(value)
    for key, value in record.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            yield key, value


def _text_fields(line: str) -> dict[str, Any]:
    return {match["name"]: match["value"] for match in _PAIR.finditer(line)}


def _request(fields: Mapping[str, Any]) -> SeenRequest | None:
    input_len = _first_whole(fields, INPUT_NAMES)
    output_len = _first_whole(fields, OUTPUT_NAMES)
    if not input_len or not output_len:
        return None
    times = (seconds(fields[name]) for name in TIME_NAMES if name in fields)
    sessions = (str(fields[name]) for name in SESSION_NAMES if fields.get(name))
    return SeenRequest(
        input_len, output_len, next((t for t in times if t is not None), None), next(sessions, None)
    )


def _first_whole(fields: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((n for name in names if name in fields and (n := _whole(fields[name])) is not None), None)


def _whole(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and number == int(number) and number >= 0 else None
