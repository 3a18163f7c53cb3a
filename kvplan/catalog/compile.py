"""Profile folders (YAML) -> one index file that a look-up can read without parsing YAML.

Runs when the wheel is built, and on first use of an editable install or of a user's folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import ValidationError

from kvplan.catalog.index import KINDS, profile_files
from kvplan.catalog.names import gpu_key, model_key, nearest
from kvplan.catalog.schema import SCHEMAS, ModelProfile
from kvplan.errors import InputError
from kvplan.foreign import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import BaseModel

_LONGEST_PROFILE: Final = 16 * 2**20
_EXAMPLE: Final = "docs/profiles.md shows one"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def compile_folder(folder: Path, base_models: Mapping[str, Mapping[str, Any]] | None = None) -> bytes:
    """The index of a profile folder: one line of names, then one JSON record a profile.

    Args:
        folder: holds `models/`, `gpus/` and any other kind of profile, one YAML file a profile.
        base_models: configs by model id that a `base:` may name beside those of the folder itself.

    Raises:
        InputError: a file that is not YAML, has unknown or wrong keys, or repeats another's name.
    """
    body = bytearray()
    names: dict[str, dict[str, list[str]]] = {}
    records: dict[str, dict[str, tuple[int, int]]] = {}
    for kind in KINDS:
        if not (folder / kind).is_dir():
            continue
        profiles = [_read(Path(path), kind) for path in profile_files(str(folder / kind))]
        if kind == "models":
            _apply_bases(profiles, base_models or {})
        names[kind], records[kind] = {}, {}
        for path, record in profiles:
            if record["id"] in records[kind]:
                raise InputError(
                    f"{path}: another profile of the folder has the id {record['id']!r}",
                    "give each profile an id of its own, or remove one",
                )
            line = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
            records[kind][record["id"]] = (len(body), len(line))
            body += line + b"\n"
        _register_names(names[kind], kind, profiles)
    header = {"names": names, "records": records}
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" + bytes(body)


def _register_names(
    table: dict[str, list[str]], kind: str, profiles: Sequence[tuple[Path, dict[str, Any]]]
) -> None:
    """Every name of every profile in its normal form; an id or alias belongs to one profile only."""
    key = gpu_key if kind == "gpus" else model_key
    for path, record in profiles:
        for name in (record["id"], *record.get("aliases", ())):
            ids = table.setdefault(key(str(name)), [])
            if ids and record["id"] not in ids:
                raise InputError(
                    f"{path}: the name {name!r} already belongs to {ids[0]}",
                    "drop the alias from one of the two profiles",
                )
            if not ids:
                ids.append(record["id"])
    claimed = set(table)
    for _, record in profiles:
        for name in _shared_names(kind, record):
            if key(name) not in claimed:
                ids = table.setdefault(key(name), [])
                if record["id"] not in ids:
                    ids.append(record["id"])


def _shared_names(kind: str, record: Mapping[str, Any]) -> Iterable[str]:
    """Names that several profiles may go by: an id without its organisation; what NVML prints."""
    if kind == "models":
        yield record["id"].rpartition("/")[2]
    elif kind == "gpus":
        yield from record.get("nvml_names", ())
        if "marketing_gb" in record:
            yield f"{record['id']} {record['marketing_gb']:g}GB"


def _apply_bases(
    profiles: list[tuple[Path, dict[str, Any]]], base_models: Mapping[str, Mapping[str, Any]]
) -> None:
    """Fill in configs that start from another profile's; a base may have a base itself."""
    by_id = {record["id"]: record for _, record in profiles}

    def config_of(model_id: str, path: Path, seen: tuple[str, ...]) -> dict[str, Any]:
        if model_id in seen:
            raise InputError(
                f"{path}: base: {' -> '.join((*seen, model_id))} goes round in a circle",
                "give one of these profiles a whole config",
            )
        record = by_id.get(model_id)
        if record is None:
            if model_id in base_models:
                return dict(base_models[model_id])
            raise InputError(
                f"{path}: base: no profile {model_id!r}", _did_you_mean(model_id, [*by_id, *base_models])
            )
        if record.get("base") is None:
            return dict(record["config"])
        merged = {**config_of(record["base"], path, (*seen, model_id)), **record["config"]}
        return {key: value for key, value in merged.items() if value != _REMOVED}

    for path, record in profiles:
        resolved = config_of(record["id"], path, ())
        record["resolved_config"] = resolved
    for _, record in profiles:
        record["config"] = record.pop("resolved_config")


_REMOVED = "(removed)"
"""In a profile with a base: the key is not in this model's config.json."""


def _read(path: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    text = read_text(path, most_bytes=_LONGEST_PROFILE)
    try:
        data = yaml.load(text, Loader=_LOADER)  # noqa: S506  both are safe loaders
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InputError(f"{where}: not YAML: {error.problem}", _EXAMPLE) from error
    if not isinstance(data, dict):
        raise InputError(f"{path}:1: a profile is a mapping of keys, this is {type(data).__name__}", _EXAMPLE)
    schema = SCHEMAS.get(kind)
    if schema is None:
        return path, {"id": path.stem, **data}
    try:
        profile = schema.model_validate(data)
    except ValidationError as error:
        raise _explained(path, text, schema, error) from error
    return path, profile.model_dump(mode="json", exclude_defaults=not isinstance(profile, ModelProfile))


def _explained(path: Path, text: str, schema: type[BaseModel], error: ValidationError) -> InputError:
    """One complaint of pydantic with the line it is about: an unknown key explains a missing one."""
    complaints = error.errors()
    first = next((c for c in complaints if c["type"] == "extra_forbidden"), complaints[0])
    keys = [key for key in first["loc"] if isinstance(key, int | str)]
    line = _line_of(text, keys)
    key_path = ".".join(map(str, keys)) or "profile"
    hint = None
    if first["type"] == "extra_forbidden":
        message = f"{path}:{line}: unknown key {key_path}"
        hint = _did_you_mean(str(keys[-1]), _fields_at(schema, keys[:-1]))
    elif first["type"] == "missing":
        message = f"{path}:{line}: {key_path} is missing"
    else:
        message = f"{path}:{line}: {key_path}: {first['msg'].removeprefix('Value error, ')}"
    return InputError(message, hint)


def _fields_at(schema: type[BaseModel], keys: Sequence[int | str]) -> list[str]:
    """The valid keys of the mapping that a key path leads to."""
    node = schema.model_json_schema()
    definitions = node.get("$defs", {})
    for key in keys:
        node = _follow(node["items"] if isinstance(key, int) else node["properties"][key], definitions)
    return list(node.get("properties", {}))


def _follow(node: dict[str, Any], definitions: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    for option in node.get("anyOf", [node]):
        if "$ref" in option:
            return definitions[option["$ref"].rpartition("/")[2]]
        if option.get("type") in {"object", "array"}:
            return dict(option)
    return node


def _line_of(text: str, keys: Iterable[int | str]) -> int:
    """1-based line of the deepest part of a key path that the text has."""
    node = yaml.compose(text, Loader=_LOADER)
    line = 1
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            pair = next((p for p in node.value if p[0].value == str(key)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _did_you_mean(name: str, known: Iterable[str]) -> str | None:
    found = nearest(name, known)
    return f"did you mean {' or '.join(found)}?" if found else None
