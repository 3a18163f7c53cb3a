"""Helm values of vLLM charts: production-stack, llm-d modelservice, KubeAI, and loose containers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.accelerators import from_label, from_pod, from_terms, one_or_many, product
from kvplan.gate.docker_run import count_visible
from kvplan.gate.flags import FlagParser, ParsedFlags
from kvplan.gate.readers.containers import read_container, words_of
from kvplan.gate.readers.settings import take_settings
from kvplan.gate.readers.templates import substitute
from kvplan.gate.reading import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.gate.reading import Reading
    from kvplan.gate.yaml_nodes import Node


def values_lookup(reading: Reading, doc: Node) -> Callable[[str], str]:
    """Expands `{{ .Values.a.b }}` from the values file itself."""

    def lookup(path: str) -> str | None:
        if not path.startswith(".Values."):
            return None
        node = doc.get(*path.removeprefix(".Values.").split("."))
        return node.text if node is not None and node.kind == "scalar" and "{{" not in node.text else None

    return lambda text: substitute(reading.taint, text, lookup)


def is_production_stack(doc: Node) -> bool:
    """Whether it is a values file of vLLM's production-stack chart."""
    return bool(doc.list_of("servingEngineSpec", "modelSpec"))


def read_production_stack(reading: Reading, doc: Node) -> None:
    """Record one launch a `modelSpec` item; the router's own flags are another program's."""
    expand = values_lookup(reading, doc)
    for item in doc.list_of("servingEngineSpec", "modelSpec"):
        if item.kind == "map" and (item.get("modelURL") or item.get("vllmConfig")):
            read_model_spec(reading, item, "helm-values (production-stack)", expand)


def read_model_spec(reading: Reading, item: Node, format_name: str, expand: Callable[[str], str]) -> None:
    """Record the launch of one model of the production stack, from values or from a VLLMRuntime."""
    config = item.get("vllmConfig")
    image = _join(item.text_of("repository"), item.text_of("tag"))
    gpus = item.text_of("requestGPU") or item.text_of("deploymentConfig", "resources", "gpu")
    count = int(gpus) if gpus and gpus.isascii() and gpus.isdigit() and len(gpus) < 5 else None
    if count is None:
        count = count_visible(item.text_of("lmcacheConfig", "cudaVisibleDevices"))
    head = item.get("raySpec", "headNode")
    if head is not None and count is not None:
        # One engine over a Ray cluster: the workers and the head node.
        count = count * (_small(item.text_of("replicaCount")) or 1) + (
            _small(head.text_of("requestGPU")) or 0
        )
    cards = from_terms(item.list_of("nodeSelectorTerms"))
    selector = from_pod(item)
    around = Surroundings(
        format_name,
        image=image,
        gpu=one_or_many(cards) or selector,
        num_gpus=count,
        name=item.text_of("name"),
        model=expand(item.text_of("modelURL") or item.text_of("model", "modelURL") or "") or None,
        replicas=_small(item.text_of("replicaCount")),
    )
    result = ParsedFlags()
    model_settings = item.get("model")
    if model_settings is not None and model_settings.kind == "map":
        take_settings(reading, (e for e in model_settings.entries() if e[0] != "model"), result, expand)
    take_settings(reading, _chart_switches(item), result, expand)
    if config is not None:
        entries = [entry for entry in config.entries() if entry[0] not in {"extraArgs", "v1", "port", "env"}]
        take_settings(reading, entries, result, expand)
        words = words_of(config.get("extraArgs"), expand)
        parser = FlagParser(reading.taint, reading.parsed(reading.version_of(image)), reading.load_config)
        _merge(result, parser.parse(words, positional_model=False))
    reading.record(result, (item.line, item.column), around)


_CHART_SWITCHES: Final = {
    "enableLoRA": "enableLora",
    "enableTool": "enableAutoToolChoice",
    "toolCallParser": "toolCallParser",
}
"""Keys beside `vllmConfig` that production-stack's chart turns into flags, and the flag's name."""


def _chart_switches(item: Node) -> list[tuple[str, Node, Node]]:
    return [
        (_CHART_SWITCHES[key], key_node, value)
        for key, key_node, value in item.entries()
        if key in _CHART_SWITCHES and value.text != "false"
    ]


def is_modelservice(doc: Node) -> bool:
    """Whether it is a values file of llm-d's modelservice chart."""
    return doc.get("modelArtifacts") is not None and (
        doc.get("decode") is not None or doc.get("prefill") is not None
    )


def read_modelservice(reading: Reading, doc: Node) -> None:
    """Record the decode and prefill engines."""
    expand = values_lookup(reading, doc)
    for role in ("decode", "prefill"):
        section = doc.get(role)
        if section is None or section.text_of("create") == "false":
            continue
        for container in section.list_of("containers"):
            _read_modelservice_container(reading, doc, section, container, expand)


