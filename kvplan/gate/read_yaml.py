"""YAML and JSON files: what each document is, and so which reader takes it."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from kvplan.gate.candidates import is_telling
from kvplan.gate.yaml_nodes import Node, YamlError, compose, documents

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading


def read_yaml(reading: Reading, name: str) -> None:
    """Every document of the file; one that is broken in part is read as far as it goes.

    Args:
        reading: of the file.
        name: of the file, without its folder.
    """
    from kvplan.gate.readers.helm_template import is_helm_template, read_helm_template
    from kvplan.gate.readers.kubernetes import config_maps

    if name.endswith(".json") and not _is_json(reading):
        return
    parts = list(documents(reading.text))
    broken = [part for part in parts if isinstance(part, YamlError)]
    if broken and is_helm_template(reading.text):
        read_helm_template(reading)
        return
    docs: list[Node] = []
    starts = [m.start() for m in re.finditer(r"(?m)^---(?=\s|$)", reading.text)] if broken else []
    bounds = [0, *starts, len(reading.text)]
    for part in parts:
        docs += [part] if isinstance(part, Node) else _repaired(reading, part, bounds)
    maps = config_maps(docs) if any(doc.text_of("kind") == "ConfigMap" for doc in docs) else {}
    told = reading.depth or reading.not_read
    if reading.path == "-" and not told and not any(_holds_a_map(doc) for doc in docs):
        reading.miss_text(1, "no manifest, values, compose file or script that is known")
    for doc in docs:
        _read_document(reading, doc, maps)


def _holds_a_map(doc: Node) -> bool:
    return doc.kind == "map" or any(item.kind == "map" for item in doc.items)


def _is_json(reading: Reading) -> bool:
    import json

    try:
        json.loads(reading.text)
    except json.JSONDecodeError as error:
        reading.miss_text(error.lineno, "not valid JSON")
        return False
    except (ValueError, RecursionError):
        reading.miss_text(1, "JSON that cannot be read")
        return False
    return True


def _repaired(reading: Reading, error: YamlError, bounds: list[int]) -> list[Node]:
    """Documents with unrendered placeholders or tabs: read with the placeholders unknown, else reported."""
    from kvplan.gate.readers.templates import substitute

    lines = 0
    for begin, end in itertools.pairwise(bounds):
        first = lines
        lines += reading.text.count("\n", begin, end)
        if not first < error.line <= lines + 1:
            continue
        part = reading.text[begin:end]
        if not is_telling(part.encode("utf-8", "replace")):
            return []
        without = re.sub(r"(?m)^\s*\{%.*%\}\s*$", "", part)
        without = substitute(reading.taint, without, lambda _: None).replace("\t", "  ")
        try:
            doc = compose(without, first)
        except YamlError:
            break
        if doc is not None:
            return [doc]
    reading.miss_text(error.line, f"cannot parse this YAML document: {error}")
    return []


def _read_document(reading: Reading, doc: Node, maps: dict[tuple[str, str], str]) -> None:
    """By what the document is; the readers of a kind are imported when it is that kind's turn."""
    if _read_cluster(reading, doc, maps) or _read_stack(reading, doc) or _read_job(reading, doc):
        return
    from kvplan.gate.readers import ray, vllm_config

    if ray.read_llm_configs(reading, doc, "ray-serve"):
        return
    if vllm_config.is_vllm_config(doc):
        vllm_config.read_vllm_config(reading, doc)
        return
    from kvplan.gate.readers import text_jobs, values

    if values.is_kubeai_values(doc):
        values.read_kubeai_values(reading, doc)
    before = len(reading.launches)
    values.read_loose_containers(reading, doc, "yaml")
    if len(reading.launches) == before:
        text_jobs.read_scripts(reading, doc, "yaml")


def _read_cluster(reading: Reading, doc: Node, maps: dict[tuple[str, str], str]) -> bool:
    """Kustomizations and manifests of Kubernetes."""
    from kvplan.gate.readers import kubernetes, kustomize

    if kustomize.is_kustomization(reading.path, doc):
        kustomize.read_kustomization(reading, doc)
        return True
    if not kubernetes.is_manifest(doc):
        return False
    before = len(reading.launches)
    kubernetes.read_manifest(reading, doc, maps)
    if len(reading.launches) == before:
        from kvplan.gate.readers import values

        values.read_loose_containers(reading, doc, f"k8s-{(doc.text_of('kind') or '').lower()}")
    return True


def _read_stack(reading: Reading, doc: Node) -> bool:
    """Compose files, and values of charts that are known by name."""
    from kvplan.gate.readers import compose as compose_files

    if compose_files.is_compose(doc):
        compose_files.read_compose(reading, doc)
        return True
    from kvplan.gate.readers import values

    if values.is_production_stack(doc):
        values.read_production_stack(reading, doc)
    elif values.is_modelservice(doc):
        values.read_modelservice(reading, doc)
    else:
        return False
    return True


def _read_job(reading: Reading, doc: Node) -> bool:
    """Files whose values are scripts: workflows, jobs, playbooks, sweeps."""
    from kvplan.gate.readers import ansible, sweeps, text_jobs

    kinds = (
        (text_jobs.is_workflow, text_jobs.read_workflow),
        (text_jobs.is_sky, text_jobs.read_sky),
        (text_jobs.is_llama_swap, text_jobs.read_llama_swap),
        (ansible.is_ansible, ansible.read_ansible),
        (sweeps.is_sweep, sweeps.read_sweep),
    )
    for is_one, read_one in kinds:
        if is_one(doc):
            read_one(reading, doc)
            return True
    return False
