"""`.kvplan.yaml` of the current directory: what a project says once instead of on every command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from kvplan.errors import InputError
from kvplan.foreign import read_text

FILE_NAME: Final = ".kvplan.yaml"
SECOND_DOCUMENT: Final = "a second YAML document begins here, which nobody would read"
"""Said by all commands alike: the first `---` after a key ends what counts."""
ONE_DOCUMENT: Final = "put all keys into one document: take out the line ---"


class ProjectFile(NamedTuple):
    """The defaults of a project. None is "not given"."""

    path: Path
    model: str | None = None
    gpu: str | None = None
    gpu_memory_gib: float | None = None
    device: str | None = None
    vllm_version: str | None = None
    target_concurrency: int | None = None
    workload: str | None = None
    """A preset's name, or a workload file; a relative path is resolved against the project file."""
    launches: Path | None = None
    """The project's own store of measured launches, resolved likewise."""


def read_project_file(folder: Path | None = None) -> ProjectFile | None:
    """The defaults that `.kvplan.yaml` in `folder` (default: the current directory) gives; None without one.

    Other keys of the file belong to `kvplan check`, which validates them; they are not looked at here.

    Raises:
        InputError: not YAML, not a mapping, or a default of the wrong type (with the file and the key).
    """
    path = (folder or Path.cwd()) / FILE_NAME
    try:
        text = read_text(path)
    except FileNotFoundError:
        return None
    record = _mapping(path, text)
    return ProjectFile(
        path=path,
        model=_local(path, _text(path, record, "model")),
        gpu=_text(path, record, "gpu"),
        gpu_memory_gib=_number(path, record, "gpu_memory_gib"),
        device=_text(path, record, "device"),
        vllm_version=_text(path, record, "vllm_version"),
        target_concurrency=_whole(path, record, "target_concurrency"),
        workload=_local(path, _text(path, record, "workload")),
        launches=None if (own := _text(path, record, "launches")) is None else path.parent / own,
    )


def _mapping(path: Path, text: str) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        record = yaml.load(text, Loader=loader)  # noqa: S506  both are safe loaders
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        if isinstance(error, yaml.composer.ComposerError) and "single document" in str(error.context):
            raise InputError(f"{where}: {SECOND_DOCUMENT}", ONE_DOCUMENT) from error
        raise InputError(
            f"{where} is not YAML: {getattr(error, 'problem', None) or error}",
            "write lines like `model: qwen2-7b`",
        ) from error
    if record is None:
        return {}
    if not isinstance(record, dict):
        raise InputError(f"{path} is not a mapping", "write lines like `model: qwen2-7b`")
    return record


def _text(path: Path, record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    if value is None:
        return None
    # `vllm_version: 0.32` and `gpu: 4090` are numbers to YAML and names to people.
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"{path}: {key} is {value!r}, not a name", f"write `{key}: NAME`")


def _number(path: Path, record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise InputError(f"{path}: {key} is {value!r}, not a number above 0", f"write `{key}: 24`")


def _whole(path: Path, record: dict[str, Any], key: str) -> int | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InputError(f"{path}: {key} is {value!r}, not a whole number above 0", f"write `{key}: 32`")


def _local(path: Path, name: str | None) -> str | None:
    """A name that is a file or folder beside the project file means that one, from wherever we are called."""
    if name is not None and (beside := path.parent / name).exists():
        return str(beside)
    return name
