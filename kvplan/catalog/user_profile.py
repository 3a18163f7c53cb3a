"""Write a model that was read from a folder or the hub into the user's own profiles."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.catalog import index
from kvplan.catalog.schema import ModelProfile
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.catalog.model_source import ModelSource


def add_model_profile(
    model: ModelSource, *, name: str | None = None, profiles_dir: str | None = None, replace: bool = False
) -> Path:
    """Write the profile and say where: the first of `--profiles`, KVPLAN_PROFILES and the user's folder.

    Args:
        model: what was read.
        name: the profile's id; else the hub id, or the folder's own name.
        profiles_dir: `--profiles`.
        replace: overwrite a profile of that id.

    Raises:
        InputError: a profile of that id is there already, or the folder cannot be written.
    """
    import yaml

    profile_id = name or (model.id if model.kind == "hub" else Path(model.path or model.id).name)
    folder = Path(index.folder_to_write(profiles_dir)) / "models"
    path = folder / f"{profile_id.replace('/', '__')}.yaml"
    if path.exists() and not replace:
        raise InputError(f"{path} is there already", "--replace overwrites it, --name gives another id")
    # The same check that reading it back makes: what cannot be read must not be written.
    profile = ModelProfile.model_validate(_facts(model, profile_id))
    text = yaml.safe_dump(
        profile.model_dump(mode="json", exclude_defaults=True),
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}", "name another folder with --profiles"
        ) from error
    return path


def _facts(model: ModelSource, profile_id: str) -> dict[str, Any]:
    today = dt.datetime.now(dt.UTC).date().isoformat()
    facts: dict[str, Any] = {
        "id": profile_id,
        "config_source": f"{model.source}, read {today}",
        "confidence": "config.json",
        "notes": model.notes,
        "config": model.config,
    }
    if model.weights is not None:
        kind = "headers" if model.weights.kind == "safetensors" else "index"
        source = f"{model.weights.source}, read {today}"
        facts["weights_bytes"] = {"value": model.weights.total_bytes, "kind": kind, "source": source}
        if model.weights.parameters is not None:
            facts["parameters"] = {"value": model.weights.parameters, "source": source}
    return facts
