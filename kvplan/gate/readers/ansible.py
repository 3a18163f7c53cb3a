"""Ansible plays and task files: containers and shell commands with Jinja."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.argv import CommandReader
from kvplan.gate.readers.containers import split_words
from kvplan.gate.readers.templates import substitute
from kvplan.gate.reading import Surroundings
from kvplan.gate.shell import read_shell
from kvplan.gate.taint import Word

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading
    from kvplan.gate.yaml_nodes import Node

_BLOCK: Final = re.compile(r"\{%-?\s*if\s+(.{1,300}?)\s*-?%\}.{0,4000}?\{%-?\s*endif\s*-?%\}", re.DOTALL)
_STATEMENT: Final = re.compile(r"\{%.{0,300}?%\}|\{#.{0,1000}?#\}", re.DOTALL)
_CONTAINER: Final = re.compile(r"(.*\.)?(docker_container|podman_container)")
_COMMAND: Final = re.compile(r"(ansible\.builtin\.)?(shell|command|raw|script)")


def is_ansible(doc: Node) -> bool:
    """Whether it is a list of plays or of tasks."""
    return doc.kind == "list" and any(
        item.kind == "map"
        and any(
            key in {"hosts", "tasks", "block", "include_tasks", "import_playbook"}
            or _CONTAINER.fullmatch(key)
            or _COMMAND.fullmatch(key)
            or key.startswith("ansible.")
            for key, _, _ in item.entries()
        )
        for item in doc.items
    )


def read_ansible(reading: Reading, doc: Node) -> None:
    """Record the launches of every task."""
    variables: dict[str, str] = {}
    for node in doc.walk():
        if node.kind == "map":
            listed = node.get("vars")
            for key, _, value in listed.entries() if listed is not None and listed.kind == "map" else ():
                if value.kind == "scalar":
                    variables[key] = value.text
    for node in doc.walk():
        if node.kind == "map":
            for key, _, value in node.entries():
                if _CONTAINER.fullmatch(key) and value.kind == "map":
                    _read_container(reading, value, variables)
                elif _COMMAND.fullmatch(key):
                    _read_command(reading, value, variables)


def render(reading: Reading, text: str, variables: dict[str, str], depth: int = 0) -> str:
    """The text with Jinja replaced: play variables are values, a conditional part is unknown."""

    def lookup(path: str) -> str | None:
        value = variables.get(path)
        if value is None or depth > 4:
            return None
        return render(reading, value, variables, depth + 1) if "{{" in value else value

    text = _BLOCK.sub(lambda match: f" {reading.taint.unknown(match[1])} ", text)
    return _STATEMENT.sub(" ", substitute(reading.taint, text, lookup))


def _read_container(reading: Reading, task: Node, variables: dict[str, str]) -> None:
    command = task.get("command")
    image = render(reading, task.text_of("image") or "", variables)
    entry = task.get("entrypoint")
    count = None
    for request in task.list_of("device_requests"):
        text = render(reading, request.text_of("count") or "", variables)
        if text.isascii() and text.isdigit() and len(text) < 5:
            count = int(text)
        ids = request.list_of("device_ids")
        count = len(ids) if ids else count
    line = task.key_line("command") if command is not None else task.key_line("image")
    name = task.text_of("name")
    around = Surroundings("ansible", image=image, num_gpus=count, name=name)
    words = _words(reading, command, variables)
    if words is None:
        reading.miss(line, "command cannot be split into words")
        return
    _reader(reading).container(_words(reading, entry, variables) or None, words, around, Word(image, line))


def _read_command(reading: Reading, value: Node, variables: dict[str, str]) -> None:
    node = (
        value
        if value.kind == "scalar"
        else (value.get("cmd") or value.get("_raw_params") or value.get("argv"))
    )
    if node is None:
        return
    if node.kind == "list":
        _reader(reading).read(_words(reading, node, variables) or [], Surroundings("ansible"))
        return
    text = render(reading, node.text, variables)
    read_shell(text, reading, Surroundings("ansible"), lambda row, _, needle: node.place_of(row, needle))


def _words(reading: Reading, node: Node | None, variables: dict[str, str]) -> list[Word] | None:
    if node is None or node.is_null:
        return []
    if node.kind == "list":
        return [Word(render(reading, item.text, variables), *item.place_of(0)) for item in node.items]
    return split_words(render(reading, node.text, variables), node)


def _reader(reading: Reading) -> CommandReader:
    def run_text(text: str, word: Word, around: Surroundings) -> None:
        read_shell(text, reading, around, lambda row, column, _: (word.line + row, column + 1))

    return CommandReader(reading, run_text)
