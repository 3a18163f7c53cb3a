"""Find a model: local folder, profile, the Hugging Face cache, a known model's family, or the hub."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.architecture.quantization import FROM_NAME
from kvplan.architecture.stored_weights import StoredWeights
from kvplan.catalog import index
from kvplan.catalog.model_source import ModelSource
from kvplan.catalog.names import model_key, nearest
from kvplan.errors import InputError, KvplanError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.catalog.families import Quantization
    from kvplan.catalog.index import ProfileIndex


def find_model(
    query: str, *, profiles_dir: str | None = None, offline: bool = False, revision: str | None = None
) -> ModelSource:
    """The model that a user means, with its config.json and what is known of its weight files.

    The first that has it: a local folder or config.json; a profile (the user's before the built-in one); the
    local Hugging Face cache; a known model of the same name but another organisation or quantisation (said
    in the notes); the hub, unless offline. With a revision only the cache and the hub are asked.

    Raises:
        UnknownNameError: nobody knows it; `nearest` holds similar names.
        InputError: a malformed config or profile, several models of that name, or the hub cannot be read.
        MissingDependencyError: it can only be on the hub, and huggingface_hub is not installed.
    """
    if revision is None:
        found = _in_folder(query) or _in_profiles(query, profiles_dir, offline=offline)
        if found is not None:
            return found
    from kvplan.catalog import hub

    if hub.is_hub_id(query):
        try:
            return hub.model_on_hub(query, revision=revision, offline=offline)
        except KvplanError as error:
            raise _with_nearest(error, query, profiles_dir) from error
    if revision is not None:
        raise InputError(
            f"{query!r}: a revision needs a hub id (organisation/name)",
            "leave --revision out for a profile or a folder",
        )
    names = _nearest(query, profiles_dir)
    raise UnknownNameError(
        f"no model {query!r}",
        (f"did you mean {', '.join(names)}? " if names else "")
        + "`kvplan profiles models` lists all; a folder or a hub id (organisation/name) does as well",
        nearest=names,
    )


def read_model(query: str, *, offline: bool = False, revision: str | None = None) -> ModelSource:
    """The model's own files, from a folder or the hub: no profile, nothing concluded from a name.

    Raises:
        InputError: neither a path nor a hub id, or malformed files.
        UnknownNameError, MissingDependencyError: as `find_model`.
    """
    from kvplan.catalog import hub

    found = _in_folder(query) if revision is None else None
    if found is None and hub.is_hub_id(query):
        found = hub.model_on_hub(query, revision=revision, offline=offline)
    if found is None:
        raise InputError(f"{query!r} is neither a folder nor a hub id", "give a path, or organisation/name")
    return found


def find_model_profile(query: str, *, profiles_dir: str | None = None) -> Mapping[str, Any] | None:
    """The profile of that name as JSON types (see docs/profiles.md), or None.

    Raises:
        InputError: several models go by that name.
    """
    for profiles in index.indexes(profiles_dir):
        ids = profiles.names.get("models", {}).get(model_key(query), [])
        if len(ids) > 1:
            raise InputError(f"{query!r} may be {' or '.join(ids)}", "give the whole id")
        if ids:
            return profiles.record("models", ids[0])
    return None


def model_profiles(*, profiles_dir: str | None = None) -> list[Mapping[str, Any]]:
    """Every model's profile, by id; a user's in place of the built-in one of the same id."""
    records: dict[str, Mapping[str, Any]] = {}
    for profiles in index.indexes(profiles_dir):
        for model in profiles.records.get("models", {}):
            if model not in records:
                records[model] = profiles.record("models", model)
    return [records[model] for model in sorted(records, key=str.casefold)]


def _in_folder(query: str) -> ModelSource | None:
    """A path: one that has a config.json, or one that can be nothing else."""
    path = Path(query).expanduser()
    is_path_only = query.startswith(("/", "./", "../", "~")) or query.endswith(".json")
    if not is_path_only and not (path / "config.json").is_file():
        return None
    if not path.exists():
        raise InputError(
            f"{query}: no such file or folder", "`kvplan profiles models` lists the names that need no file"
        )
    from kvplan.catalog.folder import model_in_folder

    return model_in_folder(path)


def _in_profiles(query: str, profiles_dir: str | None, *, offline: bool) -> ModelSource | None:
    record = find_model_profile(query, profiles_dir=profiles_dir)
    if record is not None:
        return _source_of(record)
    from kvplan.catalog import hub

    if hub.is_hub_id(query) and hub.is_cached(query):
        try:
            return hub.model_on_hub(query, offline=offline)
        except KvplanError:
            # A cache entry without a config.json (only a tokenizer, say): the name may still tell the family.
            pass
    return _family_of(query, profiles_dir)


def _family_of(query: str, profiles_dir: str | None) -> ModelSource | None:
    """A known model of which this is a copy or a quantisation, by name."""
    from kvplan.catalog import families

    catalogue = index.indexes(profiles_dir)
    apart = families.take_apart(query)
    same = _by_family_key(families.family_key(query), query, catalogue)
    if same is not None:
        note = f"{query} is taken for a copy of {same['id']}, by its name: its own config.json was not read"
        renamed = _renamed(query, same, note)
        if apart.quantization is None or "/" not in query:
            return renamed
        # Two organisations that quantise a model by the same name need not leave the same layers alone.
        concluded = _concluded(same["config"].get("quantization_config") or {}, apart.quantization)
        config = {**same["config"], "quantization_config": concluded}
        return dataclasses.replace(renamed, config=config, weights=None)
    original = _by_family_key(apart.model, query, catalogue)
    if original is None or apart.quantization is None:
        return None
    says = apart.quantization.says
    note = (
        f"{query} is taken for {original['id']} quantised as {says}, by its name: its own config.json was "
        f"not read (`kvplan profiles add {query}` does)"
    )
    if not apart.quantization.standard:
        note += "; recipes of this format differ in the layers they leave alone"
    concluded = _concluded(apart.quantization.config, apart.quantization)
    config = {**original["config"], "quantization_config": concluded}
    return ModelSource(
        id=query, kind="profile", config=config, source=f"geometry of {original['id']}", notes=(note,)
    )


def _concluded(config: Mapping[str, Any], quantization: Quantization) -> dict[str, Any]:
    """A `quantization_config` that says of itself that it was concluded from a name."""
    return {**config, FROM_NAME: "standard" if quantization.standard else "varies"}


def _by_family_key(wanted: str, query: str, catalogue: Sequence[ProfileIndex]) -> Mapping[str, Any] | None:
    from kvplan.catalog import families

    for profiles in catalogue:
        # Without an organisation it may be a short name, which means what it means by itself.
        short = profiles.names.get("models", {}).get(wanted, []) if "/" not in query else []
        ids = short or families.matching_ids(wanted, profiles.records.get("models", {}))
        if len(ids) == 1:
            return profiles.record("models", ids[0])
    return None


def _renamed(query: str, record: Mapping[str, Any], note: str) -> ModelSource:
    found = _source_of(record)
    return ModelSource(
        id=query,
        kind="profile",
        config=found.config,
        weights=found.weights,
        source=f"geometry of {record['id']}: {found.source}",
        notes=(note, *found.notes),
    )


def _source_of(record: Mapping[str, Any]) -> ModelSource:
    return ModelSource(
        id=record["id"],
        kind="profile",
        config=record["config"],
        weights=_stored_weights(record),
        source=record["config_source"],
        notes=tuple(record.get("notes", ())),
    )


def _stored_weights(record: Mapping[str, Any]) -> StoredWeights | None:
    weights, parameters = record.get("weights_bytes"), record.get("parameters")
    if not weights:
        return None
    return StoredWeights(
        total_bytes=weights["value"],
        parameters=parameters["value"] if parameters else None,
        kind="profile",
        source=f"{weights['kind']}: {weights['source']}",
    )


def _nearest(query: str, profiles_dir: str | None) -> tuple[str, ...]:
    catalogue = index.indexes(profiles_dir)
    ids = [model for profiles in catalogue for model in profiles.records.get("models", {})]
    names = [name for profiles in catalogue for name in profiles.names.get("models", {})]
    return nearest(query, [*ids, *names])


def _with_nearest(error: KvplanError, query: str, profiles_dir: str | None) -> KvplanError:
    """The same error with similar names in its hint: the user may have mistyped a profile's name."""
    names = _nearest(query, profiles_dir)
    if names:
        error.hint = f"did you mean {', '.join(names)}? " + (error.hint or "")
    if isinstance(error, UnknownNameError):
        error.nearest = names
    return error
