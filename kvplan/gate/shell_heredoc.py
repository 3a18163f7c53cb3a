"""Here-documents of a shell text: what they say, and whether a shell runs it or a file takes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.shell_expand import unescape, unescape_double
from kvplan.gate.taint import is_unknown, without_notes
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from tree_sitter import Node

    from kvplan.gate.shell_state import ShellState
    from kvplan.gate.shell_words import WordReader

_SHELLS: Final = frozenset({"bash", "sh", "ssh", "zsh"})


class Heredoc(FrozenRecord):
    """One here-document, expanded."""

    text: str
    line: int
    is_run: bool = False
    """Whether it is a shell's input."""
    file: str | None = None
    """The file that it is written to, where its name is known."""
    is_manifest: bool = False
    """Whether it goes where a manifest would go: to kubectl, or to a file without a known name."""


def heredoc(
    state: ShellState, words: WordReader, node: Node, body: Node | None, statement: Node
) -> Heredoc | None:
    """What becomes of a here-document; None when it holds nothing.

    Args:
        state: the text.
        words: its words.
        node: the redirection.
        body: the command that it is given to.
        statement: the statement with all its redirections.
    """
    content = next((child for child in node.named_children if child.type == "heredoc_body"), None)
    start = next((child for child in node.named_children if child.type == "heredoc_start"), None)
    if content is None or start is None:
        return None
    literal = state.text(start)[:1] in {"'", '"', "\\"}
    text = state.text(content) if literal else words.gaps(content, unescape_double)
    line = state.line(content)
    said = [state.text(child) for child in body.named_children] if body is not None else []
    pipes = [state.text(child) for child in node.named_children if child.type == "pipeline"]
    command = said[0] if said else ""
    if (
        command in _SHELLS
        or (said[1:] and said[-1] in {"bash", "sh"})
        or any(re.search(r"\b(bash|sh|ssh)\b", pipe) for pipe in pipes)
    ):
        return Heredoc(text, line, is_run=True)
    targets = [
        words.gaps(destination, unescape)
        for redirect in statement.named_children + node.named_children
        if redirect.type == "file_redirect"
        for destination in [redirect.child_by_field_name("destination")]
        if destination is not None
    ]
    if command == "tee" or any("tee" in pipe for pipe in pipes):
        targets += [word for word in said[1:] if not word.startswith("-")]
    name = without_notes(targets[0]).strip("'\"") if targets else ("stdin" if command == "kubectl" else "")
    if name and not is_unknown(name):
        return Heredoc(text, line, file=name)
    return Heredoc(text, line, is_manifest=bool(name) or command == "kubectl")
