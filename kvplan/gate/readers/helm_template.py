"""Helm templates before rendering: not YAML yet. Literal arguments are facts, `default` is a default."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.readers.templates import substitute
from kvplan.gate.yaml_nodes import YamlError, compose

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading

_CONTROL: Final = re.compile(
    r"^(\s*)\{\{-?\s*(if|else if|else|end|range|with|define|block|template|/\*|\$\w+\s*:?=)(.*?)-?\}\}\s*$"
)
_LONE: Final = re.compile(r"^(\s*)\{\{-?\s*(?:include|toYaml|tpl|template|nindent|indent)?.*?\}\}\s*$")
_PATH: Final = re.compile(r"\.[A-Za-z][\w.]*")


def is_helm_template(text: str) -> bool:
    """Whether a file is a Helm template: it has expressions, and values or control lines."""
    return "{{" in text and bool(
        re.search(
            r"\{\{-?\s*(if|range|with|include|\.Values|toYaml|define|\.Release|\.Chart|tpl)\b|\.Values\.",
            text,
        )
    )


def read_helm_template(reading: Reading) -> None:
    """Record the launches of the template's container blocks; what values decide is unresolved."""
    from kvplan.gate.readers.kubernetes import config_maps, is_manifest, read_manifest

    if "vllm" not in reading.text.lower():
        return
    lines = reading.text.split("\n")
    flat, names = _flatten(reading, lines)
    chunks = re.split(r"(?m)^---(?=\s|$)", "\n".join(flat))
    row = 0
    for chunk in chunks:
        try:
            doc = compose(chunk, row)
        except YamlError as error:
            reading.miss(error.line, f"Helm template is not readable without rendering: {error}")
        else:
            if doc is not None and is_manifest(doc):
                before = len(reading.launches)
                read_manifest(reading, doc, config_maps([doc]))
                _mark(reading, before, names)
        row += chunk.count("\n")


def _flatten(reading: Reading, lines: list[str]) -> tuple[list[str], list[str]]:
    """The lines with control lines emptied and expressions replaced; a range leaves one unknown item."""
    out: list[str] = []
    opened: list[str] = []
    gpu_names: list[str] = []
    for line in lines:
        control = _CONTROL.match(line)
        if control:
            keyword, rest = control[2], control[3]
            if keyword in {"if", "range", "with", "define", "block"}:
                path = _PATH.search(rest)
                name = path[0] if path and keyword in {"range", "if", "with"} else ""
                opened.append(name)
            elif keyword == "end" and opened:
                opened.pop()
            out.append("")
            continue
        if _LONE.match(line) and "{{" in line and not line.strip().startswith("-"):
            out.append("")
            continue
        conditional = [name for name in opened[1:] if name]
        item = re.match(r"^(\s*-\s+)(.*)$", line)
        if item and conditional and opened[-1:] and opened[-1] and _is_word(item[2]):
            # An argument inside `range` or `if`: whether it is there is not known.
            out.append(f"{item[1]}'{reading.taint.unknown(opened[-1])}'")
            continue
        out.append(_substituted(reading, line))
        if "nvidia.com/gpu" in line and "{{" in line:
            found = _PATH.search(line.partition("{{")[2])
            gpu_names += [found[0]] if found else []
    return out, gpu_names


def _is_word(text: str) -> bool:
    """Whether a list item is a plain argument, not a map like `name: x`."""
    return not re.match(r"[\w.-]+:(\s|$)", text.strip())


def _substituted(reading: Reading, line: str) -> str:
    def lookup(_: str) -> str | None:
        return None

    if "{{" not in line:
        return line
    return substitute(reading.taint, line, lookup)


def _mark(reading: Reading, before: int, gpu_names: list[str]) -> None:
    import dataclasses

    for i in range(before, len(reading.launches)):
        launch = reading.launches[i]
        extra = (
            [name for name in gpu_names if name not in launch.unresolved] if launch.num_gpus is None else []
        )
        reading.launches[i] = dataclasses.replace(
            launch, format="helm-template", unresolved=(*launch.unresolved, *extra)
        )
