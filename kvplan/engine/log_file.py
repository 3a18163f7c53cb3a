"""The file that vLLM's streams go to, kept from filling the disk while vLLM writes to it.

Standard library only: the guard uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
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

    def __init__(self, path: Path) -> None:
        self.path = path
        self._dropped_up_to = 0

    def append(self, line: str) -> None:
        """Add a line of ours."""
        with contextlib.suppress(OSError), self.path.open("ab") as file:
            file.write(f"\n{line}\n".encode())

    def keep_small(self, max_bytes: int = MAX_BYTES, kept_bytes: int = KEPT_BYTES) -> bool:
        """Give up the middle when the file takes more than `max_bytes` of disk.

        Returns:
            Whether it is within bounds now; a file system without holes (NFS) can't do it.
        """
        try:
            status = self.path.stat()
            if status.st_blocks * _BLOCK <= max_bytes:
                return True
            end = status.st_size - kept_bytes
            with self.path.open("rb+") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                offset, length = ctypes.c_int64(kept_bytes), ctypes.c_int64(end - kept_bytes)
                failed = libc.fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, offset, length)
        except OSError:
            return False
        if failed:
            return False
        self._dropped_up_to = end
        return True

    def close_gap(self, kept_bytes: int = KEPT_BYTES) -> None:
        """Replace a hole by one line; nobody may write to the file any more."""
        if self._dropped_up_to == 0:
            return
        shorter = self.path.with_name(self.path.name + ".tmp")
        with contextlib.suppress(OSError), self.path.open("rb") as old, shorter.open("wb") as new:
            new.write(old.read(kept_bytes))
            dropped = self._dropped_up_to - kept_bytes
            new.write(f"\n[kvplan] {dropped} bytes of the log were dropped here\n".encode())
            old.seek(self._dropped_up_to)
            shutil.copyfileobj(old, new)
            os.replace(shorter, self.path)  # noqa: PTH105  the open files make it one step
