"""Kustomize overlays: resources, strategic merge and JSON patches, as far as launches need them."""

from __future__ import annotations

import dataclasses
import posixpath
from typing import TYPE_CHECKING, Final

from kvplan.gate.repo_files import inside
from kvplan.gate.yaml_nodes import Node, YamlError, compose, documents

if TYPE_CHECKING:
    from kvplan.gate.reading import Reading

NAMES: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
MAX_FILES: Final = 200
MAX_COPY: Final = 20_000
_KEYED: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}


def is_kustomization(path: str, doc: Node) -> bool:
    """Whether it is a kustomization."""
    return doc.kind == "map" and (
        posixpath.basename(path) in NAMES
        or (doc.text_of("apiVersion") or "").startswith("kustomize.config.k8s.io")
    )


def read_kustomization(reading: Reading, doc: Node) -> None:
    """Record the launches that the overlay changes; what it only includes is launched by its own file."""
    from kvplan.gate.readers.kubernetes import config_maps, is_manifest, read_manifest

    builder = _Builder(reading)
    before = len(reading.launches)
    built = builder.build(reading.folder, doc, 0)
    touched = [(node, line) for node, line in built if line]
    maps = config_maps([node for node, _ in built]) | builder.generated
    for node, line in touched:
        start = len(reading.launches)
        if is_manifest(node):
            read_manifest(reading, node, maps, rendered=True)
        for i in range(start, len(reading.launches)):
            reading.launches[i] = dataclasses.replace(
                reading.launches[i],
                line=line,
                column=1,
                format="kustomize",
                rendered=True,
                places={},
                model_place=None,
            )
    del reading.launches[before + 100 :]


