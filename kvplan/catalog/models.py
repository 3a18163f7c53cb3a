"""Find a model: a profile's name, a local folder, or a hub id. Never its weights, only facts about them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kvplan.architecture.stored_weights import StoredWeights
from kvplan.catalog import index
from kvplan.catalog.model_source import ModelSource
from kvplan.catalog.names import model_key, nearest
from kvplan.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_model(
    query: str, *, profiles_dir: str | None = None, offline: bool = False, revision: str | None = None
) -> ModelSource:
    """The model of that name.

    Raises:
        UnknownNameError: nobody knows it; `nearest` holds similar names.
        InputError: several models go by that name.
    """
    record = find_model_profile(query, profiles_dir=profiles_dir)
    if record is not None:
        return source_of(record)
    known = known_models(profiles_dir)
    found = nearest(query, known)
    raise UnknownNameError(
        f"no model {query!r}", f"did you mean {', '.join(found)}?" if found else None, nearest=found
    )


def find_model_profile(query: str, *, profiles_dir: str | None = None) -> Mapping[str, Any] | None:
    """The profile of that name as JSON types, or None.

    Raises:
        InputError: several models go by that name.
    """
    for profiles in index.indexes(profiles_dir):
        ids = profiles.names.get("models", {}).get(model_key(query), [])
        if len(ids) > 1:
            raise InputError(f"{query!r} may be {' or '.join(ids)}", "give the whole id")
        if ids:
            record = profiles.record("models", ids[0])
            record["profile_folder"] = profiles.folder
            return record
    return None


def known_models(profiles_dir: str | None = None) -> list[str]:
    """Every name that a profile has, ids first."""
    catalogue = index.indexes(profiles_dir)
    ids = [model for profiles in catalogue for model in profiles.records.get("models", {})]
    return [*ids, *(name for profiles in catalogue for name in profiles.names.get("models", {}))]


def source_of(record: Mapping[str, Any]) -> ModelSource:
    """A profile as a model that was found."""
    return ModelSource(
        id=record["id"],
        kind="profile",
        config=record["config"],
        weights=stored_weights(record),
        source=record["config_source"],
        notes=tuple(record.get("notes", ())),
    )


def stored_weights(record: Mapping[str, Any]) -> StoredWeights | None:
    """What a profile knows of the weight files."""
    weights = record.get("weights_bytes")
    if not weights:
        return None
    parameters = record.get("parameters")
    return StoredWeights(
        total_bytes=weights["value"],
        parameters=parameters["value"] if parameters else None,
        kind="profile",
        source=f"{weights['kind']}: {weights['source']}",
    )
