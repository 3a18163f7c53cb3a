r"""Text that others wrote (names, paths, log lines), made harmless before a person sees it.

A name may hold terminal codes that repaint the screen, characters that hide or reorder others, line breaks
that forge a line of ours, halves of surrogate pairs that no stream can encode. All of them are spelled out as
`\u001b`, which JSON reads as the character itself.
"""

from __future__ import annotations

import re
from typing import Final

_UNSEEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufffe\uffff\U000e0000-\U000e007f"
)
"""Controls but tab and line feed; soft hyphens, directions, zero widths, tags; what no stream can encode."""
_IN_TEXT: Final = re.compile(f"[{_UNSEEN}]")
_IN_A_LINE: Final = re.compile(f"[\t\n{_UNSEEN}]")


def visible(text: str) -> str:
    """The text as one line in which every character can be seen."""
    if text.isascii() and text.isprintable():
        return text
    return _IN_A_LINE.sub(_spelled, text)


def harmless(text: str) -> str:
    """Lines of ours with others' text in them: nothing in it moves the cursor or hides a character."""
    return _IN_TEXT.sub(_spelled, text)


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    # As JSON spells what lies beyond: a pair.
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
