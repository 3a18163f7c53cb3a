"""What the readers give: launches with where each value stands, and what could not be read."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.record import FrozenRecord, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

Place = tuple[int, int]
"""Physical line and column in the outer file, both from 1."""


class LaunchFound(FrozenRecord):
    """One vLLM launch as a file writes it. Only what the file says; vLLM's own defaults are not filled in."""

    path: str
    """Relative to the repository's root, with forward slashes."""
    line: int
    """Of the first vLLM word, else of the key that holds the arguments."""
    column: int
    format: str
    model: str | None
    gpu: str | tuple[str, ...] | None
    """Product that a label, instance type, resource or accelerator field names; several are alternatives."""
    num_gpus: int | None
    """Accelerators of one engine, summed over its pods."""
    flags: Mapping[str, Any]
    unresolved: tuple[str, ...] = ()
    """Variables that change this launch and have no value in the repository."""
    defaulted: tuple[str, ...] = ()
    """Variables whose written default was used."""
    assumed: tuple[str, ...] = ()
    """Variables whose value the policy's `assume:` gave."""
    ignored: tuple[str, ...] = ()
    """Keys that vLLM drops without a word."""
    invalid: Mapping[str, str] = field(default_factory=dict)
    """Flags whose value vLLM would refuse, with why (never the value)."""
    unknown_flags: tuple[str, ...] = ()
    """Options that no vLLM in the flag table knows, or that the pinned version does not have."""
    unresolved_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Flags that are set, but to a value that an unresolved variable decides."""
    overridden: Mapping[str, Any] = field(default_factory=dict)
    """Flags that a `--config` file sets otherwise than the command line, which wins: the file's value."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where each flag stands."""
    model_place: Place | None = None
    name: str | None = None
    """Container, service, function or release that the launch belongs to: the key for base against head."""
    vllm_version: str | None = None
    """From the image tag or a pip pin."""
    image: str | None = None
    stage: str | None = None
    profile: str | None = None
    mig: str | None = None
    rendered: bool = False
    """The launch is the result of an overlay, not the text of one file."""
    container_memory_bytes: int | None = None
    replicas: int | None = None
    devices: tuple[str, ...] | None = None
    """The GPUs of the machine that the launch may use, by number or UUID, where the file names them."""
    env: Mapping[str, str] = field(default_factory=dict)
    """VLLM_* variables that change memory, where the file sets them."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """Labels and selectors that a policy may map to a GPU."""


class NotRead(NamedTuple):
    """Something in a file that could not be read or judged, said instead of passed over."""

    path: str
    line: int
    reason: str


class Comment(NamedTuple):
    """A comment to the gate itself (`# kvplan: …`), as written."""

    path: str
    line: int
    text: str
    """What follows `kvplan:`."""


class Found(Record):
    """All launches of a set of files, and what could not be read."""

    launches: list[LaunchFound] = field(default_factory=list)
    not_read: list[NotRead] = field(default_factory=list)
    files_read: int = 0
    unread: set[str] = field(default_factory=set)
    """Files that could not be read and gave no launch; each has its line in `not_read`."""
    named_unread: bool = False
    """Whether stdin, or a file that was named, could not be read and gave no launch."""
    comments: list[Comment] = field(default_factory=list)

    @property
    def nothing_read(self) -> bool:
        """Whether there is no answer: something asked for by name is unread, or everything is."""
        return self.named_unread or (not self.files_read and bool(self.not_read))
