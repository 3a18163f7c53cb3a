"""Containers of pods: `command` and `args` with `$(VAR)` from the container's environment."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.accelerators import count_of, memory_limit
from kvplan.gate.argv import CommandReader
from kvplan.gate.readers.templates import substitute
from kvplan.gate.shell import read_shell
from kvplan.gate.taint import Word
from kvplan.gate.word_tables import SHELLS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvplan.gate.reading import Reading, Surroundings
    from kvplan.gate.shell_expand import Value
    from kvplan.gate.yaml_nodes import Node

_REFERENCE: Final = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")

_ENVSUBST: Final = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^{}$]*))?\}")

ConfigMaps = dict[tuple[str, str], str]
"""(name, key) -> value of the ConfigMaps that the repository holds."""


def words_of(node: Node | None, expand: Callable[[str], str]) -> list[Word]:
    """The words of a `command` or `args` list; a plain string is one word."""
    if node is None or node.is_null:
        return []
    items = node.items if node.kind == "list" else [node]
    return [Word(expand(item.text), *item.place_of(0)) for item in items if item.kind == "scalar"]


def expander(reading: Reading, env: Mapping[str, str]) -> Callable[[str], str]:
    """Expands `$(VAR)` as Kubernetes does; `$$(VAR)` is an escape."""

    def expand(text: str) -> str:
        def one(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            name = match[1]
            return env[name] if name in env else reading.taint.unknown(name)

        return _REFERENCE.sub(one, text) if "$" in text else text

    return expand


def environment(
    reading: Reading, container: Node, maps: ConfigMaps, injected: Mapping[str, str]
) -> dict[str, str]:
    """The container's variables with marks: literal, from a ConfigMap of the repository, or unknown."""
    env = dict(injected)
    for source in container.list_of("envFrom"):
        name = source.text_of("configMapRef", "name")
        env |= {key: value for (owner, key), value in maps.items() if owner == name}
    listed = container.get("env")
    if listed is None:
        return env
    pairs: list[tuple[str, Node | None, Node]]
    if listed.kind == "map":
        pairs = [(key, value, value) for key, _, value in listed.entries()]
    else:
        pairs = [(item.text_of("name") or "", item.get("value"), item) for item in listed.items]
    for name, value, item in pairs:
        if not name:
            continue
        reference = item.get("valueFrom")
        annotation = item.text_of("valueFrom", "fieldRef", "fieldPath") or ""
        if "leaderworkerset.sigs.k8s.io/size" in annotation and "LWS_GROUP_SIZE" in env:
            env[name] = env["LWS_GROUP_SIZE"]
            continue
        if value is not None and value.kind == "scalar":
            env[name] = expander(reading, env)(value.text)
        elif reference is not None:
            key = (
                reference.text_of("configMapKeyRef", "name") or "",
                reference.text_of("configMapKeyRef", "key") or "",
            )
            env[name] = maps[key] if key in maps else reading.taint.unknown(name)
    return env


def read_container(
    reading: Reading,
    container: Node,
    around: Surroundings,
    maps: ConfigMaps,
    injected: Mapping[str, str] | None = None,
    expand_more: Callable[[str], str] | None = None,
) -> bool:
    """Record the launch of one container; false when it starts no vLLM.

    Args:
        reading: the file.
        container: a map with `image`, `command`, `args`, `env`, `resources`.
        around: what the pod says.
        maps: ConfigMaps of the repository.
        injected: variables that a controller sets.
        expand_more: the format's own substitution, done first.
    """
    env = environment(reading, container, maps, injected or {})
    kubernetes = expander(reading, env)

    def expand(text: str) -> str:
        return kubernetes(expand_more(text) if expand_more else text)

    count, mig = count_of(container.get("resources"))
    image = _image(container)
    line = next(
        (container.key_line(key) for key in ("command", "args") if container.get(key)), container.line
    )
    image_word = Word(expand(image or ""), line)
    inner = around.but(
        env={**around.env, **env},
        image=image_word.text or around.image,
        num_gpus=around.num_gpus if around.num_gpus is not None else count,
        mig=mig or around.mig,
        name=around.name or container.text_of("name"),
        container_memory_bytes=memory_limit(container.get("resources")),
    )
    command, args = container.get("command"), container.get("args")
    return run_container(reading, command, args, inner, image_word, expand, dict(env))


