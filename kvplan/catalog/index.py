"""Look a profile up by name: one small read, no YAML. Builds the index first where there is none yet.

An index is one file: a line of JSON with all names and where each record lies, then the records. A look-up
reads the first line and one record, so that a catalogue of hundreds costs as much as one of ten.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INDEX_FILE: Final = "index.jsonl"
_SHAPE: Final = "1"
"""Raised when the shape of an index changes, so that no cached one of another shape is read."""


@dataclass(frozen=True, slots=True)
class ProfileIndex:
    """The profiles of one folder."""

    folder: str
    """Where its YAML lies, for messages."""
    path: str
    names: Mapping[str, Mapping[str, list[str]]]
    """Kind ("models", "gpus") -> normal form of a name -> ids that go by it."""
    records: Mapping[str, Mapping[str, tuple[int, int]]]
    """Kind -> id -> offset and length of its record behind the first line."""
    body: int
    """Offset of the first record."""

    def record(self, kind: str, profile_id: str) -> dict[str, Any]:
        """The profile as JSON types.

        Raises:
            KeyError: no such id.
        """
        offset, length = self.records[kind][profile_id]
        with open(self.path, "rb") as file:
            file.seek(self.body + offset)
            record: dict[str, Any] = json.loads(file.read(length))
        return record


def folders(profiles_dir: str | None = None) -> list[str]:
    """Profile folders from the strongest to the built-in one; a name is taken from the first that has it.

    Raises:
        InputError: a folder named by `--profiles` or KVPLAN_PROFILES is not there.
    """
    found = []
    for path, origin in (
        (profiles_dir, "--profiles"),
        (os.environ.get("KVPLAN_PROFILES"), "KVPLAN_PROFILES"),
    ):
        if path:
            if not os.path.isdir(path):
                raise InputError(
                    f"{origin}: {path} is not a folder", "name a folder that holds models/ or gpus/"
                )
            found.append(path)
    if os.path.isdir(user_folder()):
        found.append(user_folder())
    return [*dict.fromkeys(map(os.path.abspath, found)), _built_in_folder()]


def user_folder() -> str:
    """`~/.config/kvplan/profiles` (or under XDG_CONFIG_HOME), whether it exists or not."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "kvplan", "profiles")


def indexes(profiles_dir: str | None = None) -> list[ProfileIndex]:
    """The indexes of `folders()`, in the same order.

    Raises:
        InputError: a folder is missing, or one of its profiles is malformed.
    """
    return [_index_of(folder) for folder in folders(profiles_dir)]


def _built_in_folder() -> str:
    in_wheel = os.path.join(_PACKAGE, "_profiles")
    return in_wheel if os.path.isdir(in_wheel) else os.path.join(os.path.dirname(_PACKAGE), "profiles")


def _index_of(folder: str) -> ProfileIndex:
    shipped = os.path.join(folder, INDEX_FILE)
    if folder == _built_in_folder() and os.path.isfile(shipped):
        return _open(folder, shipped, shipped)
    key = _fingerprint(folder)
    path = os.path.join(_cache_folder(), f"profiles-{key}.jsonl")
    if not os.path.isfile(path):
        _build(folder, path)
    return _open(folder, path, key)


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "kvplan")


def _fingerprint(folder: str) -> str:
    """A hash that changes when any profile of the folder, or the code that reads profiles, does."""
    parts = [_SHAPE, folder]
    here = os.path.dirname(__file__)
    seen = [os.path.join(here, "schema.py"), os.path.join(here, "compile.py"), os.path.join(here, "names.py")]
    for kind in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if kind.is_dir():
            seen += sorted(entry.path for entry in os.scandir(kind.path))
    for path in seen:
        stat = os.stat(path)
        parts.append(f"{path} {stat.st_mtime_ns} {stat.st_size}")
    if folder != _built_in_folder():
        # A user's profile may start from a built-in one (`base:`).
        parts.append(_fingerprint(_built_in_folder()))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=12).hexdigest()


def _build(folder: str, path: str) -> None:
    """Write the index of a folder so that a reader sees the old file, the new one or none, never half."""
    from pathlib import Path

    from kvplan.catalog.compile import compile_folder

    bases = {}
    if folder != _built_in_folder():
        built_in = _index_of(_built_in_folder())
        bases = {model: built_in.record("models", model)["config"] for model in built_in.records["models"]}
    content = compile_folder(Path(folder), bases)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


@functools.cache
def _open(folder: str, path: str, version: str) -> ProfileIndex:  # noqa: ARG001  version is part of the cache's key
    with open(path, "rb") as file:
        first = file.readline()
    header = json.loads(first)
    return ProfileIndex(folder, path, header["names"], header["records"], len(first))
