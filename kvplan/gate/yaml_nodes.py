"""YAML as nodes with line marks, read so that hostile text costs nothing.

Composed from libyaml's event stream with an own stack: no recursion, a bound on depth and on nodes,
aliases stay shared objects. Every walk below is bounded too, so that an alias bomb is never expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.project_file import SECOND_DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH: Final = 60
MAX_NODES: Final = 200_000
MAX_WALK: Final = 50_000

_DOCUMENT_START: Final = r"(?m)^---(?=\s|$)"


class YamlError(ValueError):
    """The document cannot be read; `line` is where, counted from 1 in the whole file."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class SecondDocumentError(YamlError):
    """A text of one document has another behind it, which nobody would read."""


@dataclass(slots=True, eq=False)
class Node:
    """A scalar (`text`), a list (`items`) or a map (`pairs`); lines and columns from 1."""

    kind: str
    line: int
    column: int
    tag: str | None = None
    text: str = ""
    style: str | None = None
    raw: str = ""
    """The scalar as written, for lines inside folded and quoted text."""
    items: list[Node] = field(default_factory=list)
    pairs: list[tuple[Node, Node]] = field(default_factory=list)

    def entries(self) -> Iterator[tuple[str, Node, Node]]:
        """Key text, key and value of a map; merge keys (`<<`) first, so that own keys win."""
        if self.kind != "map":
            return
        yield from self._entries(8)

    def _entries(self, depth: int) -> Iterator[tuple[str, Node, Node]]:
        if depth == 0:
            return
        for key, value in self.pairs:
            if key.text == "<<" and key.style is None:
                for merged in value.items if value.kind == "list" else [value]:
                    if merged.kind == "map" and merged is not self:
                        yield from merged._entries(depth - 1)  # noqa: SLF001  the same class
        for key, value in self.pairs:
            if key.kind == "scalar" and not (key.text == "<<" and key.style is None):
                yield key.text, key, value

    def get(self, *path: str) -> Node | None:
        """The node under a path of keys; of duplicate keys the last one."""
        node: Node | None = self
        for name in path:
            found = None
            if node is not None:
                for key, _, value in node.entries():
                    if key == name:
                        found = value
            node = found
        return node

    def key_line(self, name: str) -> int:
        """The line of a key, else of the map."""
        line = self.line
        for key, node, _ in self.entries():
            if key == name:
                line = node.line
        return line

    def text_of(self, *path: str) -> str | None:
        """The scalar text under a path; None when it is absent, null or no scalar."""
        node = self.get(*path)
        if node is None or node.kind != "scalar" or node.is_null:
            return None
        return node.text

    def list_of(self, *path: str) -> list[Node]:
        """The items under a path; empty when there is no list."""
        node = self.get(*path)
        return node.items if node is not None and node.kind == "list" else []

    @property
    def is_null(self) -> bool:
        """Whether it is YAML's null."""
        return self.kind == "scalar" and self.style is None and self.text in {"", "~", "null", "Null", "NULL"}

    @property
    def value(self) -> Any:
        """A scalar as YAML 1.1 types it, which is what vLLM itself reads."""
        if self.kind != "scalar":
            return None
        if self.style is not None or (self.tag and not self.tag.startswith("tag:yaml.org,2002:")):
            return self.text
        return _typed(self.text)

    def plain(self, budget: list[int] | None = None, depth: int = 0) -> Any:
        """The node as Python values; stops at a budget, so that shared aliases cannot explode.

        Raises:
            YamlError: too many nodes below it.
        """
        budget = budget if budget is not None else [MAX_WALK]
        budget[0] -= 1
        if budget[0] < 0 or depth > MAX_DEPTH:
            raise YamlError("too many aliased nodes", self.line)
        if self.kind == "list":
            return [item.plain(budget, depth + 1) for item in self.items]
        if self.kind == "map":
            return {key: value.plain(budget, depth + 1) for key, _, value in self.entries()}
        return self.value

    def walk(self) -> Iterator[Node]:
        """Every node below, each once, in document order, up to a budget."""
        seen: set[int] = set()
        stack = [self]
        while stack and len(seen) < MAX_WALK:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            stack += reversed(node.items)
            for _, value in reversed(node.pairs):
                stack.append(value)

    def place_of(self, row: int, needle: str = "") -> tuple[int, int]:
        """Where a piece of a scalar's text stands in the file.

        A literal block keeps its rows. In folded and quoted text the rows are gone, so the first physical
        line that holds the needle is taken.
        """
        raw_lines = self.raw.split("\n") if self.raw else []
        if self.style == "|" and raw_lines:
            index = min(row + 1, len(raw_lines) - 1)
            return self.line + index, raw_lines[index].find(needle) + 1 if needle in raw_lines[index] else 1
        if needle and len(raw_lines) > 1:
            for index, raw in enumerate(raw_lines):
                at = raw.find(needle)
                if at >= 0:
                    return self.line + index, at + 1 + (self.column - 1 if index == 0 else 0)
            if self.style == ">":
                return self.line + 1, 1
        if self.style == ">":
            return self.line + 1, 1
        return self.line, self.column


