"""One file a command: parse, call, render. No logic.

Command modules are imported on every start, so they import at their top only what is cheap (typer, errors,
dataclasses); everything else is imported inside the function that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.cli import profiles_calibrate as _profiles_calibrate  # noqa: F401  adds a command to `profiles`
from kvplan.cli.bench import bench
from kvplan.cli.check import check
from kvplan.cli.estimate import estimate
from kvplan.cli.profiles import app as profiles
from kvplan.cli.report import report
from kvplan.cli.tune import tune

if TYPE_CHECKING:
    from collections.abc import Callable

    import typer

COMMANDS: Final[list[tuple[str, Callable[..., Any]]]] = [
    ("estimate", estimate),
    ("bench", bench),
    ("tune", tune),
    ("report", report),
    ("check", check),
]
"""Command name -> function, in the order of --help."""

GROUPS: Final[list[tuple[str, typer.Typer]]] = [
    ("profiles", profiles),
]
"""Command groups with commands of their own, in the order of --help, behind the commands."""
