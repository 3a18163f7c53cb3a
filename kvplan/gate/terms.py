"""What a launch is held against: the policy's answer for one path, resolved. Pure values."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvplan.gate.result import Severity
    from kvplan.launch import Launch
    from kvplan.load.workload import Workload


class Calibration(NamedTuple):
    """Measured launches that lie in the repository, so that two runs agree."""

    path: str
    launches: tuple[Launch, ...]


class Terms(FrozenRecord):
    """The terms of one path. None is "nothing is asked"."""

    gpu: str | None = None
    """The card where the file names none."""
    gpu_map: tuple[tuple[str, str], ...] = ()
    """(`label=value` with `*`, card): what a node selector means. It wins over what the file names."""
    model: str | None = None
    """The profile or folder where the file's model is unknown, or a path."""
    vllm_version: str | None = None
    """The release where the file pins none."""
    target_concurrency: int | None = None
    """Requests that one launch shall serve at once."""
    workload: Workload | None = None
    workload_name: str | None = None
    min_headroom_bytes: int | None = None
    min_start_probability: float | None = None
    max_capacity_regression_percent: float | None = None
    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Flag -> the values that it may be given; none at all where the tuple is empty."""
    severities: Mapping[str, Severity | None] = field(default_factory=dict)
    """Rule -> the severity that its findings get; None is off."""
    named_rules: frozenset[str] = frozenset()
    """Rules that the policy turns on by name."""
    require_judged: bool = False
    calibration: Calibration | None = None

    def is_on(self, rule: str) -> bool:
        """Whether a rule is asked at all."""
        return self.severities.get(rule, "error") is not None

    def allows(self, flag: str, value: Any) -> bool:
        """Whether the flag may be given that value."""
        return flag not in self.allowed or value in self.allowed[flag]


NO_TERMS = Terms()


def _nothing(_: str) -> Mapping[str, str]:
    return {}


def _no_version(_: str) -> str | None:
    return None


class HowToRead(FrozenRecord):
    """What the readers are told about a file before they read it."""

    assume: Callable[[str], Mapping[str, str]] = _nothing
    """Path -> values for variables that nobody in the repository gives."""
    unpinned_version: Callable[[str], str | None] = _no_version
    """Path -> the vLLM release where the file pins none."""
    vllm_version: str | None = None
    """The release to read every file with, whatever it pins."""


AS_WRITTEN = HowToRead()
