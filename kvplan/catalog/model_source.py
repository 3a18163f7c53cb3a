"""What finding a model yields: its config.json and whatever is known of its weight files."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.stored_weights import StoredWeights


class ModelSource(FrozenRecord):
    """A model that was found: never its weights, only facts about them."""

    id: str
    """The hub's id if there is one ("Qwen/Qwen2-7B-Instruct"), else the folder's path."""
    kind: Literal["profile", "folder", "hub"]
    config: Mapping[str, Any]
    """config.json, as it was found."""
    path: str | None = None
    """The local folder, when there is one."""
    weights: StoredWeights | None = None
    source: str = ""
    """Where the config was read: profile file, path, or repository with revision."""
    notes: tuple[str, ...] = field(default_factory=tuple)
    """Things the user should know, e.g. that a renamed checkpoint resolved to its family's geometry."""
