"""A model in a local folder: its config.json, and what its weight files say in their headers."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, Final

from kvplan.architecture.stored_weights import StoredWeights
from kvplan.catalog.model_source import ModelSource
from kvplan.errors import InputError
from kvplan.foreign import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_INDEX: Final = "model.safetensors.index.json"
_TORCH_INDEX: Final = "pytorch_model.bin.index.json"
_QUANT_CONFIG: Final = "hf_quant_config.json"
_LONGEST_JSON: Final = 64 * 2**20
_LONGEST_HEADER: Final = 100_000_000
"""The safetensors library refuses longer headers, too."""


def model_in_folder(path: Path) -> ModelSource:
    """The model whose config.json, or whose folder, this path names.

    Raises:
        InputError: no config.json, or a config, index or weight file that is malformed.
    """
    folder, config_path = (path, path / "config.json") if path.is_dir() else (path.parent, path)
    if not config_path.is_file():
        raise InputError(f"{path}: no config.json there", _hint_for(folder))
    config, notes = config_with_quantization(config_path)
    return ModelSource(
        id=str(folder.absolute() if config_path.name == "config.json" else config_path),
        kind="folder",
        config=config,
        path=str(folder.absolute()),
        weights=weights_in_folder(folder),
        source=str(config_path.absolute()),
        notes=notes,
    )


def config_with_quantization(config_path: Path) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """A config.json, with the quantisation that old ModelOpt checkpoints keep in a file beside it.

    Source: vLLM 0.32 `transformers_utils/config.py::get_config`, which takes it over in the same way.

    Raises:
        InputError: malformed JSON.
    """
    config = read_json(config_path)
    beside = config_path.parent / _QUANT_CONFIG
    if config.get("quantization_config") is None and beside.is_file():
        return {**config, "quantization_config": read_json(beside)}, (
            f"quantization_config is from {_QUANT_CONFIG}",
        )
    return config, ()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
        InputError: not readable, not JSON (with line and column), or not an object.
    """
    try:
        data = json.loads(read_text(path, most_bytes=_LONGEST_JSON))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}", "fetch it again, whole"
        ) from error
    except FileNotFoundError as error:
        raise InputError(
            f"{path} cannot be read: no such file", "give a folder with a config.json"
        ) from error
    if not isinstance(data, dict):
        raise InputError(
            f"{path}:1:1: a JSON object is needed, this is {type(data).__name__}", "fetch it again, whole"
        )
    return data


def weights_in_folder(folder: Path) -> StoredWeights | None:
    """Sizes of the weight files of a folder: from safetensors headers, else from an index; None without.

    As vLLM does, files that the index does not name are left out, and `consolidated*` files (Mistral's own
    format, the same weights again) where there are others.
    Source: vLLM 0.32 `model_loader/weight_utils.py::filter_duplicate_safetensors_files`.

    Raises:
        InputError: a malformed index or header.
    """
    index_path = folder / _INDEX
    index = read_json(index_path) if index_path.is_file() else None
    files = _weight_files(folder, index, index_path)
    if files and all(path.is_file() for path in files):
        return summed((read_header(path) for path in files), str(folder.absolute()))
    if index is None and (folder / _TORCH_INDEX).is_file():
        index_path = folder / _TORCH_INDEX
        index = read_json(index_path)
    return _from_index(index, str(index_path)) if index is not None else None


def _from_index(index: Mapping[str, Any], source: str) -> StoredWeights | None:
    """What an index file says by itself: the total size, if it has that.

    Raises:
        InputError: the total size is no number.
    """
    metadata = index.get("metadata") or {}
    size = metadata.get("total_size")
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
        raise InputError(
            f"{source}: metadata.total_size is {size!r}, not a number of bytes", "fetch it again, whole"
        )
    return StoredWeights(total_bytes=int(size), parameters=None, kind="index", source=source)


def read_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: tensor name -> dtype, shape and data offsets. Reads no weights.

    Raises:
        InputError: not a safetensors file, or one that was cut off.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 0 < length <= min(_LONGEST_HEADER, size - 8):
                raise InputError(f"{path}: not a safetensors file, or cut off", "download it again")
            header = json.loads(file.read(length))
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise InputError(
            f"{path}: the safetensors header cannot be read: {error}", "download the file again"
        ) from error
    if not isinstance(header, dict):
        raise InputError(f"{path}: the safetensors header is no JSON object", "download the file again")
    header.pop("__metadata__", None)
    end = max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
    if 8 + length + end != size:
        raise InputError(
            f"{path}: {size} bytes, but its header says {8 + length + end}", "the download is not complete"
        )
    return header


def summed(headers: Iterable[Mapping[str, Any]], source: str) -> StoredWeights:
    """All tensors of some headers (`read_header`, or the hub's) together."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    total = 0
    for header in headers:
        for name, tensor in header.items():
            begin, end = tensor["data_offsets"]
            tensors[name] = (tensor["dtype"], tuple(tensor["shape"]))
            total += end - begin
    return StoredWeights(
        total_bytes=total,
        parameters=_parameters(tensors),
        kind="safetensors",
        source=source,
        tensors=tensors,
    )


def _weight_files(folder: Path, index: Mapping[str, Any] | None, index_path: Path) -> list[Path]:
    if index is not None:
        names = index.get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise InputError(
                f"{index_path}: weight_map is missing or maps to no file names", "download the index again"
            )
        return [folder / name for name in sorted(set(names.values()))]
    found = sorted(folder.glob("*.safetensors"))
    return [path for path in found if not path.name.startswith("consolidated")] or found


def _parameters(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> int | None:
    """How many numbers the tensors hold; None where integers pack several, so that nobody can count them."""
    if any(not dtype.startswith(("F", "BF")) for dtype, _ in tensors.values()):
        return None
    return sum(math.prod(shape) for _, shape in tensors.values())


def _hint_for(folder: Path) -> str:
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if any(name.endswith(".gguf") for name in names):
        return "GGUF files carry no config.json; give the model they were made from"
    if "adapter_config.json" in names:
        return "this is a LoRA adapter; give its base model"
    return "give a folder that has one, a profile's name or a hub id"
