"""Bytes, tokens and durations: parsed and printed here only. Inside kvplan, sizes are integer bytes."""

from __future__ import annotations

import re
from typing import Final

from kvplan.errors import InputError

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

_SIZE: Final = r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)"
_MOST_DIGITS: Final = 18
_MOST_GIB: Final = 2**30
_SUFFIX: Final = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "K": 2**10,
    "m": 10**6,
    "M": 2**20,
    "g": 10**9,
    "G": 2**30,
    "t": 10**12,
    "T": 2**40,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient rounded up, as vLLM's `cdiv` gives it."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return cdiv(value, multiple) * multiple


def parse_count(text: str, what: str) -> int:
    """A whole number as vLLM's flags take it: 8192, 8k (8000), 8K (8192), 25.6k, 1G, 2GiB.

    A lower-case suffix is decimal and an upper-case one binary, as in vLLM 0.32
    `utils/argparse_utils.py::human_readable_int`; KiB/MiB/GiB and kB/MB/GB are taken as written.

    Raises:
        InputError: not a number, an unknown suffix, or not whole after scaling.
    """
    match = re.fullmatch(_SIZE, text.strip())
    scale = _SUFFIX.get(match["unit"]) if match else None
    if match is None or scale is None:
        raise InputError(f"{what}: {text!r} is not a size", "write 8192, 8k (8000), 8K (8192), 2G or 2GiB")
    if len(match["number"]) > _MOST_DIGITS:
        raise InputError(f"{what}: a number of {len(match['number'])} digits is no size", "write 2G or 2GiB")
    value = float(match["number"]) * scale if "." in match["number"] else int(match["number"]) * scale
    if value != int(value):
        raise InputError(f"{what}: {text!r} is not a whole number", "write a whole number of bytes or tokens")
    return int(value)


def bytes_from_gib(gib: float, what: str = "a size") -> int:
    """Whole bytes of a size in GiB, rounded to the nearest byte; negative where vLLM prints what is missing.

    Raises:
        InputError: not a number, or more than any machine has.
    """
    if not -_MOST_GIB <= gib <= _MOST_GIB:
        raise InputError(f"{what}: {gib:g} GiB is not a size", f"give GiB from 0 to {_MOST_GIB:,}")
    return round(gib * GIB)


def format_gib(size_bytes: float, digits: int = 2) -> str:
    """`15231233024` -> `14.19 GiB`."""
    return f"{size_bytes / GIB:,.{digits}f} GiB"


def format_bytes(size_bytes: int) -> str:
    """The size in its natural binary unit: `57344` -> `56.0 KiB`."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError


def format_duration(seconds: float) -> str:
    """`75.2` -> `1 min 15 s`; `3.21` -> `3.2 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
