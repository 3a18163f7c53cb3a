"""Dockerfiles: ENTRYPOINT and the last CMD of each stage, parsed by dockerfile-parse."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.argv import CommandReader
from kvplan.gate.reading import Surroundings
from kvplan.gate.shell import read_shell
from kvplan.gate.taint import Word

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading

_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?[-+])([^}]*))?\}|([A-Za-z_]\w*))")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?:[^\s\\]|\\.)*)")


@dataclass(slots=True)
class _Stage:
    image: str = ""
    name: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: dict[str, Any] | None = None
    command: dict[str, Any] | None = None


def read_dockerfile(reading: Reading) -> None:
    """Record the launch of every stage that starts vLLM."""
    stages = _stages(reading)
    for stage in stages:
        _read_stage(reading, stage)


def _stages(reading: Reading) -> list[_Stage]:
    import logging

    import dockerfile_parse

    logging.getLogger("dockerfile_parse").setLevel(logging.CRITICAL)
    parser = dockerfile_parse.DockerfileParser(fileobj=io.BytesIO(reading.text.encode("utf-8", "replace")))
    global_args: dict[str, str] = {}
    stages: list[_Stage] = []
    by_name: dict[str, _Stage] = {}
    for instruction in parser.structure:
        kind, value = instruction["instruction"], instruction["value"]
        if kind == "ARG" and not stages:
            global_args |= _defaults(value)
        elif kind == "FROM":
            stage = _from(reading, value, global_args, by_name)
            stages.append(stage)
            if stage.name:
                by_name[stage.name] = stage
        elif stages:
            _take(reading, stages[-1], kind, instruction)
    return stages


def _from(reading: Reading, value: str, arguments: dict[str, str], by_name: dict[str, _Stage]) -> _Stage:
    words = [word for word in value.split() if not word.startswith("--")]
    base = words[0] if words else ""
    name = words[2] if len(words) > 2 and words[1].upper() == "AS" else None
    parent = by_name.get(base)
    if parent is not None:
        return _Stage(parent.image, name, dict(parent.env), parent.entrypoint, parent.command)
    return _Stage(_expand(reading, base, arguments), name)


def _take(reading: Reading, stage: _Stage, kind: str, instruction: dict[str, Any]) -> None:
    value = instruction["value"]
    match kind:
        case "ENV":
            stage.env |= {key: _expand(reading, text, stage.env) for key, text in _assignments(value).items()}
        case "ARG":
            for key, text in _defaults(value).items():
                stage.env.setdefault(key, reading.taint.defaulted(key, _expand(reading, text, stage.env)))
        case "ENTRYPOINT":
            # A new entrypoint resets the command that the base image brought.
            stage.entrypoint, stage.command = instruction, None
        case "CMD":
            stage.command = instruction


def _read_stage(reading: Reading, stage: _Stage) -> None:
    entry = _exec_words(stage.entrypoint)
    command = _exec_words(stage.command)
    around = Surroundings(
        "dockerfile", env=stage.env, image=stage.image or None, stage=stage.name, name=stage.name
    )

    def run_text(text: str, word: Word, inner: Surroundings) -> None:
        read_shell(
            text, reading, inner, lambda row, column, _: (word.line + row, column + 1), dict(stage.env)
        )

    commands = CommandReader(reading, run_text)
    shell = next(
        (i for i in (stage.entrypoint, stage.command) if i is not None and _exec_words(i) is None), None
    )
    if shell is not None and (stage.entrypoint is shell or stage.entrypoint is None):
        _read_shell_form(reading, stage, shell, around)
        return
    if entry is None and command is None:
        return
    place = stage.command or stage.entrypoint or {}
    image = Word(stage.image, int(place.get("startline", 0)) + 1)
    before = len(reading.launches)
    commands.container(entry or None, command or [], around, image)
    # An image that only sets vLLM as its entrypoint is a tool: its arguments come with the run.
    reading.launches[before:] = [
        launch
        for launch in reading.launches[before:]
        if launch.flags or launch.model or launch.unresolved != ("model",)
    ]


def _read_shell_form(
    reading: Reading, stage: _Stage, instruction: dict[str, Any], around: Surroundings
) -> None:
    """Shell form: the raw lines keep their places; comment lines inside a continuation are blanked."""
    start = int(instruction["startline"])
    rows = reading.text.split("\n")[start : int(instruction["endline"]) + 1]
    head = re.match(r"\s*\w+\s", rows[0]) if rows else None
    if head is None:
        return
    rows[0] = " " * head.end() + rows[0][head.end() :]
    # A comment line would end the continuation in a shell; Docker takes it out before the shell sees it.
    rows = ["\\" if row.lstrip().startswith("#") or not row.strip() else row for row in rows]
    read_shell(
        "\n".join(rows),
        reading,
        around,
        lambda row, column, _: (start + row + 1, column + 1),
        dict(stage.env),
    )


def _exec_words(instruction: dict[str, Any] | None) -> list[Word] | None:
    """The words of the JSON form; None for the shell form and for no instruction."""
    if instruction is None:
        return None
    try:
        words = json.loads(instruction["value"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    line = int(instruction["startline"]) + 1
    rows = instruction["content"].split("\n")
    out: list[Word] = []
    row = 0
    for word in words:
        while (
            row + 1 < len(rows) and word not in rows[row] and any(word in later for later in rows[row + 1 :])
        ):
            row += 1
        out.append(Word(word, line + (row if word in rows[row] else 0), max(rows[row].find(word), 0) + 1))
    return out


def _assignments(value: str) -> dict[str, str]:
    found = {match[1]: _unquote(match[2]) for match in _ASSIGNMENT.finditer(value)}
    if found:
        return found
    key, _, text = value.strip().partition(" ")
    return {key: text.strip()} if key and text else {}


def _defaults(value: str) -> dict[str, str]:
    return {match[1]: _unquote(match[2]) for match in _ASSIGNMENT.finditer(value)}


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] == '"' else text[1:-1]
    return re.sub(r"\\(.)", r"\1", text)


def _expand(reading: Reading, text: str, values: dict[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        name = match[1] or match[4]
        value = values.get(name)
        if value is not None:
            return match[3] or "" if (match[2] or "").endswith("+") else value
        if (match[2] or "").endswith("-"):
            return reading.taint.defaulted(name, match[3] or "")
        return reading.taint.unknown(name)

    return _VARIABLE.sub(one, text)[:20_000] if "$" in text else text
