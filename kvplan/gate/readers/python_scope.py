"""Values of a Python file as far as they are known, and the names that have them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH: Final = 40


@dataclass(slots=True)
class Val:
    """A folded value, or the names that keep it from being known."""

    value: Any = None
    unknown: tuple[str, ...] = ()
    defaulted: tuple[str, ...] = ()
    line: int = 0
    column: int = 1

    def with_names(self, *others: Val) -> Val:
        """This value with the provenance of others added."""
        unknown = dict.fromkeys([*self.unknown, *(name for other in others for name in other.unknown)])
        defaulted = dict.fromkeys([*self.defaulted, *(name for other in others for name in other.defaulted)])
        return Val(None if unknown else self.value, tuple(unknown), tuple(defaulted), self.line, self.column)


@dataclass(slots=True)
class Scope:
    """Names visible at a point of the file."""

    names: dict[str, Val] = field(default_factory=dict)
    parent: Scope | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    """Defaults of an argparse parser of this file, by dest."""
    lines: list[str] = field(default_factory=list)
    """The file's lines; of the outermost scope only."""
    rebound: set[str] = field(default_factory=set)
    """Names of the module that a function sets (`global`); of the outermost scope only."""

    def source(self) -> list[str]:
        """The file's lines."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope.lines

    def get(self, name: str) -> Val | None:
        """The value of a name, here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                found = scope.names[name]
                if scope is not self and name in scope.rebound:
                    # Some function sets it before this one reads it, or none does.
                    return (
                        Val(unknown=(name,))
                        if found.value is None
                        else Val(found.value, found.unknown, (*found.defaulted, name))
                    )
                return found
            scope = scope.parent
        return None

    def argument(self, name: str) -> Any:
        """The argparse default of a dest; None when there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.arguments:
                return scope.arguments[name]
            scope = scope.parent
        return None


def name_of(node: ast.expr, scope: Scope) -> str:
    """The expression as it is written, for messages."""
    lines = scope.source()
    row = node.lineno - 1
    if row >= len(lines):
        return "expression"
    line = lines[row]
    end = node.end_col_offset if node.end_lineno == node.lineno else None
    text = line.encode()[node.col_offset : end].decode("utf-8", "replace")
    return text[:120] if end is not None else f"{text[:117]}..."


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text, empty for anything else."""
    parts: list[str] = []
    for _ in range(10):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Name):
            return ".".join([node.id, *reversed(parts)])
        else:
            break
    return ""


def plain(val: Val, names: list[str], depth: int = 0) -> Any:
    """A folded value as plain Python; unknown parts are named in `names`."""
    if val.unknown:
        names += val.unknown
        return None
    if depth > MAX_DEPTH:
        return None
    if isinstance(val.value, list):
        return [plain(item, names, depth + 1) for item in val.value]
    if isinstance(val.value, dict):
        return {key: plain(item, names, depth + 1) for key, item in val.value.items()}
    return val.value


def defaulted_names(val: Val, depth: int = 0) -> Iterator[str]:
    """The variables whose defaults are anywhere in a value."""
    yield from val.defaulted
    inner = (
        val.value.values()
        if isinstance(val.value, dict)
        else val.value
        if isinstance(val.value, list)
        else ()
    )
    if depth < MAX_DEPTH:
        for item in inner:
            yield from defaulted_names(item, depth + 1)
