"""What conditions of a shell text ask: the variables that a branch depends on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Node

    from kvplan.gate.shell_state import ShellState

_TESTS: Final = frozenset({"test_command"})


def is_test(state: ShellState, node: Node) -> bool:
    """Whether a command is one that only asks."""
    if node.type in _TESTS:
        return True
    if node.type == "command":
        return state.text(node).startswith(("test ", "[ "))
    return node.type in {"negated_command", "list"} and any(is_test(state, c) for c in node.named_children)


def variables_asked(state: ShellState, node: Node) -> list[str]:
    """Variables that a condition asks and that the file does not settle."""
    names: list[str] = []
    stack = [node]
    while stack and len(names) < 20:
        current = stack.pop()
        if current.type in {"simple_expansion", "expansion"}:
            variable = next(
                (c for c in current.named_children if c.type in {"variable_name", "special_variable_name"}),
                None,
            )
            if variable is not None:
                name = state.text(variable)
                value = state.vars.get(name)
                if value is None:
                    names.append(name)
                else:
                    plain = state.taint.split(" ".join(value) if isinstance(value, list) else value)
                    names += [*plain.unknown, *plain.defaulted]
        stack += reversed(current.named_children)
    return list(dict.fromkeys(names))


def empty_test(state: ShellState, node: Node) -> str | None:
    """The variable X of `[ -z "$X" ]`."""
    match = re.fullmatch(
        r"\[\[?\s+-z\s+\"?\$\{?([A-Za-z_]\w*)(?::?-)?\}?\"?\s+\]\]?(?:\s*;)?", state.text(node).strip()
    )
    return match[1] if match else None
