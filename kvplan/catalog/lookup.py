"""Find a profile by name alone, whatever it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kvplan.catalog.gpus import find_gpu_profile
from kvplan.catalog.index import indexes
from kvplan.catalog.models import find_model_profile
from kvplan.catalog.names import nearest
from kvplan.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_profile(
    name: str, *, profiles_dir: str | None = None
) -> tuple[Literal["model", "gpu"], Mapping[str, Any]]:
    """The model's or the card's profile of that name.

    Raises:
        UnknownNameError: neither a model nor a card; `nearest` holds similar names of both.
        InputError: several go by that name.
    """
    model = find_model_profile(name, profiles_dir=profiles_dir)
    if model is not None:
        return "model", model
    try:
        return "gpu", find_gpu_profile(name, profiles_dir=profiles_dir)
    except UnknownNameError as error:
        models = (model for profiles in indexes(profiles_dir) for model in profiles.names.get("models", {}))
        found = (*nearest(name, models, count=2), *error.nearest[:2])
        raise UnknownNameError(
            f"no profile {name!r}", f"did you mean {', '.join(found)}?" if found else None, nearest=found
        ) from error
