"""What a command prints as its result, on stdout."""

from __future__ import annotations

import os
import sys

from kvplan.errors import KvplanError
from kvplan.visible import harmless


def emit(text: str, *, data: bool = False) -> None:
    """Print a result; a reader that went away (`kvplan … | head`) is no fault of anybody's.

    Args:
        text: the result; characters that act on a terminal are spelled out.
        data: a file of ours that goes to a file or pipe as it is, and is spelled out on a terminal only.

    Raises:
        KvplanError: stdout is closed, or takes no more (a full disk).
    """
    if sys.stdout is None:
        raise KvplanError("there is no standard output to print the result to", "do not close it")
    shown = text if data and not sys.stdout.isatty() else harmless(text)
    try:
        sys.stdout.write(shown + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_the_rest()
    except UnicodeEncodeError:
        # A terminal or locale that knows ASCII only.
        sys.stdout.write(shown.encode("ascii", "backslashreplace").decode() + "\n")
    except OSError as error:
        _drop_the_rest()
        raise KvplanError(f"the result cannot be written: {error.strerror}", "is the disk full?") from error


def tell(text: str) -> None:
    """Say on stderr how things go, beside the result; characters that act on a terminal are spelled out."""
    import typer

    typer.echo(harmless(text), err=True)


def _drop_the_rest() -> None:
    """What is still buffered would raise again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
