"""`docker run` and its twins: where the image is, and what the options before it say."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Final

from kvplan.gate.taint import is_all_unknown, is_unknown, without_notes
from kvplan.gate.word_tables import DOCKER_WITH_VALUE
from kvplan.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.gate.taint import Word

TOOLS: Final = frozenset({"docker", "podman", "nerdctl", "sudo-docker"})

_SHORT_WITH_VALUE: Final = frozenset("acehlmpuvw")


class DockerRun(Record):
    """One container start."""

    image: Word
    arguments: list[Word]
    entrypoint: Word | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    gpus: str | None = None
    name: str | None = None
    memory: str | None = None


def read_docker_run(words: Sequence[Word]) -> DockerRun | None:
    """The words after `docker run`; None when no image follows the options."""
    run = DockerRun(words[0], []) if words else None
    i = 0
    while run is not None and i < len(words):
        text = without_notes(words[i].text)
        if is_all_unknown(words[i].text) and i + 1 < len(words) and _is_docker_option(words[i + 1]):
            # $DEVICE_ARGS among the options: the image comes later.
            i += 1
            continue
        if "=" in text and not text.startswith("-"):
            # No image has this in its name: the value of an option that docker does not know.
            i += 1
            continue
        if not text.startswith("-") or text == "-":
            run.image = words[i]
            run.arguments = list(words[i + 1 :])
            return run
        name, equals, value = text.partition("=")
        if equals and name.startswith("--"):
            _take(run, name, words[i].with_text(value))
            i += 1
        elif name in DOCKER_WITH_VALUE:
            if i + 1 >= len(words):
                return None
            _take(run, name, words[i + 1])
            i += 2
        elif _bundled(text):
            _take(run, f"-{text[1]}", words[i].with_text(text[2:].removeprefix("=")))
            i += 1
        elif _bundle_wants_value(text):
            i += 2
        else:
            i += 1
    return None


def count_devices(gpus: str | None) -> int | None:
    """GPUs of a `--gpus` value: a number or a device list; None for `all` and what cannot be known."""
    if gpus is None or is_unknown(gpus):
        return None
    text = gpus.strip().strip("'\"")
    if text.isascii() and text.isdigit() and len(text) < 5:
        return int(text)
    match = re.search(r"device=\"?([^\"']{1,400})", text)
    if match:
        return len([item for item in match[1].split(",") if item.strip() and "=" not in item])
    match = re.search(r"count=(\d{1,4})\b", text)
    return int(match[1]) if match else None


def count_visible(value: str | None) -> int | None:
    """GPUs of a CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES list: "2" is one GPU."""
    devices = visible_devices(value)
    return None if devices is None else len(devices)


def visible_devices(value: str | None) -> tuple[str, ...] | None:
    """The GPUs that such a list names; None for `all`, none and what cannot be known."""
    if value is None or is_unknown(value):
        return None
    items = tuple(item.strip() for item in without_notes(value).strip().strip("'\"").split(","))
    if items[0] in {"", "all", "void", "none", "-1"} or not all(items):
        return None
    return items


def _take(run: DockerRun, name: str, value: Word) -> None:
    match name:
        case "--entrypoint":
            run.entrypoint = value
        case "-e" | "--env":
            key, equals, text = value.text.partition("=")
            run.env[without_notes(key)] = text if equals else None
        case "--gpus":
            run.gpus = value.text
        case "--name":
            run.name = value.text
        case "-m" | "--memory":
            run.memory = value.text
        case "--device" if "nvidia.com/gpu=" in value.text:
            ids = value.text.partition("nvidia.com/gpu=")[2]
            run.gpus = "all" if ids == "all" else f"device={ids}"


def _is_docker_option(word: Word) -> bool:
    name = without_notes(word.text).partition("=")[0]
    return name in DOCKER_WITH_VALUE or name in {
        "--rm",
        "-it",
        "-ti",
        "-d",
        "-i",
        "-t",
        "--privileged",
        "--detach",
    }


def _bundled(text: str) -> bool:
    """`-p8000:8000`, `-eX=1`: a short option with its value tied on."""
    return len(text) > 2 and text[1] in _SHORT_WITH_VALUE and not text.startswith("--")


def _bundle_wants_value(text: str) -> bool:
    """`-itp 80:80`: bundled switches of which the last takes the next word."""
    return (
        not text.startswith("--") and len(text) > 2 and text[-1] in _SHORT_WITH_VALUE and text[1:].isalpha()
    )
