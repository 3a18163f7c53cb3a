"""Weight files as stored on disk or hub: what safetensors headers or an index say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping


class StoredWeights(FrozenRecord):
    """Weight files as stored: from safetensors headers or their index."""

    total_bytes: int
    parameters: int | None
    """None when only the index's total size is known."""
    kind: Literal["safetensors", "index", "profile"]
    source: str
    """Where it was read: a path, a repository with revision, or the profile's own source."""
    tensors: Mapping[str, tuple[str, tuple[int, ...]]] | None = None
    """Tensor name -> (safetensors dtype such as "BF16", shape), when the headers were there."""
