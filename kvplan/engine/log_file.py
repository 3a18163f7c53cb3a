"""The file that vLLM's streams go to, kept from filling the disk while vLLM writes to it.

Standard library only: the guard uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

STOP_MARK: Final = "[kvplan] stopping"
"""What vLLM prints behind a line that begins so is its shutdown, however much it looks like a crash."""

MAX_BYTES: Final = 128 << 20
"""Disk space of a log from which its middle is given up."""
KEPT_BYTES: Final = 16 << 20
"""How much of its beginning and of its end is kept then."""

_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01
_BLOCK: Final = 512


class LogFile:
    """One log. Its middle goes as a hole in the file: who appends to it, or follows it, notices nothing."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, kept_bytes: int = KEPT_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._kept_bytes = kept_bytes

    def append(self, line: str) -> None:
        """Add a line of ours."""
        with contextlib.suppress(OSError), self.path.open("ab") as file:
            file.write(f"\n{line}\n".encode())

    def keep_small(self) -> bool:
        """Give up the middle when the file takes more disk than it may.

        Returns:
            Whether it is within bounds now; a file system without holes (NFS) can't do it.
        """
        try:
            status = self.path.stat()
            if status.st_blocks * _BLOCK <= self._max_bytes:
                return True
            length = ctypes.c_int64(status.st_size - 2 * self._kept_bytes)
            with self.path.open("rb+") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                start = ctypes.c_int64(self._kept_bytes)
                return bool(libc.fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, start, length) == 0)
        except OSError:
            return False

    def close_gap(self) -> None:
        """Put one line in the place of the middle; nobody may write to the file any more."""
        shorter = self.path.with_name(self.path.name + ".tmp")
        with contextlib.suppress(OSError):
            size = self.path.stat().st_size
            if size <= self._max_bytes:
                return
            with self.path.open("rb") as old, shorter.open("wb") as new:
                new.write(old.read(self._kept_bytes))
                dropped = size - 2 * self._kept_bytes
                new.write(f"\n[kvplan] {dropped} bytes of the log were dropped here\n".encode())
                old.seek(size - self._kept_bytes)
                shutil.copyfileobj(old, new)
            shorter.replace(self.path)
