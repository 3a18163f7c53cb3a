"""The registry of readers: which one takes a file, by content as much as by name."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.candidates import DOCKERFILE_NAME, SHELL_ENDINGS, YAML_ENDINGS, is_telling
from kvplan.gate.reading import Reading, Surroundings
from kvplan.gate.repo_files import MAX_FILE_BYTES
from kvplan.gate.terms import AS_WRITTEN
from kvplan.gate.unread import note_leftovers

if TYPE_CHECKING:
    from kvplan.gate.repo_files import RepoFiles
    from kvplan.gate.terms import HowToRead

MAX_EMBEDDED: Final = 4
_SHEBANG: Final = re.compile(r"#!\s*\S*?(?:env\s+(?:-\S+\s+)*)?(bash|sh|zsh|ksh|dash|python[\d.]*)\b")
_FROM: Final = r"(?im)^\s*FROM\s+\S+"
_DOCKER_RUN: Final = r"(?im)^\s*(CMD|ENTRYPOINT)\s"


def read_text(
    path: str, text: str, files: RepoFiles, how: HowToRead = AS_WRITTEN, *, named: bool = False
) -> Reading:
    """Read one file.

    Args:
        path: relative to the repository's root; "-" is stdin.
        text: its decoded text.
        files: where companions are read from.
        how: what the policy says of the file beforehand.
        named: whether the user named it, so that it may be longer than what a tree happens to hold.
    """
    reading = Reading(path, text, files, how)
    if named:
        # The output of a tool that renders a whole chart may be long.
        reading.max_structured = MAX_FILE_BYTES
    _dispatch(reading, posixpath.basename(path))
    note_leftovers(reading)
    reading.launches.sort(key=lambda launch: launch.line)
    return reading


def read_embedded(
    name: str, text: str, first_line: int, reading: Reading, around: Surroundings | None
) -> None:
    """Read a file's text that stands inside another file, with the outer file's lines."""
    if reading.depth >= MAX_EMBEDDED or not is_telling(text.encode("utf-8", "replace")):
        return
    inner = Reading(reading.path, text, reading.files, reading.how)
    inner.taint = reading.taint
    inner.depth = reading.depth + 1
    _dispatch(inner, posixpath.basename(name))
    offset = first_line - 1
    for launch in inner.launches:
        reading.launches.append(
            dataclasses.replace(
                launch,
                line=launch.line + offset,
                places={key: (line + offset, column) for key, (line, column) in launch.places.items()},
                model_place=(launch.model_place[0] + offset, launch.model_place[1])
                if launch.model_place
                else None,
                image=launch.image or (around.image if around else None),
            )
        )
    for miss in inner.not_read:
        reading.miss(miss.line + offset, miss.reason)


def _dispatch(reading: Reading, name: str) -> None:
    text = reading.text
    stem = name.removesuffix(".j2").removesuffix(".tmpl")
    ending = posixpath.splitext(stem)[1].lower()
    shebang = _SHEBANG.match(text)
    if ending in SHELL_ENDINGS or (shebang and not shebang[1].startswith("python")):
        read_script(reading)
        return
    if len(text) > reading.max_structured:
        reading.miss_text(1, "file too large, skipped")
        return
    if ending == ".py" or (shebang and shebang[1].startswith("python")):
        from kvplan.gate.readers.python import read_python

        read_python(reading)
    elif re.fullmatch(DOCKERFILE_NAME, name) or (ending not in YAML_ENDINGS and _is_dockerfile(text)):
        from kvplan.gate.readers.dockerfile import read_dockerfile

        read_dockerfile(reading)
    elif ending in YAML_ENDINGS:
        from kvplan.gate.read_yaml import read_yaml

        read_yaml(reading, name)
    else:
        _sniff(reading, name)


def _sniff(reading: Reading, name: str) -> None:
    """A file whose name says little, and stdin."""
    from kvplan.gate.readers.nomad import is_nomad, read_nomad
    from kvplan.gate.readers.units import is_supervisord, is_systemd, read_supervisord, read_systemd

    text = reading.text
    if is_systemd(text):
        read_systemd(reading)
    elif is_supervisord(text):
        read_supervisord(reading)
    elif is_nomad(text):
        read_nomad(reading)
    elif re.search(r"(?m)^(apiVersion|kind|services|jobs|models|run|model):|^- \w", text) or text.lstrip()[
        :1
    ] in {"{", "["}:
        from kvplan.gate.read_yaml import read_yaml

        read_yaml(reading, name)
        if not reading.launches and "." not in name and name != "-":
            # Text with bullets: that it is no YAML is no news.
            reading.not_read.clear()
    elif re.search(r"(?m)^(import|from) \w+", text):
        from kvplan.gate.readers.python import read_python

        read_python(reading)
    elif re.search(r"(?m)^\s*(exec |nohup |export |docker |vllm serve|python3? -m vllm)", text):
        read_script(reading)
    elif name == "-" and not _is_dockerfile(text):
        reading.miss_text(1, "no manifest, values, compose file or script that is known")


def read_script(reading: Reading) -> None:
    """A shell script."""
    from kvplan.gate.shell import read_shell, whole_file

    gpu, count = _slurm(reading.text)
    read_shell(reading.text, reading, Surroundings("shell", gpu=gpu, num_gpus=count), whole_file)


def _slurm(text: str) -> tuple[str | None, int | None]:
    """`#SBATCH --gres=gpu:h100:8` of the script's head."""
    head = text[:20_000]
    if "#SBATCH" not in head:
        return None, None
    from kvplan.gate.accelerators import product

    match = re.search(
        r"(?m)^#SBATCH\s+(?:--gres=gpu|--gpus(?:-per-node)?=|-G\s*)(?::?([A-Za-z][\w-]*))?(?::|=)?(\d{1,3})?\s*$",
        head,
    )
    if match is None:
        return None, None
    card = product(match[1]) if match[1] and match[1].lower() != "gpu" else None
    return card, int(match[2]) if match[2] else None


def _is_dockerfile(text: str) -> bool:
    return bool(re.search(_FROM, text[:20_000]) and re.search(_DOCKER_RUN, text))
