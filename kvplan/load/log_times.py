"""Times as logs write them -> seconds: Unix times of any unit, ISO 8601, the access logs of web servers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ISO: Final = r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?(?:Z|[+-]\d{2}:?\d{2}))?"
_ACCESS: Final = r"\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2}(?: [+-]\d{4})?"
TIME_TEXT: Final = f"(?:{_ISO}|{_ACCESS})"
"""A time of day with its date, as it stands in a line; it may hold a space."""
_IN_LINE: Final = re.compile(TIME_TEXT)
_UNITS: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""A Unix time above this is in nano-, micro- or milliseconds: seconds reach 1e11 in the year 5138."""


def seconds(value: Any) -> float | None:
    """Unix seconds of a time; what names no zone is taken as UTC. None where it is no time."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _of_text(str(value).strip())
    return next((number / unit for above, unit in _UNITS if number > above), number)


def time_in(line: str) -> float | None:
    """The first time of day with a date that stands anywhere in a line, in Unix seconds."""
    match = _IN_LINE.search(line)
    return None if match is None else _of_text(match[0])


def _of_text(text: str) -> float | None:
    try:
        found = _access_time(text) if "/" in text else datetime.fromisoformat(_as_python_reads(text))
    except ValueError:
        return None
    if found is None:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def _as_python_reads(text: str) -> str:
    """ISO 8601 as logs vary it: a comma before the fraction (Python's logging), a space before the zone."""
    text = re.sub(r" ?(Z|[+-]\d{2}:?\d{2})$", r"\1", text.replace(",", "."))
    # Azure writes seven digits of a second, one more than Python reads.
    return re.sub(r"(\.\d{6})\d+", r"\1", text)


def _access_time(text: str) -> datetime | None:
    """`29/Nov/2026:18:04:36 +0000`, as Apache and nginx write it, in English whatever the locale."""
    match = re.fullmatch(r"(\d{2})/([A-Z][a-z]{2})/(\d{4}):(\d{2}:\d{2}:\d{2})(?: ([+-]\d{2})(\d{2}))?", text)
    if match is None or match[2] not in _MONTHS:
        return None
    zone = f"{match[5]}:{match[6]}" if match[5] else ""
    return datetime.fromisoformat(f"{match[3]}-{_MONTHS.index(match[2]) + 1:02}-{match[1]}T{match[4]}{zone}")
