"""Values with provenance, carried inside the text itself.

Text flows through several grammars (a workflow expression inside a shell line inside YAML). What is
unknown is replaced by a mark that every one of them takes for an ordinary word character, and what was
defaulted or assumed keeps a mark beside its value; both are taken out again at the end, so that no step
in between can lose them.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["unknown", "defaulted", "assumed"]

_UNKNOWN: Final = "\ue000([0-9]{1,7})\ue001"
_NOTE: Final = "\ue002([0-9]{1,7})\ue003"
_ANY: Final = "[\ue000\ue002]([0-9]{1,7})[\ue001\ue003]"
_MARKS: Final = "[\ue000-\ue003]"


class Plain(NamedTuple):
    """A text without marks, and what the marks said."""

    text: str
    unknown: tuple[str, ...] = ()
    defaulted: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


class Taint(FrozenRecord):
    """The names behind the marks of one file."""

    assume: Mapping[str, str] = field(default_factory=dict)
    names: list[tuple[Kind, str]] = field(default_factory=list)
    _index: dict[tuple[Kind, str], int] = field(default_factory=dict)

    def unknown(self, name: str) -> str:
        """A mark for a value that nobody in the repository gives, or what the policy assumes for it."""
        name = self.readable(name).strip()
        assumed = self.assume.get(name)
        if assumed is not None:
            return f"\ue002{self._number('assumed', name)}\ue003{assumed}"
        return f"\ue000{self._number('unknown', name)}\ue001"

    def defaulted(self, name: str, value: str) -> str:
        """The written default of a variable, marked as such; the policy's assumption wins over it."""
        assumed = self.assume.get(name)
        if assumed is not None:
            return f"\ue002{self._number('assumed', name)}\ue003{assumed}"
        return f"\ue002{self._number('defaulted', self.readable(name))}\ue003{value}"

    def split(self, text: str) -> Plain:
        """The text without its marks; unknown parts are left out of it, and named."""
        if not _has_marks(text):
            return Plain(text)
        found: dict[Kind, dict[str, None]] = {"unknown": {}, "defaulted": {}, "assumed": {}}
        for match in re.finditer(_ANY, text):
            index = int(match[1])
            if index < len(self.names):
                kind, name = self.names[index]
                found[kind][name] = None
        return Plain(
            re.sub(_MARKS, "", re.sub(_ANY, "", text)),
            tuple(found["unknown"]),
            tuple(found["defaulted"]),
            tuple(found["assumed"]),
        )

    def readable(self, text: str) -> str:
        """The text with its marks spelt as `$NAME`, for messages."""
        if not _has_marks(text):
            return text

        def spell(match: re.Match[str]) -> str:
            index = int(match[1])
            return f"${self.names[index][1]}" if index < len(self.names) else ""

        return re.sub(_MARKS, "", re.sub(_NOTE, "", re.sub(_UNKNOWN, spell, text)))

    def _number(self, kind: Kind, name: str) -> int:
        key = (kind, name)
        if key not in self._index:
            self._index[key] = len(self.names)
            self.names.append(key)
        return self._index[key]


def is_unknown(text: str) -> bool:
    """Whether some part of the text is unknown."""
    return "\ue000" in text


def is_all_unknown(text: str) -> bool:
    """Whether nothing of the text is known."""
    return is_unknown(text) and not re.sub(_NOTE, "", re.sub(_UNKNOWN, "", text)).strip()


def without_notes(text: str) -> str:
    """The text without the marks of defaulted and assumed values; unknown parts stay marked."""
    return re.sub(_NOTE, "", text) if "\ue002" in text else text


def notes_of(text: str) -> str:
    """Only the marks of defaulted and assumed values."""
    return "".join(match[0] for match in re.finditer(_NOTE, text)) if "\ue002" in text else ""


def clean_input(text: str) -> str:
    """File text in which our marks cannot occur."""
    return re.sub(_MARKS, "�", text) if _has_marks(text) else text


def _has_marks(text: str) -> bool:
    return not text.isascii() and re.search(_MARKS, text) is not None


class Word(NamedTuple):
    """One word of a command line, with where it stands."""

    text: str
    line: int
    column: int = 1

    def with_text(self, text: str) -> Word:
        """The same place with another text."""
        return Word(text, self.line, self.column)