class _Builder:
    """Loads resources and applies one kustomization's patches."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._files = 0
        self.generated: dict[tuple[str, str], str] = {}

    def build(self, folder: str, doc: Node, depth: int) -> list[tuple[Node, int]]:
        """The manifests with the line of the entry that changed them, 0 when nothing did."""
        resources = self._resources(folder, doc, depth)
        for item in doc.list_of("configMapGenerator"):
            self._generate(item)
        out: list[tuple[Node, int]] = []
        for node in resources:
            line = 0
            for key in ("patches", "patchesStrategicMerge", "patchesJson6902"):
                for patch in doc.list_of(key):
                    applied = self._apply(folder, node, patch)
                    line = line or applied
            images = self._images(node, doc)
            line = line or images
            out.append((node, line))
        return out

    def _resources(self, folder: str, doc: Node, depth: int) -> list[Node]:
        found: list[Node] = []
        for key in ("resources", "bases", "components"):
            for item in doc.list_of(key):
                if item.kind == "scalar":
                    found += self._resource(folder, item, depth)
        return found

    def _resource(self, folder: str, item: Node, depth: int) -> list[Node]:
        self._files += 1
        if depth > 8 or self._files > MAX_FILES:
            return []
        path = inside(folder, item.text)
        if path is None or "://" in item.text:
            self._reading.miss(item.line, "kustomize resource outside the repository is not read")
            return []
        for name in NAMES:
            text = self._reading.files.read(posixpath.join(path, name))
            if text is not None:
                inner = next((d for d in documents(text) if isinstance(d, Node)), None)
                return [node for node, _ in self.build(path, inner, depth + 1)] if inner is not None else []
        text = self._reading.files.read(path)
        if text is None:
            return []
        return [_copy(node, [MAX_COPY]) for node in documents(text) if isinstance(node, Node)]

    def _generate(self, item: Node) -> None:
        name = item.text_of("name") or ""
        for literal in item.list_of("literals"):
            key, _, value = literal.text.partition("=")
            self.generated[name, key] = value.strip("\"'")

    def _apply(self, folder: str, node: Node, patch: Node) -> int:
        """Apply one entry; gives its line when it concerns the manifest."""
        target = patch.get("target") if patch.kind == "map" else None
        text: str | None
        line = patch.line
        if patch.kind == "scalar":
            path = inside(folder, patch.text)
            text = patch.text if "\n" in patch.text else (self._reading.files.read(path) if path else None)
        elif patch.text_of("patch") is not None:
            text, line = patch.text_of("patch"), patch.key_line("patch")
        else:
            path = inside(folder, patch.text_of("path") or "")
            text = self._reading.files.read(path) if path else None
        if text is None or (target is not None and not _matches(node, target)):
            return 0
        try:
            body = compose(text)
        except YamlError:
            self._reading.miss(line, "patch cannot be parsed")
            return 0
        if body is None:
            return 0
        if body.kind == "list":
            for operation in body.items:
                _json_patch(node, operation)
            return line
        if target is None and not _same_object(node, body):
            return 0
        _merge(node, body, 0)
        return line

    @staticmethod
    def _images(node: Node, doc: Node) -> int:
        line = 0
        for image in doc.list_of("images"):
            name, new_name, tag = image.text_of("name"), image.text_of("newName"), image.text_of("newTag")
            for inner in node.walk():
                found = inner.get("image") if inner.kind == "map" else None
                if found is None or found.kind != "scalar" or name is None:
                    continue
                base, _, old = found.text.partition(":")
                if base == name:
                    found.text = f"{new_name or base}:{tag or old}"
                    line = image.line
        return line


def _matches(node: Node, target: Node) -> bool:
    kind, name = target.text_of("kind"), target.text_of("name")
    return (kind is None or node.text_of("kind") == kind) and (
        name is None or node.text_of("metadata", "name") == name or name in {".*", "*"}
    )


def _same_object(node: Node, body: Node) -> bool:
    return node.text_of("kind") == body.text_of("kind") and node.text_of("metadata", "name") == body.text_of(
        "metadata", "name"
    )


def _copy(node: Node, budget: list[int]) -> Node:
    """A copy that patches may change; aliases are copied within a budget and shared beyond it."""
    budget[0] -= 1
    if budget[0] < 0:
        return node
    out = dataclasses.replace(node, items=[], pairs=[])
    out.items = [_copy(item, budget) for item in node.items]
    out.pairs = [(key, _copy(value, budget)) for key, value in node.pairs]
    return out


def _merge(into: Node, patch: Node, depth: int) -> None:
    """Strategic merge: maps merge, named lists merge by name, other lists are replaced, null deletes."""
    if depth > 40:
        return
    for key, key_node, value in list(patch.entries()):
        index = next((i for i, (k, _) in enumerate(into.pairs) if k.text == key), None)
        if value.is_null:
            if index is not None:
                del into.pairs[index]
        elif index is None:
            into.pairs.append((key_node, value))
        elif into.pairs[index][1].kind == "map" and value.kind == "map":
            _merge(into.pairs[index][1], value, depth + 1)
        elif key in _KEYED and value.kind == "list" and into.pairs[index][1].kind == "list":
            _merge_named(into.pairs[index][1], value, _KEYED[key], depth + 1)
        else:
            into.pairs[index] = (into.pairs[index][0], value)


def _merge_named(into: Node, patch: Node, name: str, depth: int) -> None:
    for item in patch.items:
        same = next((old for old in into.items if old.text_of(name) == item.text_of(name)), None)
        if item.text_of("$patch") == "delete":
            into.items = [old for old in into.items if old is not same]
        elif same is not None:
            _merge(same, item, depth)
        else:
            into.items.append(item)


def _json_patch(node: Node, operation: Node) -> None:
    """One operation of RFC 6902 (add, replace, remove); others are not needed for arguments."""
    op, path, value = operation.text_of("op"), operation.text_of("path"), operation.get("value")
    if op not in {"add", "replace", "remove"} or not path:
        return
    parts = [part.replace("~1", "/").replace("~0", "~") for part in path.strip("/").split("/")]
    current: Node | None = node
    for part in parts[:-1]:
        if current is None:
            return
        if current.kind == "list":
            current = (
                current.items[int(part)]
                if part.isascii() and part.isdigit() and int(part[:6]) < len(current.items)
                else None
            )
        else:
            current = current.get(part)
    if current is None or (value is None and op != "remove"):
        return
    _change(current, parts[-1], op, value)


def _change(parent: Node, key: str, op: str, value: Node | None) -> None:
    if parent.kind == "list":
        if key == "-" and value is not None:
            parent.items.append(value)
            return
        index = int(key) if key.isascii() and key.isdigit() and len(key) < 6 else len(parent.items)
        if op == "add" and value is not None:
            parent.items.insert(index, value)
        elif index < len(parent.items):
            if value is None:
                del parent.items[index]
            else:
                parent.items[index] = value
        return
    kept = [(k, v) for k, v in parent.pairs if k.text != key]
    if value is not None:
        name = next(
            (k for k, _ in parent.pairs if k.text == key), Node("scalar", value.line, value.column, text=key)
        )
        kept.append((name, value))
    parent.pairs = kept
