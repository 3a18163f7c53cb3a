"""One file a command: parse, call, render. No logic.

A start imports the module of the command that was asked for, and no other. Command modules still import at
their top only what is cheap: `kvplan --help` and shell completion read them all. Below them a pattern that
few inputs need is a text, which `re` compiles when it is first used and keeps.
"""

from __future__ import annotations

import gc
from typing import Final

# Importing makes a hundred thousand objects that all stay: looking through them again and again for garbage
# would be a tenth of an estimate's time. Long runs still collect.
gc.set_threshold(100_000, 20, 20)

COMMANDS: Final = {
    "estimate": "kvplan.cli.estimate",
    "tune": "kvplan.cli.tune",
    "report": "kvplan.cli.report",
    "check": "kvplan.cli.check",
    "bench": "kvplan.cli.bench",
    "workload": "kvplan.cli.workload",
}
"""Command name -> module whose function of that name it is, in the order of --help."""

GROUPS: Final = {
    "profiles": "kvplan.cli.profiles_calibrate",
}
"""Command groups with commands of their own -> module whose `app` it is, behind the commands."""
