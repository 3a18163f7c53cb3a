"""vLLM's own `--config` YAML, with vLLM's rules for what a key turns into.

Source: vLLM 0.32.0 utils/argparse_utils.py::FlexibleArgumentParser.load_config_file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.flag_table import flag_table
from kvplan.gate.flags import FlagParser
from kvplan.gate.reading import Surroundings
from kvplan.gate.taint import Word, is_unknown
from kvplan.gate.word_tables import TELLING_SETTINGS
from kvplan.gate.yaml_nodes import Node, YamlError, compose

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading

_FALSE_NEGATES_SINCE: Final = (0, 28, 0)


def is_vllm_config(doc: Node) -> bool:
    """Whether a document is a vLLM config: most of its keys are vLLM's flags, and one is telling."""
    if doc.kind != "map" or not doc.pairs:
        return False
    names = [key.replace("-", "_") for key, _, _ in doc.entries()]
    known = [
        name
        for name in names
        if name in flag_table().flags or f"--{name.replace('_', '-')}" in flag_table().options
    ]
    return len(known) >= 0.7 * len(names) and bool(TELLING_SETTINGS.intersection(known))


def config_words(text: str, reading: Reading, first_line: int) -> list[Word] | str:
    """The command-line words that vLLM makes of a config file, or why it cannot be read.

    Args:
        text: the file.
        reading: the file that names it.
        first_line: line of the text's first row in the outer file; 0 when it is another file, whose
            lines would mislead.
    """
    try:
        doc = compose(text, max(first_line - 1, 0))
    except YamlError:
        return "config file that is not YAML"
    if doc is None or doc.kind != "map":
        return "config file without settings"
    words: list[Word] = []
    for key, node, value in doc.entries():
        words += _words(key, node, value, reading, ignored=None)
    return [Word(word.text, word.line if first_line else 0, word.column) for word in words]


def read_vllm_config(reading: Reading, doc: Node) -> None:
    """Record the launch that a config file stands for."""
    version = reading.version_of(None)
    parser = FlagParser(reading.taint, reading.parsed(version), None)
    ignored: dict[str, None] = {}
    words: list[Word] = []
    for key, node, value in doc.entries():
        words += _words(key, node, value, reading, ignored)
    result = parser.parse(words, positional_model=False)
    result.ignored |= ignored
    line = doc.key_line("model") if doc.get("model") is not None else doc.line
    around = Surroundings("vllm-config-yaml")
    if doc.get("model") is None:
        result.unresolved["model"] = None
        result.unresolved_flags["model"] = ("model",)
    reading.record(result, (line, 1), around, version)


def _words(  # noqa: PLR0911  one branch a kind
    key: str, node: Node, value: Node, reading: Reading, ignored: dict[str, None] | None
) -> list[Word]:
    option = Word(f"--{key}", node.line, node.column)
    name = key.replace("-", "_")
    if value.kind == "list":
        items = [Word(str(item.plain([200])), item.line, item.column) for item in value.items[:1000]]
        return [option, *items] if items else []
    if value.kind == "map":
        try:
            plain = value.plain()
        except YamlError:
            return []
        return [option, Word(json.dumps(plain, default=str), value.line, value.column)]
    typed: Any = value.value
    if typed is True:
        return [option]
    if typed is False:
        return _false(key, name, node, reading, ignored)
    if typed is None:
        # vLLM passes the word None, which means "not set" to the flags that take it.
        if ignored is not None:
            ignored[name] = None
        return []
    text = value.text if is_unknown(value.text) or isinstance(typed, str) else str(typed)
    return [option, Word(text, value.line, value.column)]


def _false(key: str, name: str, node: Node, reading: Reading, ignored: dict[str, None] | None) -> list[Word]:
    """`false` was dropped up to 0.27; since 0.28 it becomes `--no-KEY`, if KEY is written with dashes."""
    version = reading.parsed(reading.version_of(None))
    negates = (version is None or version >= _FALSE_NEGATES_SINCE) and f"--no-{key}" in flag_table().options
    if negates:
        return [Word(f"--no-{key}", node.line, node.column)]
    if ignored is not None:
        ignored[name] = None
    return []