def run_container(
    reading: Reading,
    command: Node | None,
    args: Node | None,
    around: Surroundings,
    image: Word,
    expand: Callable[[str], str],
    variables: dict[str, Value],
) -> bool:
    """Record the launch of `command` and `args`."""
    nodes = {
        (word.line, word.text): node
        for node in (command, args)
        if node
        for word, node in _pairs(node, expand)
    }

    def run_text(text: str, word: Word, inner: Surroundings) -> None:
        node = nodes.get((word.line, word.text))

        def locate(row: int, column: int, needle: str) -> tuple[int, int]:
            return node.place_of(row, needle) if node is not None else (word.line + row, column + 1)

        read_shell(text, reading, inner, locate, variables)

    commands = CommandReader(reading, run_text)
    entry = words_of(command, expand)
    arguments = words_of(args, expand)
    if not entry and not arguments:
        return commands.container(None, [], around, image) if args is not None else False
    before = len(reading.launches)
    if len(entry) == 1 and " " in entry[0].text:
        # One string where a list belongs: people write `command: "vllm serve x"`; it is read as a shell line.
        run_text(" ".join([entry[0].text, *(word.text for word in arguments)]), entry[0], around)
    elif not entry and len(arguments) == 1 and " " in arguments[0].text.strip() and args is not None:
        run_text_as_arguments(reading, arguments[0], around, image, commands, args)
    else:
        if not any(posixpath.basename(word.text) in SHELLS for word in [*entry, *arguments][:4]):
            entry, arguments = (
                [word.with_text(unrendered(reading, word.text)) for word in part]
                for part in (entry, arguments)
            )
        commands.container(entry or None, arguments, around, image)
    return len(reading.launches) > before


def unrendered(reading: Reading, text: str) -> str:
    """A word with `${NAME}` and `{{ NAME }}` left for a tool outside (envsubst, a template) to fill in."""
    if "{{" in text:
        text = substitute(reading.taint, text, lambda _: None)

    def one(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        return reading.taint.unknown(name) if default is None else reading.taint.defaulted(name, default)

    return _ENVSUBST.sub(one, text) if "${" in text else text


def run_text_as_arguments(
    reading: Reading, word: Word, around: Surroundings, image: Word, commands: CommandReader, node: Node
) -> None:
    """Arguments written as one string."""
    words = split_words(word.text, node)
    if words is None:
        reading.miss(word.line, "arguments cannot be split into words")
        return
    commands.container(None, words, around, image)


def split_words(text: str, node: Node | None, line: int = 1) -> list[Word] | None:
    """A finished command line split as a shell would; None when a quote is left open."""
    import shlex

    try:
        parts = shlex.split(text, comments=False, posix=True)
    except ValueError:
        return None
    if node is None:
        return [Word(part, line) for part in parts]
    return [Word(part, *node.place_of(0, part if len(part) < 80 else "")) for part in parts]


def _pairs(node: Node, expand: Callable[[str], str]) -> list[tuple[Word, Node]]:
    items = node.items if node.kind == "list" else [node]
    return [(Word(expand(item.text), *item.place_of(0)), item) for item in items if item.kind == "scalar"]


def _image(container: Node) -> str | None:
    node = container.get("image")
    if node is None:
        return None
    if node.kind == "scalar":
        return node.text
    name = node.text_of("repository") or node.text_of("name")
    tag = node.text_of("tag")
    return f"{name}:{tag}" if name and tag else name
