"""Ray Serve LLM: `llm_configs` items with `model_loading_config` and `engine_kwargs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.gate.flags import ParsedFlags
from kvplan.gate.readers.settings import take_settings
from kvplan.gate.reading import Surroundings
from kvplan.gate.yaml_nodes import YamlError, compose

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading
    from kvplan.gate.yaml_nodes import Node


def is_llm_config(node: Node) -> bool:
    """Whether a map is one model of Ray Serve LLM."""
    return node.kind == "map" and (
        node.get("model_loading_config") is not None
        or (node.get("engine_kwargs") is not None and node.get("model_id") is not None)
    )


def read_llm_configs(reading: Reading, doc: Node, format_name: str) -> bool:
    """Record every model below a node; false when there is none."""
    found = is_llm_config(doc)
    if found:
        _read_llm_config(reading, doc, format_name, doc.line)
    for node in doc.walk():
        below = [(key.text, key.line, value) for key, value in node.pairs]
        below += [("", item.line, item) for item in node.items]
        for name, line, value in below:
            if is_llm_config(value) and not name.startswith(("<<", "x-", ".")):
                found = True
                # An alias is a model of its own (`decode_config: *config`), at the place of its key.
                _read_llm_config(reading, value, format_name, max(line, value.line))
    return found


def read_embedded_yaml(reading: Reading, scalar: Node, format_name: str) -> bool:
    """Record the models of a YAML text inside a YAML scalar, with the outer file's lines."""
    try:
        inner = compose(scalar.text, scalar.place_of(0)[0] - 1)
    except YamlError as error:
        reading.miss(error.line, f"cannot parse the YAML in this text: {error}")
        return True
    return inner is not None and read_llm_configs(reading, inner, format_name)


def _read_llm_config(reading: Reading, node: Node, format_name: str, line: int) -> None:
    result = ParsedFlags()
    kwargs = node.get("engine_kwargs")
    if kwargs is not None:
        take_settings(reading, kwargs.entries(), result, keep_unknown=True)
    source = node.get("model_loading_config", "model_source") or node.get("model_source")
    model = source.text if source is not None and source.kind == "scalar" else None
    if source is not None and source.kind == "map":
        model = source.text_of("bucket_uri")
    model = model or node.text_of("model_loading_config", "model_id") or node.text_of("model_id")
    accelerator = node.text_of("accelerator_type")
    around = Surroundings(
        format_name,
        gpu=accelerator,
        name=node.text_of("model_loading_config", "model_id") or node.text_of("model_id"),
        model=model,
        gpus_from_parallelism=True,
    )
    reading.record(result, (line, node.column), around)