def _read_modelservice_container(
    reading: Reading, doc: Node, section: Node, container: Node, expand: Callable[[str], str]
) -> None:
    tensor = _small(section.text_of("parallelism", "tensor")) or 1
    data = _small(section.text_of("parallelism", "data")) or 1
    local = _small(section.text_of("parallelism", "dataLocal")) or data
    pipeline = _small(section.text_of("parallelism", "pipeline")) or 1
    types = section.get("acceleratorTypes") or doc.get("accelerator", "acceleratorTypes")
    label = types.text_of("labelKey") or "" if types is not None else ""
    cards = (
        [from_label(label, value.text) for value in types.list_of("labelValues")] if types is not None else []
    )
    command = container.text_of("modelCommand") or "imageDefault"
    extra: dict[str, Any] = {}
    if command != "custom":
        extra = {
            name: size
            for name, size in (
                ("tensor_parallel_size", tensor),
                ("data_parallel_size", data),
                ("pipeline_parallel_size", pipeline),
            )
            if size > 1
        }
    uri = expand(doc.text_of("modelArtifacts", "uri") or "")
    model = (
        uri.removeprefix("hf://")
        if uri.startswith("hf://")
        else expand(doc.text_of("modelArtifacts", "name") or "")
    )
    around = Surroundings(
        "helm-values (llm-d modelservice)",
        image=container.text_of("image"),
        gpu=one_or_many([card for card in cards if card]),
        num_gpus=tensor * local * pipeline,
        name=container.text_of("name"),
        model=(model or None) if command != "custom" else None,
        extra_flags=extra,
        replicas=_small(section.text_of("replicas")),
    )
    if command == "custom":
        read_container(reading, container, around, {}, expand_more=expand)
        return
    parser = FlagParser(reading.taint, reading.parsed(reading.version_of(around.image)), reading.load_config)
    from kvplan.gate.readers.containers import environment, expander

    env = environment(reading, container, {}, {})
    in_container = expander(reading, env)
    words = words_of(container.get("args"), lambda text: in_container(expand(text)))
    result = parser.parse(words, positional_model=command == "imageDefault")
    line = container.key_line("args" if container.get("args") else "modelCommand")
    reading.record(result, (line, container.column), around)


def is_kubeai_values(doc: Node) -> bool:
    """Whether it is a KubeAI catalogue of models."""
    catalog = doc.get("catalog") or doc.get("models", "catalog")
    return catalog is not None and catalog.kind == "map"


def read_kubeai_values(reading: Reading, doc: Node) -> None:
    """Record the enabled vLLM models of the catalogue."""
    catalog = doc.get("catalog") or doc.get("models", "catalog")
    for name, key, item in catalog.entries() if catalog is not None else ():
        if item.kind == "map" and item.text_of("engine") == "VLLM" and item.text_of("enabled") != "false":
            read_kubeai_model(reading, item, "kubeai", name, (key.line, key.column))


def read_kubeai_model(
    reading: Reading, item: Node, format_name: str, name: str | None, place: tuple[int, int]
) -> None:
    """Record a KubeAI model: `url`, `args`, `resourceProfile` (`nvidia-gpu-l4:1`)."""
    profile, _, count = (item.text_of("resourceProfile") or "").partition(":")
    named = profile.partition("gpu-")[2] if "gpu-" in profile else profile
    card = product(named.upper()) if re.search(r"\d", named) and not named.startswith("cpu") else None
    around = Surroundings(
        format_name,
        gpu=card,
        num_gpus=(_small(count) or 1) if card or "gpu" in profile else None,
        name=name,
        model=item.text_of("url"),
        replicas=_small(item.text_of("minReplicas")),
    )
    expand = values_lookup(reading, item)
    words = words_of(item.get("args"), expand)
    parser = FlagParser(reading.taint, None, reading.load_config)
    line = item.key_line("args") if item.get("args") else place[0]
    reading.record(parser.parse(words, positional_model=False), (line, place[1]), around)


def read_loose_containers(
    reading: Reading, doc: Node, format_name: str, expand: Callable[[str], str] | None = None
) -> None:
    """Record launches of maps that look like a container, wherever a document puts them."""
    from kvplan.gate.reading import is_vllm_server_image

    for node in doc.walk():
        if node.kind != "map":
            continue
        has_words = any(node.get(key) is not None for key in ("command", "args"))
        image = node.get("image")
        if not has_words or (image is None and not _mentions_vllm(node)):
            continue
        if (
            image is not None
            and image.kind == "scalar"
            and not _mentions_vllm(node)
            and not is_vllm_server_image(image.text)
        ):
            continue
        around = Surroundings(format_name, gpu=from_pod(node))
        read_container(reading, node, around, {}, expand_more=expand or values_lookup(reading, doc))


def _mentions_vllm(node: Node) -> bool:
    for key in ("command", "args", "image"):
        part = node.get(key)
        if part is None:
            continue
        for item in [part, *part.items, *(value for _, value in part.pairs)]:
            if item.kind == "scalar" and "vllm" in item.text.lower():
                return True
    return False


def _merge(into: ParsedFlags, more: ParsedFlags) -> None:
    into.flags |= more.flags
    for name in (
        "unresolved",
        "defaulted",
        "assumed",
        "invalid",
        "unknown_flags",
        "unresolved_flags",
        "places",
        "ignored",
    ):
        getattr(into, name).update(getattr(more, name))
    for name in more.unresolved_flags:
        into.flags.pop(name, None)
    if more.model is not None:
        into.model, into.model_place = more.model, more.model_place


def _join(repository: str | None, tag: str | None) -> str | None:
    return f"{repository}:{tag}" if repository and tag else repository


def _small(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 5 else None
