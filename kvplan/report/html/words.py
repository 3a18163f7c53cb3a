"""Quantities as the page writes them: one unit a column, so that figures can be compared by eye."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Final

from kvplan.report.tune_text import UNKNOWN
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL_CARD_BYTES: Final = 8 * GIB
"""Up to here a hundredth of a GiB is too coarse."""


def gib_column(size_bytes: float | None, card_bytes: int) -> str:
    """GiB without its unit, with as many decimals as the card asks for; a little is `<0.001`, never 0."""
    if size_bytes is None:
        return UNKNOWN
    digits = 3 if card_bytes <= SMALL_CARD_BYTES else 2
    least = 10.0**-digits
    if 0 < abs(size_bytes) / GIB < least / 2:
        return f"<{least:.{digits}f}"
    return f"{size_bytes / GIB:,.{digits}f}"


def finite(value: float | None) -> float | None:
    """The value, or None for what is no number (a utilisation that a trial did not have)."""
    return None if value is None or not math.isfinite(value) else value


def listed(words: Sequence[str], most: int) -> str:
    """Words with commas between them; beyond `most` only how many more."""
    rest = len(words) - most
    return ", ".join(words[:most]) + (f" and {rest} more" if rest > 0 else "")


def shell_lines(first: Sequence[str], rest: Sequence[str]) -> str:
    """A command for a shell, one flag a line, each with its values."""
    lines = [shlex.join(first)]
    for word in rest:
        if word.startswith("--"):
            lines.append(f"  {shlex.quote(word)}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n".join(lines)
