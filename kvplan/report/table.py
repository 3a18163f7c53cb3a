"""Aligned columns for a terminal, or the same cells as a Markdown table.

rich draws the live views; here its import alone would cost half of what `kvplan estimate` may take.

A table that is wider than the terminal gives way in this order: titles take several lines, text columns are
wrapped between words and at the joints of names, and only then inside words. Nothing is cut. A table that
goes to a file or a pipe is laid out for 100 columns, whatever the terminal.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Final

from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

PIPED_WIDTH: Final = 100
_NARROWEST: Final = 40
"""No terminal is taken to be narrower: a table of one letter a line helps nobody."""
_LEAST_COLUMN: Final = 6
_INDENT: Final = 2
_GAP: Final = 2
_PIECES: Final = re.compile(r"[^\s/,:-]*(?:[/,:-]+|\s+|$)")
"""A piece of a cell with what ends it: a cell may be broken behind each."""
_WORDS: Final = re.compile(r"(?:`[^`\n]*`|(?<!\S)--[a-z][\w-]* (?=[^\s(-])|\S)+")
"""What is not broken: a word, a flag with its value, a command between backticks."""


def output_width() -> int:
    """Columns that text is laid out for: the terminal's, or always 100 where stdout is none."""
    if sys.stdout is None or not sys.stdout.isatty():
        return PIPED_WIDTH
    asked = os.environ.get("COLUMNS", "")
    try:
        columns = int(asked) if asked.isdigit() else os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return PIPED_WIDTH
    return max(columns or PIPED_WIDTH, _NARROWEST)


def render_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    beneath: Sequence[str] = (),
    beneath_title: str = "",
    markdown: bool = False,
    width: int | None = None,
) -> str:
    """The table as text.

    Args:
        header: column titles; an empty title is allowed.
        rows: cells, as many as titles.
        left: columns that are text (left-aligned); all others are numbers (right-aligned).
        beneath: a line for each row, indented under it; "" is none. Markdown has it as a last column.
        beneath_title: that column's title.
        markdown: a Markdown table instead of aligned columns.
        width: columns to keep to; default: `output_width()`.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    notes = [visible(note) for note in beneath] or [""] * len(cells)
    if markdown:
        if any(notes):
            cells = [[*row, note] for row, note in zip(cells, notes, strict=True)]
            return _markdown([*header, beneath_title], cells, [*left, len(header)])
        return _markdown(header, cells, left)
    room = width or output_width()
    widths = _fitted(header, cells, left, room)
    lines = _aligned(header, widths, left)
    for row, note in zip(cells, notes, strict=True):
        lines += _aligned(row, widths, left)
        lines += [" " * 2 * _INDENT + line for line in wrapped(note, room - 2 * _INDENT)] if note else []
    return "\n".join(lines)


def wrapped(text: str, width: int, *, hanging: int = 0) -> list[str]:
    """The text in lines of at most that width, broken at spaces; a longer word has a line for itself.

    Args:
        text: words; spaces between them count as one.
        width: columns of the first line.
        hanging: columns that the others have fewer, for their indent.

    A flag stays with its value, and what stands between backticks stays in one piece: people copy them.
    """
    lines = [""]
    for word in _WORDS.findall(text):
        room = width if len(lines) == 1 else width - hanging
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def prose(text: str, *, indent: int = 0, markdown: bool = False, width: int | None = None) -> str:
    """A sentence as wide as the terminal, its further lines two columns in; Markdown wraps by itself."""
    if markdown:
        return " " * indent + text
    first, *others = wrapped(text, (width or output_width()) - indent, hanging=_INDENT)
    return "\n".join([" " * indent + first, *(" " * (indent + _INDENT) + line for line in others)])


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    rule = [":--" if i in left else "--:" for i in range(len(header))]
    body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *body))


def _fitted(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int], room: int
) -> list[int]:
    """The columns' widths, in sum no more than there is room for if that is possible at all."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    over = _INDENT + sum(widths) + _GAP * (len(widths) - 1) - room
    if over <= 0:
        return widths
    for i, title in enumerate(header):
        inside = max((len(row[i]) for row in rows), default=0)
        least = max(inside, *(len(word) for word in (title or " ").split(" ")))
        over -= widths[i] - least
        widths[i] = least
    if over < 0:
        # Give back what was not needed, to the titles from the left.
        for i, title in enumerate(header):
            back = min(-over, max(0, len(title) - widths[i]))
            widths[i] += back
            over += back
    text = [i for i in left if i < len(header)]
    whole = {i: max(len(p) for row in (header, *rows) for p in _pieces(row[i]) or [""]) for i in text}
    for floors in (whole, dict.fromkeys(text, _LEAST_COLUMN)):
        while over > 0:
            shrinkable = [i for i in text if widths[i] > max(floors[i], _LEAST_COLUMN)]
            if not shrinkable:
                break
            widest = max(shrinkable, key=lambda i: widths[i])
            widths[widest] -= 1
            over -= 1
    return widths


def _pieces(cell: str) -> list[str]:
    return [piece for piece in _PIECES.findall(cell) if piece]


def _broken(cell: str, width: int) -> list[str]:
    """The cell in lines of that width: broken behind a piece, inside one only where it is longer."""
    if len(cell) <= width:
        return [cell]
    lines = [""]
    for piece in _pieces(cell):
        if len(lines[-1]) + len(piece.rstrip()) > width and lines[-1]:
            lines.append("")
        rest = piece
        while len(lines[-1]) + len(rest.rstrip()) > width:
            lines[-1] += rest[: width - len(lines[-1])]
            rest = rest[width:]
            lines.append("")
        lines[-1] += rest
    return [line.rstrip() for line in lines if line.strip()]


def _aligned(cells: Sequence[str], widths: Sequence[int], left: Sequence[int]) -> list[str]:
    columns = [_broken(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, columns), default=0)):
        parts = (column[number] if number < len(column) else "" for column in columns)
        padded = (
            part.ljust(width) if i in left else part.rjust(width)
            for i, (part, width) in enumerate(zip(parts, widths, strict=True))
        )
        lines.append((" " * _INDENT + (" " * _GAP).join(padded)).rstrip())
    return lines or [""]
