"""Checks of flags' values that typer does not make."""

from __future__ import annotations

import math

import typer


def finite(value: float | None) -> float | None:
    """Refuse `nan` and `inf`, which pass every limit and end no wait.

    Raises:
        typer.BadParameter: it is one of them.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number that can be compared")
    return value
