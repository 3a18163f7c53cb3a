"""The user's own store of launches: one `kvplan.launch/1` line each, appended by every real start."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.foreign import read_text

if TYPE_CHECKING:
    from kvplan.config.project_file import ProjectFile
    from kvplan.launch import Launch


def store_path(project: ProjectFile | None = None) -> Path:
    """Where launches are kept: the file that .kvplan.yaml names, else the user's own."""
    if project is not None and project.launches is not None:
        return project.launches
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "kvplan" / "launches.jsonl"


def remember(launch: Launch, path: Path) -> None:
    """Append one launch: a whole line, on the disk before this returns.

    Raises:
        InputError: the file cannot be written.
    """
    line = json.dumps(launch.as_dict(), separators=(",", ":"), default=str) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            # A line that a kill tore apart must not swallow this one.
            if file.tell() and not _ends_with_newline(path):
                file.write(b"\n")
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}", "name another file, as `launches:` in .kvplan.yaml"
        ) from error


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def remembered(path: Path) -> tuple[tuple[Launch, ...], int]:
    """Every launch in the store, and how many lines were not launches (torn by a kill, or written by others).

    Raises:
        InputError: the file is there but cannot be read.
    """
    try:
        lines = read_text(path, errors="replace").splitlines()
    except FileNotFoundError:
        return (), 0
    from kvplan.launch import Launch

    launches: list[Launch] = []
    damaged = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            launches.append(Launch.from_dict(json.loads(line)))
        except (ValueError, TypeError, AttributeError):
            damaged += 1
    return tuple(launches), damaged
