"""What a command prints as its result, on stdout."""

from __future__ import annotations

import os
import sys


def emit(text: str) -> None:
    """Print a result; a reader that went away (`kvplan … | head`) is no fault of anybody's."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would raise again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
