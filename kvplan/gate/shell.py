"""Reads shell text: tree-sitter-bash gives the tree, this walks it with the variables of each point.

Flow-sensitive as far as it stays sound: what a branch decides is unknown afterwards, under the name of the
variable that the branch asks.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.argv import CommandReader
from kvplan.gate.shell_branches import merge_branches
from kvplan.gate.shell_expand import (
    Value,
    ansi_c,
    arithmetic,
    parameter,
    unescape,
    unescape_double,
)
from kvplan.gate.taint import Word, is_unknown, without_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tree_sitter import Node, Parser

    from kvplan.gate.reading import Reading, Surroundings

    Locate = Callable[[int, int, str], tuple[int, int]]

MAX_DEPTH: Final = 80
MAX_NESTED_TEXTS: Final = 6
MAX_STEPS: Final = 20_000
_SPLIT: Final = re.compile(r"[ \t\n]+")
_SEEN_BY_ENGINE: Final = re.compile(r"(CUDA|NVIDIA|HABANA|ROCR|HIP|ZE|VLLM|PYTORCH)_")
MAX_VALUE: Final = 20_000
MAX_EXPANDED: Final = 3_000_000
_TESTS: Final = frozenset({"test_command"})


@functools.cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def read_shell(
    text: str,
    reading: Reading,
    around: Surroundings,
    locate: Locate,
    variables: dict[str, Value] | None = None,
) -> None:
    """Record every launch of a shell text.

    Args:
        text: the script, or one command.
        reading: the file it stands in.
        around: what its place says.
        locate: physical line and column of a row, column and piece of the text.
        variables: values that its place gives (the environment of a container).
    """
    if "vllm" not in text.lower() and not is_unknown(text) and not variables:
        return
    if reading.depth >= MAX_NESTED_TEXTS:
        reading.miss(locate(0, 0, "")[0], "shell text nested too deep")
        return
    reading.depth += 1
    try:
        ShellReader(text, reading, around, locate, dict(variables or {})).run()
    finally:
        reading.depth -= 1


class ShellReader:
    """One shell text."""

    def __init__(
        self, text: str, reading: Reading, around: Surroundings, locate: Locate, variables: dict[str, Value]
    ) -> None:
        self._source = text.encode("utf-8", "replace")
        self._reading = reading
        self._taint = reading.taint
        self._around = around
        self._locate = locate
        self._vars = variables
        self._functions: dict[str, Node] = {}
        self._called: set[str] = set()
        self._steps = 0
        self._depth = 0
        self._expanded = 0
        self._commands = CommandReader(reading, self._run_text)

    def run(self) -> None:
        """Walk the whole text, then the functions that nothing in it calls."""
        self._run(_parser().parse(self._source).root_node)
        for name in [name for name in self._functions if name not in self._called]:
            # Called from elsewhere: its arguments are not known here.
            self._branch(self._functions[name])

    # -- statements

    def _run(self, node: Node) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS or self._depth > MAX_DEPTH:
            if self._steps == MAX_STEPS + 1:
                self._reading.miss(self._line(node), "shell text too long or nested too deep to follow")
            return
        handler = getattr(self, f"_run_{node.type}", None)
        self._depth += 1
        try:
            if handler is not None:
                handler(node)
            else:
                for child in node.named_children:
                    if child.type != "comment":
                        self._run(child)
        finally:
            self._depth -= 1

    def _run_comment(self, _: Node) -> None:
        """Comments say nothing."""

    def _run_test_command(self, node: Node) -> None:
        self._substitutions(node)

    def _run_variable_assignment(self, node: Node) -> None:
        name, value = self._assignment(node)
        if name:
            self._vars[name] = value

    def _run_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self._vars.pop(self._text(child), None)

    def _run_function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[self._text(name)] = body

    def _run_subshell(self, node: Node) -> None:
        before = dict(self._vars)
        for child in node.named_children:
            self._run(child)
        self._vars = before

    def _run_list(self, node: Node) -> None:
        # Lists nest to the left: unrolled here, because a script may hold thousands in a row.
        parts: list[tuple[Node, str]] = []
        current: Node | None = node
        while current is not None and current.type == "list":
            children = current.children
            if len(children) < 3:
                break
            parts.append((children[-1], children[1].type))
            current = children[0]
        first = current if current is not None else node
        self._run(first)
        previous = first
        for part, connector in reversed(parts):
            conditional = connector == "||" or self._is_test(previous)
            if conditional and part.type != "list":
                self._conditional(part, previous)
            else:
                self._run(part)
            previous = part

    def _conditional(self, node: Node, condition: Node) -> None:
        before = dict(self._vars)
        self._run(node)
        self._vars = merge_branches(
            self._taint, before, [self._vars, before], self._asked(condition), self._empty_test(condition)
        )

    def _run_if_statement(self, node: Node) -> None:
        conditions = [
            child for i, child in enumerate(node.children) if node.field_name_for_child(i) == "condition"
        ]
        conditions = [child for child in conditions if child.is_named]
        before = dict(self._vars)
        asked: list[str] = []
        empty: str | None = None
        for child in conditions:
            self._run(child)
            asked += self._asked(child)
            empty = empty or self._empty_test(child)
        arms: list[dict[str, Value]] = []
        has_else = False
        body: list[Node] = []
        for child in node.named_children:
            if child in conditions:
                continue
            if child.type == "elif_clause":
                asked += self._asked(child.named_children[0]) if child.named_children else []
                arms.append(self._arm(before, child.named_children[1:]))
            elif child.type == "else_clause":
                has_else = True
                arms.append(self._arm(before, child.named_children))
            else:
                body.append(child)
        arms.insert(0, self._arm(before, body))
        if not has_else:
            arms.append(before)
        self._vars = merge_branches(self._taint, before, arms, asked, empty if len(arms) == 2 else None)

    def _run_case_statement(self, node: Node) -> None:
        value = node.child_by_field_name("value")
        before = dict(self._vars)
        arms = [before]
        for child in node.named_children:
            if child.type == "case_item":
                body = [
                    c
                    for i, c in enumerate(child.children)
                    if c.is_named and child.field_name_for_child(i) != "value"
                ]
                arms.append(self._arm(before, body))
        self._vars = merge_branches(self._taint, before, arms, self._asked(value) if value else [], None)

    def _run_for_statement(self, node: Node) -> None:
        variable = node.child_by_field_name("variable")
        values = [child for i, child in enumerate(node.children) if node.field_name_for_child(i) == "value"]
        name = self._text(variable) if variable is not None else ""
        fields = [field for value in values for field in self._fields(value)]
        one = fields[0] if len(fields) == 1 and not is_unknown(fields[0]) else self._taint.unknown(name)
        self._loop(node, {name: one}, [name])

    def _run_c_style_for_statement(self, node: Node) -> None:
        self._loop(node, {}, [])

    def _run_while_statement(self, node: Node) -> None:
        self._loop(node, {}, [])

    def _loop(self, node: Node, extra: dict[str, Value], asked: list[str]) -> None:
        before = dict(self._vars)
        self._vars |= extra
        body = node.child_by_field_name("body")
        if body is not None:
            self._run(body)
        self._vars = merge_branches(self._taint, before, [self._vars, before], asked, None)

    def _branch(self, node: Node) -> None:
        before = dict(self._vars)
        self._run(node)
        self._vars = before

    def _arm(self, before: dict[str, Value], nodes: list[Node]) -> dict[str, Value]:
        self._vars = dict(before)
        for node in nodes:
            self._run(node)
        return self._vars

    def _run_redirected_statement(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                self._heredoc(child, body, node)
        if body is not None:
            self._run(body)

    def _heredoc(self, node: Node, body: Node | None, statement: Node) -> None:
        content = next((child for child in node.named_children if child.type == "heredoc_body"), None)
        start = next((child for child in node.named_children if child.type == "heredoc_start"), None)
        if content is None or start is None:
            return
        literal = self._text(start)[:1] in {"'", '"', "\\"}
        text = self._text(content) if literal else self._gaps(content, unescape_double)
        line = self._line(content)
        words = [self._text(child) for child in body.named_children] if body is not None else []
        pipes = [child for child in node.named_children if child.type == "pipeline"]
        command = words[0] if words else ""
        if (
            command in {"bash", "sh", "ssh", "zsh"}
            or (words[1:] and words[-1] in {"bash", "sh"})
            or any(re.search(r"\b(bash|sh|ssh)\b", self._text(pipe)) for pipe in pipes)
        ):
            self._inner(text, line)
            return
        targets = [
            self._gaps(destination, unescape)
            for redirect in statement.named_children + node.named_children
            if redirect.type == "file_redirect"
            for destination in [redirect.child_by_field_name("destination")]
            if destination is not None
        ]
        if command == "tee" or any("tee" in self._text(pipe) for pipe in pipes):
            targets += [word for word in words[1:] if not word.startswith("-")]
        name = (
            without_notes(targets[0]).strip("'\"") if targets else ("stdin" if command == "kubectl" else "")
        )
        if name and not is_unknown(name):
            self._reading.written[name] = (text, line)
            self._reading.written.setdefault(name.rpartition("/")[2], (text, line))
            self._written(name, text, line)
        elif name or command == "kubectl":
            self._written("stdin.yaml", text, line)

    def _written(self, name: str, text: str, line: int) -> None:
        """A file that the script writes is read like a file of its own, with this file's lines."""
        from kvplan.gate.read import read_embedded

        read_embedded(name, text, line, self._reading, self._around)

    # -- commands

    def _run_declaration_command(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._run_variable_assignment(child)

    def _run_command(self, node: Node) -> None:
        words: list[Word] = []
        env: dict[str, str] = {}
        for i, child in enumerate(node.children):
            field = node.field_name_for_child(i)
            if child.type == "variable_assignment":
                name, value = self._assignment(child)
                if name and isinstance(value, str):
                    env[name] = value
            elif child.type == "command_name" or field == "argument":
                words += self._words(child)
            elif child.is_named and "redirect" in child.type:
                self._substitutions(child)
        if not words:
            return
        name = without_notes(words[0].text)
        if self._builtin(name, words):
            return
        if name in self._functions:
            self._call(name, words)
            return
        visible = {k: v for k, v in self._vars.items() if isinstance(v, str) and _SEEN_BY_ENGINE.match(k)}
        self._commands.read(words, self._around.but(env={**self._around.env, **visible, **env}))

    def _builtin(self, name: str, words: list[Word]) -> bool:
        rest = [word.text for word in words[1:]]
        match name:
            case "set":
                if "--" in rest:
                    self._set_positional(rest[rest.index("--") + 1 :])
            case "shift":
                shifted = self._vars.get("@")
                if isinstance(shifted, list):
                    count = (
                        int(rest[0])
                        if rest and rest[0].isascii() and rest[0].isdigit() and len(rest[0]) < 4
                        else 1
                    )
                    self._set_positional(shifted[count:])
            case "read" | "mapfile" | "readarray":
                for text in rest:
                    if re.fullmatch(r"[A-Za-z_]\w*", text):
                        self._vars[text] = self._taint.unknown(text)
            case "eval":
                joined = " ".join(rest)
                if "vllm" in joined:
                    self._inner(joined, words[0].line)
            case _:
                return False
        return True

    def _set_positional(self, fields: list[str]) -> None:
        for name in [name for name in self._vars if name.isdigit()]:
            del self._vars[name]
        self._vars["@"] = fields
        self._vars |= {str(i + 1): field for i, field in enumerate(fields[:30])}

    def _call(self, name: str, words: list[Word]) -> None:
        if self._depth > MAX_DEPTH // 2 or self._steps > MAX_STEPS // 2:
            return
        before = dict(self._vars)
        self._called.add(name)
        body = self._functions.pop(name)
        self._set_positional([word.text for word in words[1:]])
        self._run(body)
        self._functions[name] = body
        positional = {key: value for key, value in before.items() if key.isdigit() or key == "@"}
        self._vars = {k: v for k, v in self._vars.items() if not (k.isdigit() or k == "@")} | positional

    def _run_text(self, text: str, word: Word, around: Surroundings) -> None:
        def locate(row: int, _: int, __: str) -> tuple[int, int]:
            return word.line + row, word.column if row == 0 else 1

        read_shell(text, self._reading, around, locate, self._vars)

    def _inner(self, text: str, line: int) -> None:
        def locate(row: int, column: int, _: str) -> tuple[int, int]:
            return line + row, column + 1

        read_shell(text, self._reading, self._around, locate, self._vars)

    # -- words

    def _words(self, node: Node) -> list[Word]:
        column = node.start_point.column
        text = self._text(node) if node.end_byte - node.start_byte < 200 else ""
        line, at = self._locate(node.start_point.row, column, text)
        return [Word(field, line, at) for field in self._fields(node)]

    def _fields(self, node: Node) -> list[str]:
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
                parts = _SPLIT.split(text)
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
        return fields if sum(map(len, fields)) <= MAX_VALUE else [self._taint.unknown(self._text(node)[:80])]

    def _pieces(self, node: Node, *, quoted: bool) -> Iterator[tuple[str, bool, list[str] | None]]:  # noqa: PLR0912  one branch a kind
        if self._depth > MAX_DEPTH:
            return
        self._depth += 1
        try:
            match node.type:
                case "command_name" | "concatenation" | "translated_string":
                    for child in node.children if node.type != "translated_string" else node.named_children:
                        yield from self._pieces(child, quoted=quoted)
                case "raw_string":
                    yield self._text(node)[1:-1], False, None
                case "ansi_c_string":
                    yield ansi_c(self._text(node)[2:-1]), False, None
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
                    self._substitutions(node)
                case _:
                    yield unescape(self._text(node)), False, None
        finally:
            self._depth -= 1

    def _quoted(self, node: Node) -> Iterator[tuple[str, bool, list[str] | None]]:
        inner = [child for child in node.named_children if child.type != "string_content"]
        if len(inner) == 1 and node.end_byte - node.start_byte == inner[0].end_byte - inner[0].start_byte + 2:
            many = self._array(inner[0]) if inner[0].type in {"simple_expansion", "expansion"} else None
            if many is not None:
                yield "", False, many
                return
        yield self._gaps(node, unescape_double, trim=1), False, None

    def _gaps(self, node: Node, clean: Callable[[str], str], trim: int = 0) -> str:
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
            out.append(clean(self._bytes(at, child.start_byte)))
            out.append(self._flat(child))
            at = child.end_byte
        out.append(clean(self._bytes(at, end)))
        return "".join(out)

    def _flat(self, node: Node) -> str:
        text = "".join(
            " ".join(many) if many is not None else text for text, _, many in self._pieces(node, quoted=True)
        )
        self._expanded += len(text)
        # A script that multiplies its own text is followed no further.
        return text if self._expanded < MAX_EXPANDED else self._taint.unknown("text expanded too often")

    def _array(self, node: Node) -> list[str] | None:
        """The fields of `$@`, `${A[@]}` or `${A[*]}`; None when the node is no array expansion."""
        name = self._text(node)
        if name in {"$@", "$*", "${@}", "${*}"}:
            value = self._vars.get("@")
            return list(value) if isinstance(value, list) else [self._taint.unknown("@")]
        subscript = next((child for child in node.named_children if child.type == "subscript"), None)
        operation = node.child_by_field_name("operator")
        # ${A[@]+"${A[@]}"} is how older shells spell an array that may be empty.
        if subscript is None or (operation is not None and self._text(operation) not in {"+", ":+"}):
            return None
        variable = subscript.child_by_field_name("name")
        index = subscript.child_by_field_name("index")
        if variable is None or index is None or self._text(index) not in {"@", "*"}:
            return None
        value = self._vars.get(self._text(variable))
        if isinstance(value, str):
            return [value]
        return list(value) if value is not None else [self._taint.unknown(self._text(variable))]

    def _expansion(self, node: Node) -> str:
        children = node.named_children
        variable = next(
            (c for c in children if c.type in {"variable_name", "special_variable_name", "subscript"}), None
        )
        text = self._text(node)
        if variable is None or text.startswith(("${#", "${!")):
            return self._taint.unknown(text)
        name = self._text(variable)
        value = self._lookup(variable)
        operation = node.child_by_field_name("operator")
        if operation is None:
            return self._taint.unknown(name) if value is None else value
        op = self._text(operation)
        operands = [c for c in children if c.start_byte >= operation.end_byte]

        def word() -> str:
            if op in {"/", "//"}:
                return "\0".join(self._flat(c) for c in operands[:2])
            begin, end = operation.end_byte, node.end_byte - 1
            return self._span(operands, begin, end)

        result = parameter(self._taint, name, value, op, word)
        if op in {":=", "="} and variable.type == "variable_name":
            self._vars[name] = result
        return result

    def _span(self, nodes: list[Node], begin: int, end: int) -> str:
        out: list[str] = []
        at = begin
        for child in nodes:
            out.append(self._bytes(at, child.start_byte))
            out.append(self._flat_operand(child))
            at = child.end_byte
        out.append(self._bytes(at, end))
        return "".join(out)

    def _flat_operand(self, node: Node) -> str:
        if node.type == "concatenation":
            return self._span(node.named_children, node.start_byte, node.end_byte)
        return self._flat(node)

    def _lookup(self, variable: Node) -> str | None:
        if variable.type == "subscript":
            name = variable.child_by_field_name("name")
            index = variable.child_by_field_name("index")
            array = self._vars.get(self._text(name)) if name is not None else None
            position = self._text(index) if index is not None else ""
            if isinstance(array, list) and position.isascii() and position.isdigit() and len(position) < 5:
                return array[int(position)] if int(position) < len(array) else ""
            return " ".join(array) if isinstance(array, list) and position in {"@", "*"} else None
        value = self._vars.get(self._text(variable))
        if isinstance(value, list):
            return value[0] if value else ""
        return value

    def _substitution(self, node: Node) -> str:
        self._substitutions_of(node)
        inner = node.named_children
        if len(inner) == 1 and inner[0].type == "command":
            words = [field for child in inner[0].named_children for field in self._fields(child)]
            if words[:1] == ["echo"] and len(words) > 1 and not words[1].startswith("-"):
                return " ".join(words[1:])
            if words[:1] == ["basename"] and len(words) == 2 and not is_unknown(words[1]):
                return words[1].rstrip("/").rpartition("/")[2]
        return self._taint.unknown(self._text(node)[:200])

    def _arithmetic(self, node: Node) -> str:
        text = self._text(node)
        inner = text[3:-2] if text.startswith("$((") else text[2:-1]
        names = set(re.findall(r"[A-Za-z_]\w*", inner))
        for name in sorted(names, key=len, reverse=True):
            value = self._vars.get(name)
            if not isinstance(value, str) or is_unknown(value):
                return self._taint.unknown(text[:200])
            inner = re.sub(rf"\$?\{{?\b{name}\b\}}?", without_notes(value).replace("\\", ""), inner)
        result = arithmetic(inner)
        return self._taint.unknown(text[:200]) if result is None else str(result)

    def _assignment(self, node: Node) -> tuple[str, Value]:
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None or name_node.type != "variable_name":
            # An element of an array: which one is not followed.
            base = name_node.child_by_field_name("name") if name_node is not None else None
            return (
                (self._text(base), [self._taint.unknown(self._text(base))]) if base is not None else ("", "")
            )
        name = self._text(name_node)
        value: Value
        if value_node is None:
            value = ""
        elif value_node.type == "array":
            value = [
                f
                for child in value_node.named_children
                if child.type != "comment"
                for f in self._fields(child)
            ]
        else:
            value = self._flat(value_node) if value_node.type != "word" else unescape(self._text(value_node))
            value = self._renamed(name, value)
        if any(child.type == "+=" for child in node.children):
            value = self._appended(self._vars.get(name), value)
        if (len(value) if isinstance(value, str) else sum(map(len, value))) > MAX_VALUE:
            # Doubling a variable thirty times must not fill the memory.
            return name, self._taint.unknown(name)
        return name, value

    def _renamed(self, name: str, value: str) -> str:
        """A value that a command's output decides is unknown under the variable's own name."""
        if not is_unknown(value):
            return value
        names = self._taint.split(value).unknown
        if any(unknown.startswith(("$(", "`", "$[", "${")) for unknown in names):
            return self._taint.unknown(name)
        return value

    @staticmethod
    def _appended(old: Value | None, new: Value) -> Value:
        if isinstance(old, list):
            return [*old, *(new if isinstance(new, list) else [new])]
        if isinstance(new, list):
            return [*([old] if old else []), *new]
        return (old or "") + new

    # -- conditions

    def _is_test(self, node: Node) -> bool:
        if node.type in _TESTS:
            return True
        if node.type == "command":
            return self._text(node).startswith(("test ", "[ "))
        return node.type in {"negated_command", "list"} and any(self._is_test(c) for c in node.named_children)

    def _asked(self, node: Node) -> list[str]:
        """Variables that a condition asks and that the file does not settle."""
        names: list[str] = []
        stack = [node]
        while stack and len(names) < 20:
            current = stack.pop()
            if current.type in {"simple_expansion", "expansion"}:
                variable = next(
                    (
                        c
                        for c in current.named_children
                        if c.type in {"variable_name", "special_variable_name"}
                    ),
                    None,
                )
                if variable is not None:
                    name = self._text(variable)
                    value = self._vars.get(name)
                    if value is None:
                        names.append(name)
                    else:
                        plain = self._taint.split(" ".join(value) if isinstance(value, list) else value)
                        names += [*plain.unknown, *plain.defaulted]
            stack += reversed(current.named_children)
        return list(dict.fromkeys(names))

    def _empty_test(self, node: Node) -> str | None:
        """The variable X of `[ -z "$X" ]`."""
        match = re.fullmatch(
            r"\[\[?\s+-z\s+\"?\$\{?([A-Za-z_]\w*)(?::?-)?\}?\"?\s+\]\]?(?:\s*;)?", self._text(node).strip()
        )
        return match[1] if match else None

    def _substitutions(self, node: Node) -> None:
        """Walk the commands inside substitutions below a node: they run, so a launch there counts."""
        stack = [node]
        while stack:
            current = stack.pop()
            if current.type in {"command_substitution", "process_substitution"}:
                self._substitutions_of(current)
            else:
                stack += current.named_children

    def _substitutions_of(self, node: Node) -> None:
        if b"vllm" not in self._source[node.start_byte : node.end_byte]:
            return
        before = dict(self._vars)
        for child in node.named_children:
            self._run(child)
        self._vars = before

    # -- text

    def _text(self, node: Node) -> str:
        return self._bytes(node.start_byte, node.end_byte)

    def _bytes(self, begin: int, end: int) -> str:
        return self._source[begin:end].decode("utf-8", "replace")

    def _line(self, node: Node) -> int:
        return self._locate(node.start_point.row, 0, "")[0]


def whole_file(row: int, column: int, _: Any = "") -> tuple[int, int]:
    """Rows of a script are lines of its file."""
    return row + 1, column + 1