def documents(text: str) -> Iterator[Node | YamlError]:
    """The documents of a file. Each is read by itself, so that a broken one does not lose the rest."""
    starts = [0, *(match.start() for match in re.finditer(_DOCUMENT_START, text))]
    lines = 0
    for begin, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[begin:end]
        first, lines = lines, lines + part.count("\n")
        if not part.strip() or part.strip() == "---":
            continue
        try:
            node = compose(part, first)
        except YamlError as error:
            yield error
        else:
            if node is not None:
                yield node


def compose(text: str, first_line: int = 0, *, only_one: bool = False) -> Node | None:
    """The first document of the text, None when it holds nothing; `first_line` is added to every line.

    Raises:
        SecondDocumentError: there are more, where only one may be.
        YamlError: not YAML, too deep, or too many nodes.
    """
    import yaml

    builder = _Builder(text, first_line)
    is_complete = False
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            if is_complete and type(event).__name__ == "DocumentStartEvent":
                raise SecondDocumentError(SECOND_DOCUMENT, builder.line_of(event))
            is_complete |= builder.take(event)
            if is_complete and not only_one:
                break
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or "not YAML"
        raise YamlError(str(problem), first_line + (mark.line + 1 if mark else 1)) from None
    return builder.root


class _Builder:
    """Puts events together to nodes, with an explicit stack."""

    def __init__(self, text: str, first_line: int) -> None:
        self._text = text
        self._first = first_line
        self._stack: list[tuple[Node, Node | None]] = []
        self._anchors: dict[str, Node] = {}
        self._count = 0
        self.root: Node | None = None

    def take(self, event: Any) -> bool:
        """Add one event; true when the document is complete."""
        kind = type(event).__name__
        if kind == "ScalarEvent":
            self._add(self._scalar(event), event.anchor)
        elif kind in {"MappingStartEvent", "SequenceStartEvent"}:
            node = Node("map" if kind[0] == "M" else "list", *self._mark(event), tag=event.tag)
            self._add(node, event.anchor)
            if len(self._stack) >= MAX_DEPTH:
                raise YamlError(f"nested deeper than {MAX_DEPTH}", node.line)
            self._stack.append((node, None))
        elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
            self._stack.pop()
        elif kind == "AliasEvent":
            target = self._anchors.get(event.anchor)
            if target is None:
                raise YamlError("alias without anchor", self._mark(event)[0])
            self._add(target, None)
        return kind == "DocumentEndEvent"

    def line_of(self, event: Any) -> int:
        """The line that an event begins in."""
        return int(self._first + event.start_mark.line + 1)

    def _mark(self, event: Any) -> tuple[int, int]:
        return self.line_of(event), event.start_mark.column + 1

    def _scalar(self, event: Any) -> Node:
        line, column = self._mark(event)
        style = event.style if event.style in {"|", ">", "'", '"'} else None
        raw = ""
        if style in {"|", ">"} or event.end_mark.line != event.start_mark.line:
            raw = self._text[event.start_mark.index : event.end_mark.index]
        return Node("scalar", line, column, tag=event.tag, text=event.value, style=style, raw=raw)

    def _add(self, node: Node, anchor: str | None) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise YamlError(f"more than {MAX_NODES} nodes", node.line)
        if anchor:
            self._anchors[anchor] = node
        if not self._stack:
            self.root = node
            return
        parent, key = self._stack[-1]
        if parent.kind == "list":
            parent.items.append(node)
        elif key is None:
            self._stack[-1] = (parent, node)
        else:
            parent.pairs.append((key, node))
            self._stack[-1] = (parent, None)


def _typed(text: str) -> Any:
    import yaml

    loader = yaml.SafeLoader
    resolvers = loader.yaml_implicit_resolvers.get(text[:1], []) + loader.yaml_implicit_resolvers.get(
        None, []
    )
    for tag, pattern in resolvers:
        if pattern.match(text):
            return _constructed(tag, text)
    return text


def _constructed(tag: str, text: str) -> Any:
    import yaml

    constructor = yaml.constructor.SafeConstructor()
    node = yaml.ScalarNode(tag, text)
    try:
        match tag.rpartition(":")[2]:
            case "null":
                return None
            case "bool":
                return constructor.construct_yaml_bool(node)
            case "int":
                return constructor.construct_yaml_int(node)
            case "float":
                return constructor.construct_yaml_float(node)
    except (ValueError, OverflowError, IndexError):
        return text
    return text
