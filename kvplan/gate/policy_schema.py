"""The keys of `.kvplan.yaml` and what each may hold: what the gate reads, and its published JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.gate import policy_kinds as kinds
from kvplan.gate.policy_kinds import Kind, entries, key, required
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

_RULE: Final = r"KVP\d{3}"


def _rule(value: Any) -> str:
    import re

    if not isinstance(value, str) or not re.fullmatch(_RULE, value):
        raise kinds.WrongValueError("not a rule's id like KVP001")
    return value


_RULE_ID: Final = Kind(_rule, {"type": "string", "pattern": f"^{_RULE}$"})
_SETTING: Final = kinds.one_of("off", "on", "note", "warning", "error", booleans={False: "off", True: "on"})


def _allowed(value: Any) -> dict[str, tuple[Any, ...]]:
    """Flags may be written as vLLM's options are."""
    lists = _LISTS.read(value)
    return {name.lstrip("-").replace("-", "_"): values for name, values in lists.items()}


_LISTS: Final = kinds.map_of(kinds.list_of(kinds.ANYTHING))


class PathKeys(FrozenRecord, kw_only=True):
    """What can be said for the whole repository and for a path."""

    gpu: str | None = key(kinds.NAME, "GPU profile where a file names no card")
    model: str | None = key(
        kinds.NAME, "model profile where a file's model is unknown or a path of the container"
    )
    vllm_version: str | None = key(kinds.NAME, "vLLM release where neither image tag nor pin says")
    target_concurrency: int | None = key(kinds.WHOLE, "requests that a launch serves at once")
    workload: str | None = key(kinds.text(), "workload preset, or a kvplan.workload/1 file of the repository")
    min_headroom_gib: float | None = key(
        kinds.number(at_least=0), "GiB of the card that stay free beyond all that vLLM plans with"
    )
    min_start_probability: float | None = key(
        kinds.number(above=0, at_most=1), "how probable a start must be"
    )
    max_capacity_regression_percent: float | None = key(
        kinds.number(at_least=0), "how much of its capacity a launch may lose against the base"
    )
    allowed: Mapping[str, tuple[Any, ...]] | None = key(
        Kind(_allowed, _LISTS.schema),
        "flag -> the values that it may be given; an empty list forbids the flag",
    )
    rules: Mapping[str, str] | None = key(
        kinds.map_of(_SETTING, names=_RULE, told="not a rule's id like KVP001"),
        "rule -> off, on (its own severities), note, warning or error",
    )
    assume: Mapping[str, str] | None = key(
        kinds.map_of(kinds.NAME),
        "variable -> the value to read files with where nobody in the repository gives one",
    )
    require_judged: bool | None = key(kinds.BOOLEAN, "exit 2 when a launch here cannot be judged")


class PathEntry(PathKeys, kw_only=True):
    """Keys for the paths that a pattern matches; later entries win over earlier ones, key by key."""

    match: tuple[str, ...] = required(
        kinds.list_of(kinds.text(1), or_one=True, shortest=1), "a pattern of paths, or several"
    )
    require_launch: bool | None = key(kinds.BOOLEAN, "a finding (KVP028) when no launch is found here")


class WaiverEntry(FrozenRecord, kw_only=True):
    """A finding that is accepted until a day."""

    rule: str = required(_RULE_ID)
    path: str = required(kinds.text(1))
    model: str | None = key(kinds.text())
    until: dt.date = required(kinds.DATE, "the last day, at most 180 days ahead")
    reason: str = required(kinds.text(3))
    owner: str | None = key(kinds.text())


class PolicyFile(PathKeys, kw_only=True):
    """`.kvplan.yaml`: what a project says once, for every command, and what the gate holds launches to."""

    gpu_memory_gib: float | None = key(
        kinds.number(above=0), "default of `kvplan estimate`; not used by the gate"
    )
    device: str | None = key(
        kinds.one_of("cuda", "cpu"), "default of `kvplan estimate`; not used by the gate"
    )
    launches: str | None = key(
        kinds.text(), "file of measured launches in the repository; calibrates estimates and the gate"
    )
    gpu_map: Mapping[str, str] | None = key(
        kinds.map_of(kinds.NAME),
        "`label=value` of a node selector (`*` allowed), or a product's name -> GPU profile",
    )
    paths: tuple[PathEntry, ...] = entries(kinds.list_of(kinds.mapping(PathEntry)))
    waivers: tuple[WaiverEntry, ...] = entries(kinds.list_of(kinds.mapping(WaiverEntry)))
