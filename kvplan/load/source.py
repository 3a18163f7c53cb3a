"""Whatever describes traffic (preset, workload file, log, CSV, Prometheus text or server) -> a workload."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError
from kvplan.load.compose import Extras, from_histograms, from_requests
from kvplan.load.histograms import fetch_text, read_histograms
from kvplan.load.traffic import read_csv, read_requests
from kvplan.load.workload_file import dump_workload, find_workload, parse_workload

if TYPE_CHECKING:
    from kvplan.load.traffic import Traffic
    from kvplan.load.workload import Workload

_PROMETHEUS: Final = re.compile(r"^(# (HELP|TYPE) \S+|vllm:\w+(\{[^\n]*\})? [0-9.e+-]+)", re.MULTILINE)
_PEEK_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Made:
    """A workload with the text of its file."""

    workload: Workload
    text: str
    notes: tuple[str, ...]
    """What a reader should know of how it was made."""


def workload_from(
    source: str,
    extras: Extras,
    *,
    model: str | None = None,
    api_key: str | None = None,
    input_column: str | None = None,
    output_column: str | None = None,
    profiles_dir: str | None = None,
) -> Made:
    """Read traffic from wherever it is described; files are told apart by what is in them.

    Args:
        source: preset, workload file, JSON lines, access log, CSV, Prometheus text, or URL of a server.
        extras: what the source cannot say.
        model: `model_name` of a server's histograms.
        api_key: of a server.
        input_column: of a CSV.
        output_column: of a CSV.
        profiles_dir: a folder of profiles that wins.

    Raises:
        InputError: there is no such thing, or it cannot be read (with file:line where there is one).
    """
    if source.startswith(("http://", "https://")):
        return _from_prometheus(fetch_text(source, api_key), source, extras, model)
    path = Path(source)
    if not path.is_file():
        preset = find_workload(source, profiles_dir, given_as="SOURCE")
        text = preset.read_text(encoding="utf-8")
        return Made(parse_workload(text, preset), text, ())
    try:
        with path.open("rb") as file:
            head = file.read(_PEEK_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", "name a file that you may read"
        ) from error
    if re.search(r"^schema: *\S+", head, re.MULTILINE):
        text = path.read_text(encoding="utf-8")
        return Made(parse_workload(text, path), text, ())
    if _PROMETHEUS.search(head):
        return _from_prometheus(path.read_text(encoding="utf-8", errors="replace"), source, extras, model)
    if _looks_like_csv(path, head) or input_column or output_column:
        return _from_traffic(read_csv(path, input_column, output_column), path, extras)
    return _from_traffic(read_requests(path), path, extras)


def default_name(source: str) -> str:
    """What a workload is called after: the file's name without its ending, or the server's host and port."""
    if source.startswith(("http://", "https://")):
        server = re.split(r"[/?#]", source.partition("://")[2])[0].rpartition("@")[2]
        return re.sub(r"[^\w.]+", "-", server).strip("-") or "server"
    return Path(source).stem


def _looks_like_csv(path: Path, head: str) -> bool:
    first = head.split("\n", 1)[0]
    return path.suffix.lower() == ".csv" or ("," in first and not re.search(r"[{=]|\d{2}:\d{2}", first))


def _from_prometheus(text: str, source: str, extras: Extras, model: str | None) -> Made:
    inputs, outputs = read_histograms(text, source, model)
    notes = (
        f"{inputs.count:,} prompts and {outputs.count:,} answers, counted since the server started",
        "lengths between two bucket bounds are interpolated; the longest is the last bucket's bound"
        + ("" if extras.max_model_len is None else ", or --max-model-len"),
    )
    return _made(from_histograms(inputs, outputs, extras), source, notes)


def _from_traffic(traffic: Traffic, path: Path, extras: Extras) -> Made:
    notes = [f"{len(traffic.requests):,} requests"]
    if traffic.skipped:
        notes.append(
            f"{traffic.skipped:,} lines without the tokens of a prompt and of an answer were left out"
        )
    return _made(from_requests(traffic.requests, extras), str(path), tuple(notes))


def _made(document: dict[str, Any], source: str, notes: tuple[str, ...]) -> Made:
    text = dump_workload(document)
    # Read back as a user's file would be: what is written can be read.
    return Made(parse_workload(text, Path(source)), text, notes)
