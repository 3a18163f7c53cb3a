"""Text from logs, journals and machines, made fit to show: whatever it holds, it stays text, and short.

Escaping is jinja2's; here is what escaping leaves: terminal codes, characters that hide or reorder others,
halves of surrogate pairs (which no file can hold), and length.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kvplan.report.tune_text import UNKNOWN

SHOWN_CHARACTERS: Final = 600
"""Of one text in the page; the whole of it is in the log or the journal."""
LONGEST_FORM: Final = 32_768
"""Of a text that is to be copied: a cut command would be a wrong one."""

_TERMINAL_CODES: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|[ -/]*[0-~])"
)
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def shown(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """The text without terminal codes, with what hides or reorders made visible, cut with its length said."""
    visible = _visible(text[: 4 * limit])
    if len(text) <= 4 * limit and len(visible) <= limit:
        return visible
    return f"{visible[:limit]} … ({len(text):,} characters in all)"


def copied(text: str) -> str | None:
    """A text that is to be pasted somewhere, whole; None when it is too long to be what anybody pastes."""
    return None if len(text) > LONGEST_FORM else _visible(text)


def finalize(value: Any) -> Any:
    """What jinja2 does with every value before it escapes it; None is "n/a", markup of ours passes."""
    if value is None:
        return UNKNOWN
    return value if hasattr(value, "__html__") else shown(str(value))


def _visible(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", _TERMINAL_CODES.sub("", text))
