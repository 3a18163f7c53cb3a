"""Files that others wrote: whatever is wrong in them is the file's fault, never a traceback.

Readers name the field and the line where they can. This catches what no reader foresaw: a text where a number
belongs, a section of the wrong kind, numbers without end, nesting without end.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


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
