"""Nomad jobs: a scan of HCL tokens with their lines, which is all that `args = [ … ]` needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvplan.gate.accelerators import product
from kvplan.gate.argv import CommandReader
from kvplan.gate.reading import Surroundings
from kvplan.gate.shell import read_shell
from kvplan.gate.taint import Word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.gate.reading import Reading

_TOKEN: Final = re.compile(
    r"(?P<space>[ \t\r]+|//[^\n]*|\#[^\n]*)"
    r"|(?P<newline>\n)"
    r"|(?P<comment>/\*)"
    r"|<<-?(?P<heredoc>[A-Za-z_]\w*)\n"
    r"|(?P<string>\"(?:[^\"\\\n]|\\.)*\")"
    r"|(?P<word>[A-Za-z_][\w.-]*|-?\d+(?:\.\d+)?)"
    r"|(?P<other>.)",
)
_INTERPOLATION: Final = re.compile(r"\$\{([^{}]{1,200})\}")


@dataclass(slots=True)
class _Block:
    names: list[str]
    values: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)


def is_nomad(text: str) -> bool:
    """Whether the text is a Nomad job."""
    return bool(re.search(r"(?m)^\s*job\s+\"[^\"]*\"\s*\{", text))


def read_nomad(reading: Reading) -> None:
    """Record the launch of every task."""
    stack = [_parse(reading.text)]
    while stack:
        block = stack.pop()
        stack += block.blocks
        if block.names[:1] == ["task"]:
            _task(reading, block)


def _task(reading: Reading, task: _Block) -> None:
    config = next((b for b in task.blocks if b.names[:1] == ["config"]), None)
    if config is None:
        return
    resources = next((b for b in task.blocks if b.names[:1] == ["resources"]), None)
    device = next((b for b in resources.blocks if b.names[:1] == ["device"]), None) if resources else None
    env_block = next((b for b in task.blocks if b.names[:1] == ["env"]), None)
    env = {key: values[0][0] for key, values in env_block.values.items() if values} if env_block else {}
    card, count = None, None
    if device is not None:
        parts = device.names[1].split("/") if len(device.names) > 1 else []
        card = product(parts[2]) if len(parts) > 2 else None
        text = (device.values.get("count") or [("1", 0)])[0][0]
        count = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None

    def expand(text: str) -> str:
        return _INTERPOLATION.sub(
            lambda m: env.get(m[1].removeprefix("env.")) or reading.taint.unknown(m[1]), text
        )

    image = expand(config.values["image"][0][0]) if config.values.get("image") else ""
    around = Surroundings(
        "nomad", env=env, image=image or None, gpu=card, num_gpus=count, name=[*task.names, ""][1]
    )
    arguments = [Word(expand(text), line) for text, line in config.values.get("args", [])]
    command = [Word(expand(text), line) for text, line in config.values.get("command", [])]
    entry = [Word(expand(text), line) for text, line in config.values.get("entrypoint", [])]

    def run_text(text: str, word: Word, inner: Surroundings) -> None:
        read_shell(text, reading, inner, lambda row, column, _: (word.line + row, column + 1), dict(env))

    line = config.lines.get("args") or config.lines.get("command") or config.lines.get("image") or 1
    CommandReader(reading, run_text).container(
        entry or None, [*command, *arguments], around, Word(image, line)
    )


def _parse(text: str) -> _Block:  # noqa: C901, PLR0912  one branch a kind
    root = _Block(["file"])
    stack = [root]
    names: list[str] = []
    key: str | None = None
    depth = 0
    for kind, value, line in _tokens(text):
        block = stack[-1]
        if key is not None:
            if value in {"[", "("} and kind == "other":
                depth += 1
            elif value in {"]", ")"} and kind == "other":
                depth -= 1
            elif kind in {"string", "word", "heredoc"}:
                block.values.setdefault(key, []).append((value, line))
            if depth <= 0 and (kind in {"string", "word", "heredoc", "newline"} or value in {"]", ")"}):
                key = None
            continue
        if kind in {"word", "string"}:
            names.append(value)
        elif value == "=" and names:
            key, depth = names[-1], 0
            block.values[key] = []
            block.lines[key] = line
            names = []
        elif value == "{":
            child = _Block(names or ["?"])
            block.blocks.append(child)
            if len(stack) < 60:
                stack.append(child)
            names = []
        elif value == "}":
            if len(stack) > 1:
                stack.pop()
            names = []
        elif kind == "newline":
            names = []
    return root


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            at += 1
            continue
        kind = match.lastgroup or "other"
        value = match[0]
        at = match.end()
        if kind == "comment":
            end_at = text.find("*/", at)
            stop = len(text) if end_at < 0 else end_at + 2
            line += text.count("\n", at, stop)
            at = stop
            continue
        if kind == "heredoc":
            end = re.compile(rf"(?m)^\s*{match['heredoc']}\s*$").search(text, at)
            stop = end.start() if end else len(text)
            yield "heredoc", text[at:stop], line + 1
            line += text.count("\n", match.start(), end.end() if end else len(text))
            at = end.end() if end else len(text)
            continue
        if kind == "string":
            value = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), value[1:-1])
        if kind != "space":
            yield kind, value, line
        line += match[0].count("\n")
