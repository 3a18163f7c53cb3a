"""Look a profile up by name: one small read, no YAML. Builds the index first where there is none yet.

An index is one file: a line of JSON with all names and where each record lies, then the records. A look-up
reads the first line and one record, so that a catalogue of hundreds costs as much as one of ten.
"""

from __future__ import annotations

import functools
import json
import os
import time
import zlib
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INDEX_FILE: Final = "index.jsonl"
_YAML: Final = (".yaml", ".yml")
_SHAPE: Final = "1"
"""Raised when the shape of an index changes, so that no cached one of another shape is read."""
KINDS: Final = ("engines", "gpus", "models", "policies", "workloads")
"""Sub-folders that hold profiles; whatever else lies in a folder is not looked at."""
_MOST_ENTRIES: Final = 10_000
"""Files in one sub-folder: a hundred times what is built in."""
_KEEP_S: Final = 30 * 24 * 3600
"""Cached indexes older than this are removed when another is made."""


class ProfileIndex(FrozenRecord):
    """The profiles of one folder."""

    folder: str
    """Where its YAML lies, for messages."""
    path: str | None
    """The index file; None where none could be written, and all of it is in `content`."""
    content: bytes
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
        start = self.body + offset
        if self.path is None:
            found = self.content[start : start + length]
        else:
            with open(self.path, "rb") as file:
                file.seek(start)
                found = file.read(length)
        record: dict[str, Any] = json.loads(found)
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
            if not any(os.path.isdir(os.path.join(path, kind)) for kind in KINDS):
                raise InputError(
                    f"{origin}: {path} holds no profiles: none of {', '.join(f'{kind}/' for kind in KINDS)}",
                    "name the folder above models/ or gpus/",
                )
            found.append(path)
    if os.path.isdir(user_folder()):
        found.append(user_folder())
    return [*dict.fromkeys(map(os.path.abspath, found)), _built_in_folder()]


def folder_to_write(profiles_dir: str | None = None) -> str:
    """The folder that a new user's profile goes to; it may not exist yet."""
    return profiles_dir or os.environ.get("KVPLAN_PROFILES") or user_folder()


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


_opened: Final[dict[tuple[str, str], ProfileIndex]] = {}
"""What this process has read, by folder and fingerprint."""


def _index_of(folder: str) -> ProfileIndex:
    shipped = os.path.join(folder, INDEX_FILE)
    is_built_in = folder == _built_in_folder()
    is_shipped = is_built_in and os.path.isfile(shipped)
    key = INDEX_FILE if is_shipped else _own_fingerprint(folder) if is_built_in else _fingerprint(folder)
    known = _opened.get((folder, key))
    if known is None or (known.path is not None and not os.path.isfile(known.path)):
        known = _read(folder, shipped) if is_shipped else _from_cache(folder, key)
        _opened[folder, key] = known
    return known


def _from_cache(folder: str, key: str) -> ProfileIndex:
    path = os.path.join(_cache_folder(), f"profiles-{key}.jsonl")
    if os.path.isfile(path):
        return _read(folder, path)
    content = _compiled(folder)
    try:
        _store(content, path)
    except OSError:
        # A read-only home: the index is made anew by each process, which costs a quarter of a second.
        return _parsed(folder, None, content, content[: content.index(b"\n") + 1])
    return _read(folder, path)


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "kvplan")


def _fingerprint(folder: str) -> str:
    """A key that changes when any profile of the folder, or the code that reads profiles, does.

    A checksum of all names, times and sizes, with the newest time and the sum of sizes beside it, because 32
    bits alone are few; hashlib would take longer to import than all else here takes.
    """
    here = os.path.dirname(__file__)
    seen = [os.path.join(here, name) for name in ("schema.py", "compile.py", "names.py")]
    folders_read = [folder]
    if folder != _built_in_folder():
        folders_read.append(_built_in_folder())  # a user's profile may start from a built-in one
    for read in folders_read:
        for kind in KINDS:
            seen += profile_files(os.path.join(read, kind))
    stats = [(path, os.stat(path)) for path in seen]
    text = "\n".join(f"{path} {stat.st_mtime_ns} {stat.st_size}" for path, stat in stats)
    newest = max(stat.st_mtime_ns for _, stat in stats)
    size = sum(stat.st_size for _, stat in stats)
    return f"{_SHAPE}-{zlib.crc32(f'{folder} {text}'.encode()):08x}-{newest:x}-{size:x}"


_own_fingerprint: Final = functools.cache(_fingerprint)
"""What kvplan brings along stays as it is while it runs; a user's folder may be written to."""


def profile_files(folder: str) -> list[str]:
    """The YAML files of one sub-folder of profiles, sorted; none if it is not there.

    Raises:
        InputError: it cannot be read, or holds more entries than any folder of profiles.
    """
    found = []
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number == _MOST_ENTRIES:
                    raise InputError(
                        f"{folder} holds more than {_MOST_ENTRIES:,} files: not a folder of profiles",
                        "name the folder above your own models/ or gpus/",
                    )
                if entry.name.endswith(_YAML):
                    found.append(entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"{folder} cannot be read: {error.strerror}", "give kvplan leave to read it"
        ) from error
    return sorted(found)


def _compiled(folder: str) -> bytes:
    from pathlib import Path

    from kvplan.catalog.compile import compile_folder

    bases = {}
    if folder != _built_in_folder():
        built_in = _index_of(_built_in_folder())
        bases = {model: built_in.record("models", model)["config"] for model in built_in.records["models"]}
    return compile_folder(Path(folder), bases)


def _store(content: bytes, path: str) -> None:
    """Write an index so that a reader sees the whole file or none; drop those that were made long ago."""
    cache = os.path.dirname(path)
    os.makedirs(cache, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(content)
    os.replace(temporary, path)
    for entry in os.scandir(cache):
        if entry.name.startswith("profiles-") and entry.stat().st_mtime < time.time() - _KEEP_S:
            os.unlink(entry.path)


def _read(folder: str, path: str) -> ProfileIndex:
    with open(path, "rb") as file:
        return _parsed(folder, path, b"", file.readline())


def _parsed(folder: str, path: str | None, content: bytes, first_line: bytes) -> ProfileIndex:
    header = json.loads(first_line)
    return ProfileIndex(folder, path, content, header["names"], header["records"], len(first_line))
