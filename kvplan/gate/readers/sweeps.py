"""Benchmark sweeps as JSON: `server_parameters` over shared defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.gate.flags import ParsedFlags
from kvplan.gate.readers.settings import snake, take_settings
from kvplan.gate.reading import Surroundings

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading
    from kvplan.gate.yaml_nodes import Node


def is_sweep(doc: Node) -> bool:
    """Whether some map below holds `server_parameters`."""
    return any(node.kind == "map" and node.get("server_parameters") is not None for node in doc.walk())


def read_sweep(reading: Reading, doc: Node) -> None:
    """Record one launch a test, the defaults merged under its own parameters."""
    defaults = doc.get("defaults", "server_parameters")
    for node in doc.walk():
        own = node.get("server_parameters") if node.kind == "map" else None
        if own is None or own is defaults:
            continue
        result = ParsedFlags()
        for section in (defaults, own):
            if section is not None:
                _take(reading, section, result)
        name = node.text_of("test_name")
        reading.record(result, (node.line, node.column), Surroundings("benchmark-sweep-json", name=name))


def _take(reading: Reading, section: Node, into: ParsedFlags) -> None:
    # An empty text is a bare switch, and `no_x` its negation.
    for entry in section.entries():
        name = snake(entry[0])
        if entry[2].kind == "scalar" and entry[2].text == "" and entry[2].style is not None:
            negated = name.startswith("no_")
            into.flags[name[3:] if negated else name] = not negated
            into.places[name[3:] if negated else name] = (entry[1].line, entry[1].column)
        else:
            take_settings(reading, [entry], into, keep_unknown=True)
