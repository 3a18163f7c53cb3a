"""`.kvplan.yaml` of a repository as the gate reads it: terms for each path, waivers, what must be there."""

from __future__ import annotations

import datetime as dt
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kvplan.config.project_file import FILE_NAME
from kvplan.errors import InputError
from kvplan.gate.globs import path_matches
from kvplan.gate.terms import Calibration, HowToRead, Terms
from kvplan.record import FrozenRecord
from kvplan.units import bytes_from_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.gate.policy_schema import PathKeys, PolicyFile
    from kvplan.gate.result import Severity
    from kvplan.load.workload import Workload

LONGEST_WAIVER_DAYS: Final = 180
SHORTEST_REASON: Final = 3


class Waiver(NamedTuple):
    """A finding that is accepted until a day, and where that is said."""

    rules: tuple[str, ...]
    path: str
    """Pattern."""
    until: dt.date
    reason: str
    owner: str | None = None
    model: str | None = None
    said_in: str = FILE_NAME
    line: int = 1
    launch_line: int | None = None
    """Of a comment: the line below it, which the waived launch or flag stands on."""


class Required(FrozenRecord):
    """A path that must hold a launch, and the line that says so."""

    patterns: tuple[str, ...]
    line: int


class Policy(FrozenRecord):
    """What the gate holds launches to."""

    file: PolicyFile | None = None
    waivers: tuple[Waiver, ...] = ()
    calibration: Calibration | None = None
    required: tuple[Required, ...] = ()
    """Paths that must hold a launch."""
    _workloads: Mapping[str, Workload] = field(default_factory=dict)

    def terms(self, path: str) -> Terms:
        """The terms of a path: the file's own keys, then each matching entry of `paths`, key by key."""
        if self.file is None:
            return Terms()
        said = self._said(path)
        workload = said.get("workload")
        headroom = said.get("min_headroom_gib")
        return Terms(
            gpu=said.get("gpu"),
            gpu_map=tuple((self.file.gpu_map or {}).items()),
            model=said.get("model"),
            vllm_version=said.get("vllm_version"),
            target_concurrency=said.get("target_concurrency"),
            workload=self._workloads.get(workload) if workload else None,
            workload_name=workload,
            min_headroom_bytes=None if headroom is None else bytes_from_gib(headroom),
            min_start_probability=said.get("min_start_probability"),
            max_capacity_regression_percent=said.get("max_capacity_regression_percent"),
            allowed={name: tuple(values) for name, values in (said.get("allowed") or {}).items()},
            severities=_severities(said.get("rules") or {}),
            named_rules=frozenset(
                rule for rule, setting in (said.get("rules") or {}).items() if setting != "off"
            ),
            require_judged=bool(said.get("require_judged")),
            calibration=self.calibration,
        )

    def how_to_read(self, vllm_version: str | None = None) -> HowToRead:
        """What the readers must know beforehand.

        Args:
            vllm_version: read every file as this release would, whatever it pins.
        """
        if self.file is None:
            return HowToRead(vllm_version=vllm_version)
        return HowToRead(
            assume=lambda path: self._said(path).get("assume") or {},
            unpinned_version=lambda path: self._said(path).get("vllm_version"),
            vllm_version=vllm_version,
        )

    def _said(self, path: str) -> dict[str, Any]:
        assert self.file is not None  # noqa: S101  both callers looked
        said = _given(self.file)
        for entry in self.file.paths:
            if any(path_matches(pattern, path) for pattern in entry.match):
                for key, value in _given(entry).items():
                    both = key in {"rules", "assume", "allowed"} and isinstance(said.get(key), dict)
                    said[key] = {**said[key], **value} if both else value
        return said


NO_POLICY = Policy()


def _given(keys: PathKeys) -> dict[str, Any]:
    return {name: value for name in _PATH_KEYS if (value := getattr(keys, name)) is not None}


_PATH_KEYS: Final = (
    "gpu",
    "model",
    "vllm_version",
    "target_concurrency",
    "workload",
    "min_headroom_gib",
    "min_start_probability",
    "max_capacity_regression_percent",
    "allowed",
    "rules",
    "assume",
    "require_judged",
)


def _severities(rules: Mapping[str, str]) -> dict[str, Severity | None]:
    found: dict[str, Severity | None] = {}
    for rule, setting in rules.items():
        match setting:
            case "off":
                found[rule] = None
            case "note" | "warning" | "error":
                found[rule] = setting
    return found


def refuse_long_waiver(until: dt.date, today: dt.date, place: str) -> None:
    """A waiver has an end that can be seen from here.

    Raises:
        InputError: it lies too far ahead.
    """
    latest = today + dt.timedelta(days=LONGEST_WAIVER_DAYS)
    if until > latest:
        raise InputError(
            f"{place}: a waiver until {until} is more than {LONGEST_WAIVER_DAYS} days ahead",
            f"until {latest} at the latest; renew it then if it must be",
        )
