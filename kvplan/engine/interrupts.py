"""SIGTERM and SIGHUP as Ctrl-C: what runs is stopped, what was measured is kept."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_asked: Final = threading.Event()


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread.

    Python throws an exception away that a handler raises while an object is being finalised (it prints
    "Exception ignored in"): then the next `raise_if_interrupted` raises it again.
    """

    def interrupt(_number: int, _frame: object) -> None:
        _asked.set()
        raise KeyboardInterrupt

    _asked.clear()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked.clear()


def raise_if_interrupted() -> None:
    """Raise the interrupt that was thrown away, if one was; looked for several times a second.

    Raises:
        KeyboardInterrupt: a signal came and nobody has heard it.
    """
    if _asked.is_set() and threading.current_thread() is threading.main_thread():
        _asked.clear()
        raise KeyboardInterrupt
