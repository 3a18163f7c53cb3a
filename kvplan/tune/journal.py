"""The journal of a run: `kvplan-runs/<id>/journal.jsonl`, one self-contained JSON line a step.

A line is on the disk (fsync) before the next step begins. A torn last line, which a kill or a power loss can
leave, is dropped with a warning: its trial is repeated. Nothing else is ever rewritten.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError, KvplanError
from kvplan.foreign import read_bytes
from kvplan.tune.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA: Final = "kvplan.journal/1"
FILE_NAME: Final = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class JournalContents:
    """A journal as read. `good_bytes` is where the last whole line ends."""

    path: Path
    header: Mapping[str, Any]
    lines: tuple[Mapping[str, Any], ...]
    warnings: tuple[str, ...]
    good_bytes: int

    @property
    def run_id(self) -> str:
        """The run's name, as in its folder's."""
        return str(self.header["run"])

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The finished trials, in the order they were made."""
        return tuple(Trial.from_dict(line["trial"]) for line in self.lines if line["kind"] == "trial")

    def finished(self) -> dict[str, Trial]:
        """Trial key -> the finished trial."""
        return {line["key"]: Trial.from_dict(line["trial"]) for line in self.lines if line["kind"] == "trial"}

    def last(self, kind: str) -> Mapping[str, Any] | None:
        """The newest line of a kind."""
        return next((line for line in reversed(self.lines) if line["kind"] == kind), None)

    @property
    def measured_s(self) -> float:
        """Wall time that finished trials took, over all sessions of the run."""
        return sum(trial.wall_s for trial in self.trials)


@dataclass(slots=True)
class Journal:
    """A journal open for appending; holds the run's lock until closed."""

    contents: JournalContents
    _file: int
    _size: int
    _appended: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.contents.path.parent

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self.contents.run_id

    def append(self, kind: str, **fields: Any) -> None:
        """Add one line; it is on the disk when this returns.

        Raises:
            KvplanError: the disk is full or refuses; the journal is as it was before.
            KeyboardInterrupt: passed on; the line is in the journal whole or not at all.
        """
        line = {
            "schema": SCHEMA,
            "run": self.run_id,
            "seq": len(self.contents.lines) + len(self._appended),
            "at": utc_now(),
            "kind": kind,
            **fields,
        }
        try:
            write_line(self._file, line, self._size, self.contents.path)
        finally:
            self._reckon(line)

    def _reckon(self, line: Mapping[str, Any]) -> None:
        """Count the line if it is there: an interrupt may have come before it, behind it, or within."""
        with contextlib.suppress(OSError):
            size = os.fstat(self._file).st_size
            if size == self._size + len(encoded(line)):
                self._size = size
                self._appended.append(line)
            elif size > self._size:
                os.ftruncate(self._file, self._size)


@contextlib.contextmanager
def new_journal(runs_dir: Path, header: Mapping[str, Any]) -> Iterator[Journal]:
    """A new run: its folder, its lock, and the first line of its journal.

    Raises:
        KvplanError: the folder cannot be made or written.
    """
    run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    folder = runs_dir / run_id
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise KvplanError(
            f"cannot make the run's folder {folder}: {error.strerror}", "name another with --runs-dir"
        ) from error
    path = folder / FILE_NAME
    first = {"schema": SCHEMA, "run": run_id, "seq": 0, "at": utc_now(), "kind": "run", **header}
    with _locked(folder):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            size = write_line(file, first, 0, path)
        except KvplanError as error:
            # A run without its first line is none: it must not be the one that `--resume last` finds.
            os.close(file)
            shutil.rmtree(folder, ignore_errors=True)
            raise KvplanError(error.message, "make room, or name another folder with --runs-dir") from error
        _sync_folder(folder)
        contents = JournalContents(path, first, (first,), (), size)
        journal = Journal(contents, file, size)
        try:
            yield journal
        finally:
            os.close(file)


@contextlib.contextmanager
def reopened_journal(folder: Path) -> Iterator[Journal]:
    """An existing run's journal, locked, its torn last line cut off, ready to be continued.

    Raises:
        InputError: no journal there, another process is tuning it, or a line before the last is broken.
    """
    with _locked(folder):
        contents = read_journal(folder)
        file = os.open(contents.path, os.O_WRONLY | os.O_APPEND)
        try:
            os.ftruncate(file, contents.good_bytes)
            yield Journal(contents, file, contents.good_bytes)
        finally:
            os.close(file)


