"""docker compose files: interpolation from `.env` beside the file, never from env_file and never from us."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.accelerators import memory_bytes
from kvplan.gate.argv import CommandReader
from kvplan.gate.docker_run import count_visible
from kvplan.gate.readers.containers import split_words
from kvplan.gate.reading import Surroundings
from kvplan.gate.repo_files import inside
from kvplan.gate.shell import read_shell
from kvplan.gate.taint import Word, is_unknown, without_notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.gate.reading import Reading
    from kvplan.gate.shell_expand import Value
    from kvplan.gate.yaml_nodes import Node

_NAME: Final = re.compile(
    r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:(:?[-?+])((?:[^{}$]|\$(?!\{)|\$\{[^{}]*\})*))?\})"
)
MAX_EXTENDS: Final = 5


def is_compose(doc: Node) -> bool:
    """Whether the document is a compose file."""
    services = doc.get("services") if doc.kind == "map" else None
    if services is None or services.kind != "map" or doc.text_of("apiVersion"):
        return False
    return any(
        value.kind == "map"
        and any(value.get(key) is not None for key in ("image", "build", "command", "entrypoint", "extends"))
        for _, _, value in services.entries()
    )


def read_compose(reading: Reading, doc: Node) -> None:
    """Record the launches of every service."""
    services = doc.get("services")
    variables = _dotenv(reading, ".env")
    expand = interpolation(reading, variables)
    for name, _, service in services.entries() if services is not None else ():
        if service.kind == "map":
            _Service(reading, doc, name, service, expand).read()


def interpolation(reading: Reading, variables: dict[str, str]) -> Callable[[str], str]:
    """Compose's own substitution: `$V`, `${V}`, `${V:-d}`, `${V-d}`, `${V:?e}`, `${V:+x}`, `$$`."""

    def expand(text: str, depth: int = 0) -> str:
        def one(match: re.Match[str]) -> str:
            if match[1]:
                return "$"
            name = match[2] or match[3]
            value = variables.get(name)
            operation, operand = match[4] or "", match[5] or ""
            missing = value is None or (value == "" and operation.startswith(":"))
            if operation.endswith("-"):
                return reading.taint.defaulted(name, expand(operand, depth + 1)) if missing else value or ""
            if operation.endswith("+"):
                return (
                    expand(operand, depth + 1)
                    if not missing
                    else (reading.taint.unknown(name) if value is None else "")
                )
            return reading.taint.unknown(name) if value is None else value

        return _NAME.sub(one, text) if "$" in text and depth < 5 else text

    return expand


def _dotenv(reading: Reading, name: str) -> dict[str, str]:
    path = inside(reading.folder, name)
    text = reading.files.read(path) if path is not None else None
    return parse_dotenv(text) if text is not None else {}


def parse_dotenv(text: str) -> dict[str, str]:
    """The assignments of a `.env` file; values are taken as written, nothing in them is expanded."""
    found: dict[str, str] = {}
    for line in text.split("\n")[:5000]:
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][\w.]*)\s*=\s*(.*?)\s*", line[:10_000])
        if match is None:
            continue
        value = match[2]
        if value[:1] in {"'", '"'} and value.find(value[0], 1) > 0:
            value = value[1 : value.find(value[0], 1)]
        else:
            value = re.split(r"\s+#", f" {value}", maxsplit=1)[0].strip() if "#" in value else value
        if "$" not in value:
            found[match[1]] = value
    return found


