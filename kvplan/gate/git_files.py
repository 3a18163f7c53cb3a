"""The tree of one commit, read from git's objects: nothing is checked out, no hook or filter runs on it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Final, Self

from kvplan.errors import InputError
from kvplan.gate.repo_files import MAX_FILE_BYTES, decode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import IO

GIT_SAFE: Final = (
    "--no-pager",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.quotePath=false",
    "-c",
    "safe.bareRepository=explicit",  # a folder of the change that looks like a repository is none
)
"""Before every command: no program that the configuration names is started by it."""
_NO_GIT: Final = ("git is not installed", "give files instead of --base")


def git(root: Path, *arguments: str, settings: Sequence[str] = ()) -> str:
    """What git answers; names of files as Python's own functions write them.

    Args:
        root: the repository.
        arguments: the command and its own.
        settings: what its configuration shall say for this one call, as `-c` takes it.

    Raises:
        InputError: git is missing or says no; its last line is the message.
    """
    try:
        result = subprocess.run(
            [  # noqa: S607  the user's git
                "git",
                *GIT_SAFE,
                *(word for setting in settings for word in ("-c", setting)),
                "-C",
                str(root),
                *arguments,
            ],
            capture_output=True,
            check=False,
            timeout=120,
            env=_environment(),
        )
    except FileNotFoundError:
        raise InputError(*_NO_GIT) from None
    except subprocess.TimeoutExpired:
        raise InputError(
            f"git {arguments[0]} did not answer within 120 s", "is the repository on a slow or broken disk?"
        ) from None
    if result.returncode:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        raise InputError(
            f"git {arguments[0]}: {lines[-1] if lines else 'failed'}",
            "run it by hand in the repository to see why",
        )
    return os.fsdecode(result.stdout)


def without_filters(root: Path) -> list[str]:
    """Settings that switch off every content filter, for a command that compares files of the working tree.

    A pull request's `.gitattributes` says which file goes through which filter; what the filter runs is the
    user's configuration. Git has no option to leave them all out, only one by one.

    Raises:
        InputError: one has a name that cannot be given on a command line.
    """
    keys = git(root, "config", "--null", "--name-only", "--list").split("\0")
    names = {key.removeprefix("filter.").rpartition(".")[0] for key in keys if key.startswith("filter.")}
    for name in names:
        if "=" in name:
            raise InputError(
                f"git's configuration has a filter named {name!r}: it cannot be switched off for one command",
                "give it a name without =",
            )
    off = ("clean=", "process=", "required=false")
    return [f"filter.{name}.{setting}" for name in sorted(names) for setting in off]


def _environment() -> dict[str, str]:
    """Git asks nobody for a password, and refreshes no index."""
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


class GitFiles:
    """The files of one commit. Used as a context manager: it keeps a git open, as long as it is read."""

    def __init__(self, root: Path, commit: str) -> None:
        self._root = root
        self._commit = commit
        self._ids: dict[str, str] | None = None
        self._sizes = _CatFile(root, "--batch-check")
        self._contents = _CatFile(root, "--batch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sizes.close()
        self._contents.close()

    def names(self) -> frozenset[str]:
        """All regular files of the commit (links and submodules are left out)."""
        return frozenset(self._objects())

    def read(self, path: str) -> str | None:
        """The text of the file in that commit; None when there is none or it is too large.

        Raises:
            InputError: this clone lacks it.
        """
        object_id = self._objects().get(path)
        if object_id is None or self._sizes.size(object_id) > MAX_FILE_BYTES:
            return None
        return decode(self._contents.content(object_id))

    def exists(self, path: str) -> bool:
        """Whether the commit has the file."""
        return path in self._objects()

    def occupied(self, path: str) -> bool:
        """Whether the commit has anything of that path: links and submodules count."""
        return bool(git(self._root, "ls-tree", "-z", "--full-tree", self._commit, "--", path))

    def _objects(self) -> dict[str, str]:
        if self._ids is None:
            out = git(self._root, "ls-tree", "-r", "-z", "--full-tree", self._commit)
            entries = (entry.partition("\t") for entry in out.split("\0") if entry)
            self._ids = {path: meta.split(" ")[2] for meta, _, path in entries if meta.startswith("100")}
        return self._ids


class _CatFile:
    """`git cat-file`, asked one object after the other: a process an object would take most of the time."""

    def __init__(self, root: Path, mode: str) -> None:
        self._root = root
        self._mode = mode
        self._process: subprocess.Popen[bytes] | None = None

    def size(self, object_id: str) -> int:
        """Bytes of an object.

        Raises:
            InputError: it is not there, or git is not.
        """
        return self._asked(object_id)[1]

    def content(self, object_id: str) -> bytes:
        """The object itself.

        Raises:
            InputError: it is not there, or git is not.
        """
        out, size = self._asked(object_id)
        data = out.read(size + 1)  # and the end of the line
        if len(data) != size + 1:
            raise InputError(
                f"git cat-file: {object_id} ended early", "`git fsck` shows what the repository lacks"
            )
        return data[:-1]

    def _asked(self, object_id: str) -> tuple[IO[bytes], int]:
        """The pipe that the answer comes out of, behind its head, and the size that the head says."""
        if self._process is None:
            self._process = self._started()
        asks, answers = self._process.stdin, self._process.stdout
        assert asks is not None and answers is not None  # noqa: S101, PT018  both are pipes
        try:
            asks.write(f"{object_id}\n".encode())
            asks.flush()
            head = answers.readline().split()
        except BrokenPipeError:
            head = []
        if len(head) != 3 or not head[2].isdigit():
            raise InputError(
                f"git cat-file: this clone lacks the object {object_id}",
                "fetch the base branch with its files",
            )
        return answers, int(head[2])

    def _started(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                ["git", *GIT_SAFE, "-C", str(self._root), "cat-file", self._mode],  # noqa: S607  the user's git
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
        except FileNotFoundError:
            raise InputError(*_NO_GIT) from None

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None