def read_journal(run: Path) -> JournalContents:
    """The journal of a run's folder (or the file itself), without touching it.

    Raises:
        InputError: no journal, not a journal, or a broken line that is not the last one.
    """
    path = run / FILE_NAME if run.is_dir() else run
    if path.exists() and not path.is_file():
        # A pipe would be waited for without end.
        raise InputError(f"{path} is no regular file", "give a run's name, its folder or its journal.jsonl")
    try:
        raw = read_bytes(path)
    except FileNotFoundError as error:
        raise InputError(
            f"no journal at {path}: {error.strerror}", "give a run's name, its folder or its journal.jsonl"
        ) from error
    lines: list[Mapping[str, Any]] = []
    warnings: list[str] = []
    good = 0
    pieces = raw.split(b"\n")
    for number, piece in enumerate(pieces, start=1):
        # Only what follows the last newline can be torn: every whole line was written with its newline.
        is_last = number == len(pieces)
        if is_last and not piece:
            break
        line = _parsed(piece)
        if line is None:
            rest_is_empty = not any(p.strip(b"\0") for p in pieces[number:])
            if rest_is_empty and lines:
                warnings.append(
                    f"{path}:{number}: the last line is torn ({len(piece)} bytes) and was dropped; "
                    "its trial will be repeated"
                )
                break
            raise InputError(f"{path}:{number} is not a line of a {SCHEMA} journal", "restore the file")
        if is_last:
            # Whole but without its newline: the write was cut just there. Cheaper to repeat than to trust.
            warnings.append(f"{path}:{number}: the last line lacks its end and was dropped")
            break
        if line.get("seq", len(lines)) != len(lines):
            raise InputError(
                f"{path}:{number} has seq {line['seq']!r} where {len(lines)} is due: lines are missing",
                "restore the file",
            )
        lines.append(line)
        good += len(piece) + 1
    if not lines or lines[0].get("kind") != "run":
        raise InputError(f"{path} does not begin with a run", "it is not a journal of kvplan tune")
    return JournalContents(path, lines[0], tuple(lines), tuple(warnings), good)


def tuned_by(run: Path) -> str | None:
    """Who tunes the run right now, as `process N`; None when nobody does, and it can be gone on with."""
    try:
        lock = os.open((run if run.is_dir() else run.parent) / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 64, 0).decode(errors="replace").strip()
        return f"process {owner}" if owner else "another process"
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(lock)
    return None


def find_run(run: str, runs_dir: Path) -> Path:
    """The folder of a run: a path, a name under `runs_dir`, or `last`.

    Raises:
        InputError: no such run; the message offers the newest ones.
    """
    as_path = Path(run)
    if as_path.exists():
        return as_path if as_path.is_dir() else as_path.parent
    known = sorted(path.parent.name for path in runs_dir.glob(f"*/{FILE_NAME}"))
    if run == "last" and known:
        return runs_dir / known[-1]
    if run in known:
        return runs_dir / run
    newest = ", ".join(reversed(known[-3:])) if known else f"none under {runs_dir}"
    raise InputError(f"no run {run!r}", f"known runs: {newest}")


def difference(there: Any, here: Any, at: str = "") -> list[str]:
    """Where two JSON values differ, as `key.path: there / here` lines."""
    if isinstance(there, dict) and isinstance(here, dict):
        found: list[str] = []
        for key in sorted({*there, *here}):
            found += difference(there.get(key), here.get(key), f"{at}.{key}" if at else key)
        return found
    if isinstance(there, (list, tuple)) and isinstance(here, (list, tuple)):
        return [] if list(there) == list(here) else [f"{at}: {list(there)} in the run, {list(here)} now"]
    return [] if there == here else [f"{at}: {there} in the run, {here} now"]


def refuse_mixing(contents: JournalContents, problem: Mapping[str, Any], context: Mapping[str, Any]) -> None:
    """A run is continued only with the settings, machine and versions that it was begun with.

    Raises:
        InputError: something differs; the message names what.
    """
    now = json.loads(json.dumps({"problem": problem, "context": context}))
    then = {"problem": dict(contents.header["problem"]), "context": contents.header["context"]}
    # Where the model lies is not what it is: its fingerprint is in the context.
    now["problem"].pop("model", None)
    then["problem"].pop("model", None)
    found = difference(then, now)
    if found:
        raise InputError(
            f"run {contents.run_id} was made differently: " + "; ".join(found[:4]),
            "start a new run, or resume it with the settings and on the machine that it was begun with",
        )


def encoded(line: Mapping[str, Any]) -> bytes:
    """The line as it stands in the file."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def write_line(file: int, line: Mapping[str, Any], size: int, path: Path) -> int:
    """Append one line and fsync; gives its bytes. On an error the file is cut back to `size`.

    Raises:
        KvplanError: the disk is full, over quota, or gone.
    """
    data = encoded(line)
    written = 0
    try:
        while written < len(data):
            written += os.write(file, data[written:])
        os.fsync(file)
    except OSError as error:
        with contextlib.suppress(OSError):  # a device that cannot be cut; the reader drops a torn line anyway
            os.ftruncate(file, size)
        why = error.strerror or errno.errorcode.get(error.errno or 0, "error")
        raise KvplanError(
            f"the journal {path} could not be written: {why}",
            f"nothing measured before is lost; make room, then: kvplan tune --resume {path.parent}",
        ) from error
    return len(data)


def utc_now() -> str:
    """UTC, ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _parsed(piece: bytes) -> Mapping[str, Any] | None:
    try:
        line = json.loads(piece)
    except ValueError:
        return None
    return line if isinstance(line, dict) and line.get("schema") == SCHEMA else None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The run's lock: the kernel lets go of it when its owner dies, however it dies."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(
            f"cannot lock the run {folder}: {error.strerror}",
            "give kvplan leave to write there, or choose --runs-dir",
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = (folder / "lock").read_text().strip() or "unknown"
            raise InputError(
                f"run {folder.name} is being tuned by process {owner}",
                "wait for it, or start a run of its own",
            ) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)


def _sync_folder(folder: Path) -> None:
    """The new file's name itself must survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
