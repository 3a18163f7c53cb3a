"""A report as headline, tables, lists and blocks, from which text, Markdown and HTML are made alike."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvplan.report.table import render_table

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Table:
    """Cells; the columns of `left` are text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)
    caption: str = ""
    """What it is, for a page that is read aloud; text has the section's title."""
    highlighted: int | None = None
    """The row that the reader looks for."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list of sentences."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Something to paste."""

    text: str
    language: str = "sh"
    title: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A title and what stands below it; empty parts are left out."""

    title: str
    parts: tuple[Table | Items | Code, ...]

    @property
    def shown(self) -> tuple[Table | Items | Code, ...]:
        """The parts that hold anything."""
        return tuple(part for part in self.parts if not _is_empty(part))


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report."""

    title: str
    headline: str
    """The verdict, one sentence."""
    details: tuple[str, ...] = ()
    sections: tuple[Section, ...] = field(default=())

    def render(self, *, markdown: bool) -> str:
        """As text for a terminal of 100 columns, or as Markdown."""
        head = f"**{self.headline}**" if markdown else _wrapped(self.headline, "", "  ")
        parts = [head]
        parts += [_items(self.details, markdown=markdown)] if self.details else []
        for section in self.sections:
            bodies = [_part(part, markdown=markdown) for part in section.shown]
            if bodies:
                title = f"## {section.title}\n\n" if markdown else f"{section.title.upper()}\n"
                parts.append(title + "\n\n".join(bodies))
        return "\n\n".join(parts)


def _is_empty(part: Table | Items | Code) -> bool:
    match part:
        case Table():
            return not part.rows
        case Items():
            return not part.lines
        case Code():
            return not part.text


def _part(part: Table | Items | Code, *, markdown: bool) -> str:
    match part:
        case Table():
            rows = [[_one_line(cell, markdown=markdown) for cell in row] for row in part.rows]
            return render_table(part.header, rows, left=part.left, markdown=markdown)
        case Items():
            return _items(part.lines, markdown=markdown)
        case Code():
            text = part.text.rstrip("\n")
            if markdown:
                return f"```{part.language}\n{text}\n```"
            return "\n".join(f"  {line}" for line in text.split("\n"))


def _items(lines: Sequence[str], *, markdown: bool) -> str:
    if markdown:
        return "\n".join(f"- {_one_line(line, markdown=True)}" for line in lines)
    return "\n".join(_wrapped(line, "  ", "    ") for line in lines)


def _wrapped(text: str, first: str, others: str) -> str:
    wrapper = textwrap.TextWrapper(
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.fill(_one_line(text, markdown=False))


def _one_line(text: str, *, markdown: bool) -> str:
    """What servers and logs say, on one line and without what a terminal or a table would obey."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line.replace("|", "\\|").replace("<", "&lt;") if markdown else line
