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
from kvplan.gate.shell_conditions import empty_test, is_test, variables_asked
from kvplan.gate.shell_heredoc import heredoc
from kvplan.gate.shell_state import MAX_DEPTH, ShellState
from kvplan.gate.shell_words import WordReader
from kvplan.gate.taint import Word, is_unknown, without_notes

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

    from kvplan.gate.reading import Reading, Surroundings
    from kvplan.gate.shell_expand import Value
    from kvplan.gate.shell_state import Locate

MAX_NESTED_TEXTS: Final = 6
MAX_STEPS: Final = 20_000
_SEEN_BY_ENGINE: Final = r"(CUDA|NVIDIA|HABANA|ROCR|HIP|ZE|VLLM|PYTORCH)_"


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
    """The statements of one shell text."""

    def __init__(
        self, text: str, reading: Reading, around: Surroundings, locate: Locate, variables: dict[str, Value]
    ) -> None:
        self._reading = reading
        self._around = around
        self._state = ShellState(text.encode("utf-8", "replace"), reading.taint, locate, variables)
        self._words = WordReader(self._state, self._run)
        self._functions: dict[str, Node] = {}
        self._called: set[str] = set()
        self._steps = 0
        self._commands = CommandReader(reading, self._run_text)

    def run(self) -> None:
        """Walk the whole text, then the functions that nothing in it calls."""
        self._run(_parser().parse(self._state.source).root_node)
        for name in [name for name in self._functions if name not in self._called]:
            # Called from elsewhere: its arguments are not known here.
            self._branch(self._functions[name])

    def _run(self, node: Node) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS or self._state.depth > MAX_DEPTH:
            if self._steps == MAX_STEPS + 1:
                self._reading.miss(self._state.line(node), "shell text too long or nested too deep to follow")
            return
        handler = getattr(self, f"_run_{node.type}", None)
        self._state.depth += 1
        try:
            if handler is not None:
                handler(node)
            else:
                for child in node.named_children:
                    if child.type != "comment":
                        self._run(child)
        finally:
            self._state.depth -= 1

    def _run_comment(self, _: Node) -> None:
        """Comments say nothing."""

    def _run_test_command(self, node: Node) -> None:
        self._words.substitutions(node)

    def _run_variable_assignment(self, node: Node) -> None:
        name, value = self._words.assignment(node)
        if name:
            self._state.vars[name] = value

    def _run_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self._state.vars.pop(self._state.text(child), None)

    def _run_function_definition(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self._functions[self._state.text(name)] = body

    def _run_subshell(self, node: Node) -> None:
        before = dict(self._state.vars)
        for child in node.named_children:
            self._run(child)
        self._state.vars = before

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
            conditional = connector == "||" or is_test(self._state, previous)
            if conditional and part.type != "list":
                self._conditional(part, previous)
            else:
                self._run(part)
            previous = part

    def _conditional(self, node: Node, condition: Node) -> None:
        before = dict(self._state.vars)
        self._run(node)
        self._state.vars = merge_branches(
            self._state.taint,
            before,
            [self._state.vars, before],
            variables_asked(self._state, condition),
            empty_test(self._state, condition),
        )

    def _run_if_statement(self, node: Node) -> None:
        conditions = [
            child for i, child in enumerate(node.children) if node.field_name_for_child(i) == "condition"
        ]
        conditions = [child for child in conditions if child.is_named]
        before = dict(self._state.vars)
        asked: list[str] = []
        empty: str | None = None
        for child in conditions:
            self._run(child)
            asked += variables_asked(self._state, child)
            empty = empty or empty_test(self._state, child)
        arms: list[dict[str, Value]] = []
        has_else = False
        body: list[Node] = []
        for child in node.named_children:
            if child in conditions:
                continue
            if child.type == "elif_clause":
                asked += variables_asked(self._state, child.named_children[0]) if child.named_children else []
                arms.append(self._arm(before, child.named_children[1:]))
            elif child.type == "else_clause":
                has_else = True
                arms.append(self._arm(before, child.named_children))
            else:
                body.append(child)
        arms.insert(0, self._arm(before, body))
        if not has_else:
            arms.append(before)
        self._state.vars = merge_branches(
            self._state.taint, before, arms, asked, empty if len(arms) == 2 else None
        )

    def _run_case_statement(self, node: Node) -> None:
        value = node.child_by_field_name("value")
        before = dict(self._state.vars)
        arms = [before]
        for child in node.named_children:
            if child.type == "case_item":
                body = [
                    c
                    for i, c in enumerate(child.children)
                    if c.is_named and child.field_name_for_child(i) != "value"
                ]
                arms.append(self._arm(before, body))
        self._state.vars = merge_branches(
            self._state.taint, before, arms, variables_asked(self._state, value) if value else [], None
        )

    def _run_for_statement(self, node: Node) -> None:
        variable = node.child_by_field_name("variable")
        values = [child for i, child in enumerate(node.children) if node.field_name_for_child(i) == "value"]
        name = self._state.text(variable) if variable is not None else ""
        fields = [field for value in values for field in self._words.fields(value)]
        taint = self._state.taint
        if not values or (len(fields) == 1 and taint.split(fields[0]).unknown in {("@",), ("*",)}):
            # `for option in "$@"`: without arguments the body is not run.
            one = taint.unknown("@")
        else:
            one = fields[0] if len(fields) == 1 and not is_unknown(fields[0]) else taint.unknown(name)
        self._loop(node, {name: one}, [name])

    def _run_c_style_for_statement(self, node: Node) -> None:
        self._loop(node, {}, [])

    def _run_while_statement(self, node: Node) -> None:
        self._loop(node, {}, [])

    def _loop(self, node: Node, extra: dict[str, Value], asked: list[str]) -> None:
        before = dict(self._state.vars)
        self._state.vars |= extra
        body = node.child_by_field_name("body")
        if body is not None:
            self._run(body)
        self._state.vars = merge_branches(self._state.taint, before, [self._state.vars, before], asked, None)

    def _branch(self, node: Node) -> None:
        before = dict(self._state.vars)
        self._run(node)
        self._state.vars = before

    def _arm(self, before: dict[str, Value], nodes: list[Node]) -> dict[str, Value]:
        self._state.vars = dict(before)
        for node in nodes:
            self._run(node)
        return self._state.vars

    def _run_redirected_statement(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                self._heredoc(child, body, node)
        if body is not None:
            self._run(body)

    def _heredoc(self, node: Node, body: Node | None, statement: Node) -> None:
        found = heredoc(self._state, self._words, node, body, statement)
        if found is None:
            return
        if found.is_run:
            self._inner(found.text, found.line)
        elif found.file is not None:
            self._reading.written[found.file] = (found.text, found.line)
            self._reading.written.setdefault(found.file.rpartition("/")[2], (found.text, found.line))
            self._written(found.file, found.text, found.line)
        elif found.is_manifest:
            self._written("stdin.yaml", found.text, found.line)

    def _written(self, name: str, text: str, line: int) -> None:
        """A file that the script writes is read like a file of its own, with this file's lines."""
        from kvplan.gate.read import read_embedded

        read_embedded(name, text, line, self._reading, self._around)

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
                name, value = self._words.assignment(child)
                if name and isinstance(value, str):
                    env[name] = value
            elif child.type == "command_name" or field == "argument":
                words += self._words.words(child)
            elif child.is_named and "redirect" in child.type:
                self._words.substitutions(child)
        if not words:
            return
        name = without_notes(words[0].text)
        if self._builtin(name, words):
            return
        if name in self._functions:
            self._call(name, words)
            return
        visible = {
            k: v for k, v in self._state.vars.items() if isinstance(v, str) and re.match(_SEEN_BY_ENGINE, k)
        }
        self._commands.read(words, self._around.but(env={**self._around.env, **visible, **env}))

    def _builtin(self, name: str, words: list[Word]) -> bool:
        rest = [word.text for word in words[1:]]
        match name:
            case "set":
                if "--" in rest:
                    self._set_positional(rest[rest.index("--") + 1 :])
            case "shift":
                shifted = self._state.vars.get("@")
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
                        self._state.vars[text] = self._state.taint.unknown(text)
            case "eval":
                joined = " ".join(rest)
                if "vllm" in joined:
                    self._inner(joined, words[0].line)
            case _:
                return False
        return True

    def _set_positional(self, fields: list[str]) -> None:
        for name in [name for name in self._state.vars if name.isdigit()]:
            del self._state.vars[name]
        self._state.vars["@"] = fields
        self._state.vars |= {str(i + 1): field for i, field in enumerate(fields[:30])}

    def _call(self, name: str, words: list[Word]) -> None:
        if self._state.depth > MAX_DEPTH // 2 or self._steps > MAX_STEPS // 2:
            return
        before = dict(self._state.vars)
        self._called.add(name)
        body = self._functions.pop(name)
        self._set_positional([word.text for word in words[1:]])
        self._run(body)
        self._functions[name] = body
        positional = {key: value for key, value in before.items() if key.isdigit() or key == "@"}
        self._state.vars = {
            k: v for k, v in self._state.vars.items() if not (k.isdigit() or k == "@")
        } | positional

    def _run_text(self, text: str, word: Word, around: Surroundings) -> None:
        def locate(row: int, _: int, __: str) -> tuple[int, int]:
            return word.line + row, word.column if row == 0 else 1

        read_shell(text, self._reading, around, locate, self._state.vars)

    def _inner(self, text: str, line: int) -> None:
        def locate(row: int, column: int, _: str) -> tuple[int, int]:
            return line + row, column + 1

        read_shell(text, self._reading, self._around, locate, self._state.vars)


def whole_file(row: int, column: int, _: Any = "") -> tuple[int, int]:
    """Rows of a script are lines of its file."""
    return row + 1, column + 1
