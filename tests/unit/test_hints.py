"""Every complaint says what to do: whoever raises one of kvplan's errors gives a hint with it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import kvplan
from kvplan.errors import KvplanError

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(kvplan.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def family() -> set[str]:
    """Names of all classes that descend from KvplanError, in whatever module."""
    names = {KvplanError.__name__}
    classes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while True:
        more = {c.name for c in classes if names & {getattr(base, "id", None) for base in c.bases}} - names
        if not more:
            return names
        names |= more


def made(names: set[str]) -> Iterator[tuple[str, ast.Call]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in names:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def has_hint(call: ast.Call) -> bool:
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return True  # message and hint together
    given = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "hint")]
    empty = (None, "")
    return bool(given) and not (isinstance(given[0], ast.Constant) and given[0].value in empty)


def test_the_walk_sees_the_family() -> None:
    names = family()
    assert {"InputError", "UnknownNameError", "UnsupportedModelError", "EngineError", "LoadError"} <= names
    assert len(list(made(names))) > 300


def test_every_error_that_is_raised_has_a_hint() -> None:
    without = [f"{place}: {ast.unparse(call)[:120]}" for place, call in made(family()) if not has_hint(call)]
    assert without == []
