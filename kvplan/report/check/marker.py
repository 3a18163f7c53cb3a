"""The hidden first line of a comment: whose it is, and which run wrote it."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARKER: Final = re.compile(r"<!-- kvplan-check tag=([\w.-]{1,64}) run=(\d{1,20}) -->")
_TAG: Final = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Marker:
    """Written by `str()`, found by `read_marker`."""

    tag: str
    """Tells several gates in one pull request apart."""
    run: int
    """Grows with every run that was started later; of two comments the one with the greater number holds."""

    def __str__(self) -> str:
        return f"<!-- kvplan-check tag={self.tag} run={self.run} -->"


def read_marker(body: str) -> Marker | None:
    """The marker of a comment's first line; None when the comment is somebody else's."""
    match = _MARKER.fullmatch(body.split("\n", 1)[0].strip())
    return Marker(match[1], int(match[2])) if match else None


def new_marker(tag: str, environment: Mapping[str, str] = os.environ) -> Marker:
    """The marker of this run.

    The host's own number of the run, not the clock: a late job, or an old run that is started again, must not
    overwrite what a newer push was told.

    Raises:
        InputError: a tag that a marker cannot hold.
    """
    if not _TAG.fullmatch(tag):
        raise InputError(
            f"--tag {tag!r}: letters, digits, dots, dashes and underscores only, at most 64",
            "name the gate by such a word: --tag serving",
        )
    for name in ("GITHUB_RUN_ID", "CI_PIPELINE_ID"):
        number = environment.get(name, "")
        if number.isascii() and number.isdigit():
            return Marker(tag, int(number[:20]))
    return Marker(tag, int(time.time()))
