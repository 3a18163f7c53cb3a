"""Words of a shell text: quoting, expansion with the variables of the point, splitting into fields."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.shell_expand import Value, ansi_c, arithmetic, parameter, unescape, unescape_double
from kvplan.gate.shell_state import MAX_DEPTH, ShellState
from kvplan.gate.taint import Word, is_unknown, without_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tree_sitter import Node

_SPLIT: Final = r"[ \t\n]+"
MAX_VALUE: Final = 20_000
MAX_EXPANDED: Final = 3_000_000


class WordReader:
    """Turns nodes into words and values."""

    def __init__(self, state: ShellState, run: Callable[[Node], None]) -> None:
        """Prepare to read.

        Args:
            state: the text and its variables.
            run: walks a command that stands inside a substitution.
        """
        self._state = state
        self._run = run
        self._expanded = 0

    def words(self, node: Node) -> list[Word]:
        """The words that a node becomes, each where the node stands."""
        column = node.start_point.column
        text = self._state.text(node) if node.end_byte - node.start_byte < 200 else ""
        line, at = self._state.locate(node.start_point.row, column, text)
        return [Word(field, line, at) for field in self.fields(node)]

    def fields(self, node: Node) -> list[str]:
        """The fields that one word becomes: quoting, expansion, then splitting of what was not quoted."""
        fields: list[str] = []
        current = ""
        started = False
        for text, splits, many in self._pieces(node, quoted=False):
            if many is not None:
                for i, item in enumerate(many):
                    if i == 0:
                        current += item
                    else:
                        fields.append(current)
                        current = item
                started = started or bool(many)
            elif splits:
                parts = re.split(_SPLIT, text)
                current += parts[0]
                for part in parts[1:]:
                    if started or current:
                        fields.append(current)
                    current, started = part, False
                started = started or bool(parts[-1])
            else:
                current += text
                started = True
        if started or current:
            fields.append(current)
        return (
            fields
            if sum(map(len, fields)) <= MAX_VALUE
            else [self._state.taint.unknown(self._state.text(node)[:80])]
        )

    def _pieces(self, node: Node, *, quoted: bool) -> Iterator[tuple[str, bool, list[str] | None]]:  # noqa: PLR0912  one branch a kind
        if self._state.depth > MAX_DEPTH:
            return
        self._state.depth += 1
        try:
            match node.type:
                case "command_name" | "concatenation" | "translated_string":
                    for child in node.children if node.type != "translated_string" else node.named_children:
                        yield from self._pieces(child, quoted=quoted)
                case "raw_string":
                    yield self._state.text(node)[1:-1], False, None
                case "ansi_c_string":
                    yield ansi_c(self._state.text(node)[2:-1]), False, None
                case "string":
                    yield from self._quoted(node)
                case "simple_expansion" | "expansion":
                    many = self._array(node)
                    if many is not None:
                        yield "", False, many
                    else:
                        yield self._expansion(node), not quoted, None
                case "command_substitution":
                    yield self._substitution(node), not quoted, None
                case "arithmetic_expansion":
                    yield self._arithmetic(node), False, None
                case "process_substitution":
                    self.substitutions(node)
                case _:
                    yield unescape(self._state.text(node)), False, None
        finally:
            self._state.depth -= 1

    def _quoted(self, node: Node) -> Iterator[tuple[str, bool, list[str] | None]]:
        inner = [child for child in node.named_children if child.type != "string_content"]
        if len(inner) == 1 and node.end_byte - node.start_byte == inner[0].end_byte - inner[0].start_byte + 2:
            many = self._array(inner[0]) if inner[0].type in {"simple_expansion", "expansion"} else None
            if many is not None:
                yield "", False, many
                return
        yield self.gaps(node, unescape_double, trim=1), False, None

    def gaps(self, node: Node, clean: Callable[[str], str], trim: int = 0) -> str:
        """The node's text with expansions replaced; the text between them goes through `clean`."""
        out: list[str] = []
        at = node.start_byte + trim
        end = node.end_byte - trim
        for child in node.named_children:
            if child.type in {
                "string_content",
                "heredoc_content",
                "word",
                "number",
                "variable_name",
                "file_descriptor",
            }:
                continue
            if child.start_byte < at:
                continue
            out.append(clean(self._state.piece(at, child.start_byte)))
            out.append(self._flat(child))
            at = child.end_byte
        out.append(clean(self._state.piece(at, end)))
        return "".join(out)

    def _flat(self, node: Node) -> str:
        text = "".join(
            " ".join(many) if many is not None else text for text, _, many in self._pieces(node, quoted=True)
        )
        self._expanded += len(text)
        # A script that multiplies its own text is followed no further.
        return text if self._expanded < MAX_EXPANDED else self._state.taint.unknown("text expanded too often")

    def _array(self, node: Node) -> list[str] | None:
        """The fields of `$@`, `${A[@]}` or `${A[*]}`; None when the node is no array expansion."""
        name = self._state.text(node)
        if name in {"$@", "$*", "${@}", "${*}"}:
            value = self._state.vars.get("@")
            return list(value) if isinstance(value, list) else [self._state.taint.unknown("@")]
        subscript = next((child for child in node.named_children if child.type == "subscript"), None)
        operation = node.child_by_field_name("operator")
        # ${A[@]+"${A[@]}"} is how older shells spell an array that may be empty.
        if subscript is None or (operation is not None and self._state.text(operation) not in {"+", ":+"}):
            return None
        variable = subscript.child_by_field_name("name")
        index = subscript.child_by_field_name("index")
        if variable is None or index is None or self._state.text(index) not in {"@", "*"}:
            return None
        value = self._state.vars.get(self._state.text(variable))
        if isinstance(value, str):
            return [value]
        return list(value) if value is not None else [self._state.taint.unknown(self._state.text(variable))]

    def _expansion(self, node: Node) -> str:
        children = node.named_children
        variable = next(
            (c for c in children if c.type in {"variable_name", "special_variable_name", "subscript"}), None
        )
        text = self._state.text(node)
        if variable is None or text.startswith(("${#", "${!")):
            return self._state.taint.unknown(text)
        name = self._state.text(variable)
        value = self._lookup(variable)
        operation = node.child_by_field_name("operator")
        if operation is None:
            return self._state.taint.unknown(name) if value is None else value
        op = self._state.text(operation)
        operands = [c for c in children if c.start_byte >= operation.end_byte]

        def word() -> str:
            if op in {"/", "//"}:
                return "\0".join(self._flat(c) for c in operands[:2])
            begin, end = operation.end_byte, node.end_byte - 1
            return self._span(operands, begin, end)

        result = parameter(self._state.taint, name, value, op, word)
        if op in {":=", "="} and variable.type == "variable_name":
            self._state.vars[name] = result
        return result

    def _span(self, nodes: list[Node], begin: int, end: int) -> str:
        out: list[str] = []
        at = begin
        for child in nodes:
            out.append(self._state.piece(at, child.start_byte))
            out.append(self._flat_operand(child))
            at = child.end_byte
        out.append(self._state.piece(at, end))
        return "".join(out)

    def _flat_operand(self, node: Node) -> str:
        if node.type == "concatenation":
            return self._span(node.named_children, node.start_byte, node.end_byte)
        return self._flat(node)

    def _lookup(self, variable: Node) -> str | None:
        if variable.type == "subscript":
            name = variable.child_by_field_name("name")
            index = variable.child_by_field_name("index")
            array = self._state.vars.get(self._state.text(name)) if name is not None else None
            position = self._state.text(index) if index is not None else ""
            if isinstance(array, list) and position.isascii() and position.isdigit() and len(position) < 5:
                return array[int(position)] if int(position) < len(array) else ""
            return " ".join(array) if isinstance(array, list) and position in {"@", "*"} else None
        value = self._state.vars.get(self._state.text(variable))
        if isinstance(value, list):
            return value[0] if value else ""
        return value

    def _substitution(self, node: Node) -> str:
        self._substitutions_of(node)
        inner = node.named_children
        if len(inner) == 1 and inner[0].type == "command":
            words = [field for child in inner[0].named_children for field in self.fields(child)]
            if words[:1] == ["echo"] and len(words) > 1 and not words[1].startswith("-"):
                return " ".join(words[1:])
            if words[:1] == ["basename"] and len(words) == 2 and not is_unknown(words[1]):
                return words[1].rstrip("/").rpartition("/")[2]
        return self._state.taint.unknown(self._state.text(node)[:200])

    def _arithmetic(self, node: Node) -> str:
        text = self._state.text(node)
        inner = text[3:-2] if text.startswith("$((") else text[2:-1]
        names = set(re.findall(r"[A-Za-z_]\w*", inner))
        for name in sorted(names, key=len, reverse=True):
            value = self._state.vars.get(name)
            if not isinstance(value, str) or is_unknown(value):
                return self._state.taint.unknown(text[:200])
            inner = re.sub(rf"\$?\{{?\b{name}\b\}}?", without_notes(value).replace("\\", ""), inner)
        result = arithmetic(inner)
        return self._state.taint.unknown(text[:200]) if result is None else str(result)

    def assignment(self, node: Node) -> tuple[str, Value]:
        """Name and value of an assignment; no name where it names nothing."""
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None or name_node.type != "variable_name":
            # An element of an array: which one is not followed.
            base = name_node.child_by_field_name("name") if name_node is not None else None
            return (
                (self._state.text(base), [self._state.taint.unknown(self._state.text(base))])
                if base is not None
                else ("", "")
            )
        name = self._state.text(name_node)
        value: Value
        if value_node is None:
            value = ""
        elif value_node.type == "array":
            value = [
                f
                for child in value_node.named_children
                if child.type != "comment"
                for f in self.fields(child)
            ]
        else:
            value = (
                self._flat(value_node)
                if value_node.type != "word"
                else unescape(self._state.text(value_node))
            )
            value = self._renamed(name, value)
        if any(child.type == "+=" for child in node.children):
            value = self._appended(self._state.vars.get(name), value)
        if (len(value) if isinstance(value, str) else sum(map(len, value))) > MAX_VALUE:
            # Doubling a variable thirty times must not fill the memory.
            return name, self._state.taint.unknown(name)
        return name, value

    def _renamed(self, name: str, value: str) -> str:
        """A value that a command's output decides is unknown under the variable's own name."""
        if not is_unknown(value):
            return value
        names = self._state.taint.split(value).unknown
        if any(unknown.startswith(("$(", "`", "$[", "${")) for unknown in names):
            return self._state.taint.unknown(name)
        return value

    @staticmethod
    def _appended(old: Value | None, new: Value) -> Value:
        if isinstance(old, list):
            return [*old, *(new if isinstance(new, list) else [new])]
        if isinstance(new, list):
            return [*([old] if old else []), *new]
        return (old or "") + new

    def substitutions(self, node: Node) -> None:
        """Walk the commands inside substitutions below a node: they run, so a launch there counts."""
        stack = [node]
        while stack:
            current = stack.pop()
            if current.type in {"command_substitution", "process_substitution"}:
                self._substitutions_of(current)
            else:
                stack += current.named_children

    def _substitutions_of(self, node: Node) -> None:
        if b"vllm" not in self._state.source[node.start_byte : node.end_byte]:
            return
        before = dict(self._state.vars)
        for child in node.named_children:
            self._run(child)
        self._state.vars = before
