"""Files that others wrote: whatever is wrong in them is the file's fault, never a traceback.

Readers name the field and the line where they can. This catches what no reader foresaw: a text where a number
belongs, a section of the wrong kind, numbers without end, nesting without end.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES: Final = 256 * 2**20
"""No file that is read whole is longer: what is, is a device, a dump or somebody's joke."""


def read_bytes(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """All of a file that somebody named: never endless, whatever the name leads to.

    Args:
        path: a file, or a pipe.
        most_bytes: a longer one is refused before the rest is read.

    Raises:
        FileNotFoundError: there is nothing of that name.
        InputError: a folder, unreadable, or too long.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", "name a file that you may read"
        ) from error
    if len(content) > most_bytes:
        raise InputError(
            f"{path} is longer than {most_bytes // 2**20} MiB, which no such file is", "name another file"
        )
    return content


def read_text(path: Path, *, most_bytes: int = MOST_BYTES, errors: str = "strict") -> str:
    """The whole text of such a file.

    Args:
        path: a file, or a pipe.
        most_bytes: a longer one is refused before the rest is read.
        errors: what to do about bytes that are not UTF-8, as `bytes.decode` takes it.

    Raises:
        FileNotFoundError: there is nothing of that name.
        InputError: a folder, unreadable, too long, or not UTF-8.
    """
    content = read_bytes(path, most_bytes=most_bytes)
    try:
        return content.decode("utf-8", errors=errors)
    except UnicodeDecodeError as error:
        where = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{where} cannot be read: not UTF-8 text", "is it the file that you mean?"
        ) from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn an unforeseen error while a foreign file is read into one line about that file.

    Args:
        what: the file, for the message.

    Raises:
        InputError: the file holds something that its reader cannot make sense of.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:160] or "no detail"
        raise InputError(
            f"{what} holds a value that makes no sense there ({type(error).__name__}: {reason})",
            "compare it with a file that is known to work",
        ) from error
