"""Files of one repository, and never from outside; here those of the working tree.

A path that leaves the root (`..`, absolute, `~`, a symlink that points out) is not opened; the caller is
told.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Final, Protocol

from kvplan.gate.taint import clean_input

MAX_FILE_BYTES: Final = 8 * 1024 * 1024
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks: text although it holds NULs."""


class RepoFiles(Protocol):
    """Where the readers get text from."""

    def read(self, path: str) -> str | None:
        """The text of a file under the root; None when there is none, it is too large, or it lies outside."""

    def exists(self, path: str) -> bool:
        """Whether there is a file of that path under the root."""

    def occupied(self, path: str) -> bool:
        """Whether anything has that path: a link, a folder, a pipe, or a file that is too large count."""


def inside(base: str, reference: str) -> str | None:
    """The root-relative path of a reference made in a folder; None when it leaves the root.

    Args:
        base: folder of the referring file, relative to the root ("" is the root).
        reference: as written.
    """
    if not reference or reference.startswith(("~", "/")) or "\0" in reference or "\\" in reference:
        return None
    joined = posixpath.normpath(posixpath.join(base, reference))
    if joined == ".." or joined.startswith(("../", "/")):
        return None
    return joined


def decode(data: bytes) -> str:
    """Text of any bytes: UTF-8 with replacement, a byte order mark and NULs taken out, marks neutralised."""
    if data.startswith(_UTF16):
        text = data.decode("utf-16", errors="replace")
    else:
        text = data.decode("utf-8", errors="replace")
    text = text.removeprefix("\ufeff").replace("\0", "�")
    return clean_input(text.replace("\r\n", "\n").replace("\r", "\n"))


def _no_links(path: str, flags: int) -> int:
    """Opens what was looked at: a pipe or a link put in its place afterwards must not hang the gate."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)


class DiskFiles:
    """The working tree under a root."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))

    @property
    def root(self) -> Path:
        """The root with symlinks resolved."""
        return self._root

    def read(self, path: str) -> str | None:
        """The text of a regular file under the root, links resolved first."""
        data = self.read_bytes(path)
        return None if data is None else decode(data)

    def read_bytes(self, path: str) -> bytes | None:
        """The bytes, None when it is no regular file under the root or larger than the limit."""
        real = self._resolve(path)
        if real is None:
            return None
        try:
            with open(real, "rb", opener=_no_links) as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError:
            return None
        return data if len(data) <= MAX_FILE_BYTES else None

    def exists(self, path: str) -> bool:
        """Whether there is a regular file of that path under the root."""
        return self._resolve(path) is not None

    def occupied(self, path: str) -> bool:
        """Whether anything has that path, readable or not."""
        return os.path.lexists(self._root / path)

    def why_unread(self, path: str) -> str | None:
        """Why a file that gave no bytes is one that somebody should know of; None if it is not.

        A program's binary beyond the limit is no config, and what a link names has its own place.
        """
        real = self._resolve(path)
        if real is None:
            return None
        try:
            with open(real, "rb", opener=_no_links) as file:
                head = file.read(4096)
        except OSError as error:
            return f"not readable ({error.strerror})"
        if Path(real).stat().st_size <= MAX_FILE_BYTES:
            return None
        return "file too large, skipped" if b"\0" not in head or head.startswith(_UTF16) else None

    def _resolve(self, path: str) -> str | None:
        try:
            real = os.path.realpath(self._root / path)
            if real != str(self._root) and not real.startswith(str(self._root) + os.sep):
                return None
            return real if Path(real).is_file() else None
        except (OSError, ValueError):
            return None


class NotedFiles:
    """Files of which it is written down which were asked for, there or not."""

    def __init__(self, files: RepoFiles, asked: set[str]) -> None:
        self._files = files
        self._asked = asked

    def read(self, path: str) -> str | None:
        """The text of the file."""
        self._asked.add(path)
        return self._files.read(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        self._asked.add(path)
        return self._files.exists(path)

    def occupied(self, path: str) -> bool:
        """Whether anything has that path."""
        return self._files.occupied(path)