class _Service:
    """One service of a compose file."""

    def __init__(
        self, reading: Reading, doc: Node, name: str, service: Node, expand: Callable[[str], str]
    ) -> None:
        self._reading = reading
        self._doc = doc
        self._name = name
        self._service = service
        self._expand = expand
        self._bases = [service]
        self._extend(doc, service)

    def _extend(self, doc: Node, service: Node) -> None:
        for _ in range(MAX_EXTENDS):
            extends = service.get("extends")
            if extends is None:
                return
            base_name = extends.text if extends.kind == "scalar" else extends.text_of("service") or ""
            file = extends.text_of("file") if extends.kind == "map" else None
            if file is not None:
                from kvplan.gate.yaml_nodes import Node as NodeType
                from kvplan.gate.yaml_nodes import documents

                path = inside(self._reading.folder, file)
                text = self._reading.files.read(path) if path is not None else None
                if text is None:
                    self._reading.miss(extends.line, "extends a file that is not in the repository")
                    return
                found = next((d for d in documents(text) if isinstance(d, NodeType)), None)
                if found is None:
                    return
                doc = found
            base = doc.get("services", base_name)
            if base is None or base.kind != "map" or base in self._bases:
                return
            self._bases.append(base)
            service = base

    def _get(self, *path: str) -> Node | None:
        for service in self._bases:
            node = service.get(*path)
            if node is not None:
                return node
        return None

    def read(self) -> None:
        """Record the service's launch."""
        command, entrypoint = self._get("command"), self._get("entrypoint")
        image = self._get("image")
        image_text = self._expand(image.text) if image is not None and image.kind == "scalar" else ""
        key = "command" if command is not None else "entrypoint"
        line = self._service.key_line(key if self._service.get(key) is not None else "image")
        env = self._environment()
        around = Surroundings(
            "docker-compose",
            env=env,
            image=image_text or None,
            num_gpus=self._gpus(env),
            devices=self._device_ids(),
            replicas=self._replicas(),
            name=self._name,
            profile=self._profile(),
            container_memory_bytes=self._memory(),
        )
        word = Word(image_text or self._name, line)
        variables: dict[str, Value] = {**self._env_files(), **env}

        def run_text(text: str, at: Word, inner: Surroundings) -> None:
            node = command if command is not None else entrypoint
            node = self._scalar_at(node, at) or node

            def locate(row: int, column: int, needle: str) -> tuple[int, int]:
                return node.place_of(row, needle) if node is not None else (at.line + row, column + 1)

            read_shell(text, self._reading, inner, locate, variables)

        commands = CommandReader(self._reading, run_text)
        entry = self._words(entrypoint)
        arguments = self._words(command)
        if entry is None or arguments is None:
            self._reading.miss(line, "command cannot be split into words")
            return
        if not entry and not arguments and command is None and not _is_server(image_text):
            return
        commands.container(entry or None, arguments, around, word)

    @staticmethod
    def _scalar_at(node: Node | None, word: Word) -> Node | None:
        if node is None or node.kind != "list":
            return None
        return next((item for item in node.items if item.place_of(0) == (word.line, word.column)), None)

    def _words(self, node: Node | None) -> list[Word] | None:
        if node is None or node.is_null:
            return []
        if node.kind == "list":
            return [
                Word(self._expand(item.text), *item.place_of(0))
                for item in node.items
                if item.kind == "scalar"
            ]
        if node.kind != "scalar":
            return []
        return split_words(self._expand(node.text), node)

    def _environment(self) -> dict[str, str]:
        env: dict[str, str] = {}
        for service in reversed(self._bases):
            listed = service.get("environment")
            if listed is None:
                continue
            if listed.kind == "map":
                for key, _, value in listed.entries():
                    if value.kind == "scalar":
                        env[key] = (
                            self._reading.taint.unknown(key) if value.is_null else self._expand(value.text)
                        )
            else:
                for item in listed.items:
                    key, equals, text = item.text.partition("=")
                    env[key] = self._expand(text) if equals else self._reading.taint.unknown(key)
        return env

    def _env_files(self) -> dict[str, str]:
        node = self._get("env_file")
        found: dict[str, str] = {}
        if node is None:
            return found
        for item in node.items if node.kind == "list" else [node]:
            name = item.text if item.kind == "scalar" else item.text_of("path") or ""
            if inside(self._reading.folder, name) is None:
                self._reading.miss(item.line, "env_file outside the repository is not read")
            else:
                found |= _dotenv(self._reading, name)
        return found

    def _gpus(self, env: dict[str, str]) -> int | None:
        gpus = self._get("gpus")
        for listed in (self._devices(), gpus):
            for device in listed.items if listed is not None and listed.kind == "list" else []:
                ids = device.get("device_ids")
                if ids is not None and ids.kind == "list":
                    named = self._device_ids()
                    return None if named is None else len(named)
                count = self._expand(device.text_of("count") or "")
                plain = without_notes(count)
                if plain.isascii() and plain.isdigit() and len(plain) < 5:
                    return int(plain)
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES"):
            counted = count_visible(env.get(name))
            if counted is not None:
                return counted
        return None

    def _devices(self) -> Node | None:
        return self._get("deploy", "resources", "reservations", "devices") or self._get(
            "deploy", "resources", "limits", "devices"
        )

    def _device_ids(self) -> tuple[str, ...] | None:
        """The GPUs of the machine that the service asks for by number or UUID."""
        for listed in (self._devices(), self._get("gpus")):
            for device in listed.items if listed is not None and listed.kind == "list" else []:
                ids = device.get("device_ids")
                if ids is None or ids.kind != "list":
                    continue
                texts = [self._expand(item.text) for item in ids.items]
                if any(is_unknown(text) for text in texts):
                    return None
                return tuple(one.strip() for text in texts for one in without_notes(text).split(","))
        return None

    def _replicas(self) -> int | None:
        node = self._get("deploy", "replicas") or self._get("scale")
        text = without_notes(self._expand(node.text)) if node is not None else ""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None

    def _profile(self) -> str | None:
        profiles = self._get("profiles")
        return profiles.items[0].text if profiles is not None and profiles.items else None

    def _memory(self) -> int | None:
        for path in (("deploy", "resources", "limits", "memory"), ("mem_limit",)):
            node = self._get(*path)
            if node is not None and node.kind == "scalar":
                text = without_notes(self._expand(node.text))
                # compose reads g and gb as binary
                return memory_bytes(re.sub(r"(?i)([kmg])b?$", lambda m: f"{m[1].upper()}i", text))
        return None


def _is_server(image: str) -> bool:
    from kvplan.gate.reading import is_vllm_server_image

    return is_vllm_server_image(without_notes(image).partition(":")[0])
