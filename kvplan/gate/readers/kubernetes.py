"""Kubernetes manifests: every pod template of a document, whatever kind holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.gate.accelerators import count_of, from_pod, labels_of
from kvplan.gate.readers.containers import ConfigMaps, read_container
from kvplan.gate.reading import Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.gate.reading import Reading
    from kvplan.gate.yaml_nodes import Node

_KSERVE: Final = frozenset(
    {
        "InferenceService",
        "LLMInferenceService",
        "LLMInferenceServiceConfig",
        "ServingRuntime",
        "ClusterServingRuntime",
    }
)
_WORKER_KEYS: Final = frozenset({"workerTemplate", "workerSpec", "worker"})


def is_manifest(doc: Node) -> bool:
    """Whether the document is a Kubernetes object."""
    return doc.kind == "map" and doc.text_of("kind") is not None and doc.text_of("apiVersion") is not None


def config_maps(docs: Iterable[Node]) -> ConfigMaps:
    """The literal data of the ConfigMaps among the documents."""
    found: ConfigMaps = {}
    for doc in docs:
        if doc.kind != "map" or doc.text_of("kind") != "ConfigMap":
            continue
        name = doc.text_of("metadata", "name") or ""
        data = doc.get("data")
        for key, _, value in data.entries() if data is not None else ():
            if value.kind == "scalar" and len(value.text) < 2000:
                found[name, key] = value.text
    return found


def format_of(kind: str) -> str:
    """The format's name for a kind."""
    if kind in _KSERVE:
        return "kserve"
    return "rayservice" if kind == "RayService" else f"k8s-{kind.lower()}"


def read_manifest(reading: Reading, doc: Node, maps: ConfigMaps, *, rendered: bool = False) -> None:
    """Record the launches of one manifest."""
    kind = doc.text_of("kind") or ""
    if kind in {"List", "Template"}:
        for item in doc.list_of("items") + doc.list_of("objects"):
            if is_manifest(item):
                read_manifest(reading, item, maps, rendered=rendered)
        return
    around = Surroundings(
        format_of(kind),
        name=f"{kind}/{doc.text_of('metadata', 'name') or ''}",
        rendered=rendered,
        replicas=_whole(doc.text_of("spec", "replicas")),
    )
    from kvplan.gate.readers.platforms import read_platform

    if read_platform(reading, doc, kind, around, maps):
        return
    if kind == "ConfigMap":
        read_config_map(reading, doc)
        return
    read_pods(reading, doc, around, maps)


def read_pods(reading: Reading, doc: Node, around: Surroundings, maps: ConfigMaps) -> None:
    """Record the launches of every pod spec below a node."""
    injected: dict[str, str] = {}
    group = doc.get("spec", "leaderWorkerTemplate")
    workers: set[int] = set()
    if group is not None:
        size = group.text_of("size") or "1"
        injected["LWS_GROUP_SIZE"] = size
        if group.get("leaderTemplate") is not None:
            worker = group.get("workerTemplate")
            workers = {id(node) for node in worker.walk()} if worker is not None else set()
    for pod in doc.walk():
        if pod.kind != "map" or not pod.list_of("containers"):
            continue
        for container in pod.list_of("containers"):
            if container.kind != "map":
                continue
            count, _ = count_of(container.get("resources"))
            if count is None and len(pod.list_of("containers")) == 1:
                count, _ = count_of(pod.get("resources"))
            if group is not None and count is not None and id(pod) not in workers:
                count = _group_gpus(group, count)
            read_container(
                reading,
                container,
                around.but(gpu=from_pod(pod), num_gpus=count, hints=labels_of(pod)),
                maps,
                injected,
            )


def _group_gpus(group: Node, leader: int) -> int:
    """Accelerators of one LeaderWorkerSet replica: the leader's and its workers'."""
    size = _whole(group.text_of("size")) or 1
    worker_pod = group.get("workerTemplate", "spec")
    counts = [count_of(c.get("resources"))[0] for c in worker_pod.list_of("containers")] if worker_pod else []
    worker = next((count for count in counts if count is not None), leader)
    return leader + (size - 1) * worker


def read_config_map(reading: Reading, doc: Node) -> None:
    """Scripts and configs inside a ConfigMap are read like files of their own."""
    from kvplan.gate.read import read_embedded

    data = doc.get("data")
    for key, _, value in data.entries() if data is not None else ():
        if value.kind == "scalar" and "\n" in value.text and value.style == "|":
            read_embedded(key, value.text, value.line + 1, reading, None)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 7 else None
