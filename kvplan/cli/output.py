"""What a command prints as its result, on stdout."""

from __future__ import annotations

import os
import sys

from kvplan.errors import KvplanError


def emit(text: str) -> None:
    """Print a result; a reader that went away (`kvplan … | head`) is no fault of anybody's.

    Raises:
        KvplanError: stdout is closed, or takes no more (a full disk).
    """
    if sys.stdout is None:
        raise KvplanError("there is no standard output to print the result to", "do not close it")
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
    except OSError as error:
        _drop_the_rest()
        raise KvplanError(f"the result cannot be written: {error.strerror}", "is the disk full?") from error


def _drop_the_rest() -> None:
    """What is still buffered would raise again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
