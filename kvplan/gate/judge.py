"""Put a launch to the memory model: an estimate on each card it may run on, or why there is none."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.serving import FIELD_NAMES, ServingConfig
from kvplan.config.version import format_vllm_version
from kvplan.errors import InputError, KvplanError, UnsupportedModelError

if TYPE_CHECKING:
    from kvplan.config.version import VllmVersion
    from kvplan.gate.found import LaunchFound
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.planner import Planner

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_MATTERS: Final = FIELD_NAMES - {"model"}
_CHANGES_THE_MODEL: Final = (
    "hf_overrides",
    "hf_config_path",
    "rope_scaling",
    "rope_theta",
    "model_class_overrides",
)
"""With these vLLM serves another configuration than the one that is known by the model's name."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A launch with its estimate on the card that serves least of those it may run on."""

    launch: LaunchFound
    planner: Planner
    gpu: GpuSpec
    estimate: Estimate | None
    """None when vLLM refuses the flags before it looks at memory."""
    refusal: str | None
    """Why it refuses them."""
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A launch that nothing sound can be said about, with the reason."""

    launch: LaunchFound
    reason: str


def judge(
    launch: LaunchFound, *, gpu: str | None = None, vllm_version: str | None = None
) -> Judged | NotJudged:
    """Judge one launch.

    Args:
        launch: what was read.
        gpu: the card for launches whose files name none.
        vllm_version: judge with this version, whatever the launch pins.
    """
    reason = _undecided(launch)
    if reason is not None:
        return NotJudged(launch, reason)
    cards = _cards(launch, gpu)
    if not cards:
        return NotJudged(launch, "GPU unknown: no label, resource or field names it (give --gpu)")
    try:
        judged = [_on_card(launch, card, vllm_version) for card in cards]
    except UnsupportedModelError as error:
        return NotJudged(launch, f"no exact rule for this model: {error.message}")
    except KvplanError as error:
        return NotJudged(launch, error.message)
    return min(judged, key=_chance)


def _chance(judged: Judged) -> float:
    return judged.estimate.verdict.probability if judged.estimate is not None else -1.0


def _undecided(launch: LaunchFound) -> str | None:
    """Why the flags or the model are not known well enough."""
    if launch.model is None:
        names = ", ".join(launch.unresolved) or "the model"
        return f"model unknown: {names}"
    # Only a whole word that is unknown, or a flag that decides memory, can change the answer.
    flags = [name for name in launch.unresolved_flags if name in _MATTERS]
    if flags:
        return f"unknown value of {', '.join(flags)}"
    settled = {name for names in launch.unresolved_flags.values() for name in names}
    whole = [name for name in launch.unresolved if name not in settled]
    if whole:
        return f"arguments that are not known here: {', '.join(whole)}"
    changed = [name for name in _CHANGES_THE_MODEL if launch.flags.get(name)]
    if changed:
        return f"--{changed[0].replace('_', '-')} changes the model's configuration"
    if not _NAME.fullmatch(launch.model) or Path(launch.model).exists():
        return "the model is a path, and its config.json is not known"
    return None


def _cards(launch: LaunchFound, gpu: str | None) -> list[str]:
    if launch.gpu is None:
        return [gpu] if gpu else []
    return [launch.gpu] if isinstance(launch.gpu, str) else list(launch.gpu)


def _on_card(launch: LaunchFound, card: str, vllm_version: str | None) -> Judged:
    from kvplan.architecture.model_shape import model_shape
    from kvplan.catalog.engines import newest_known_version, rules_for
    from kvplan.catalog.gpus import find_gpu
    from kvplan.catalog.models import find_model
    from kvplan.config.version import parse_vllm_version
    from kvplan.memory.planner import Planner

    assumptions: list[str] = []
    named = vllm_version or launch.vllm_version
    version: VllmVersion = newest_known_version() if named is None else parse_vllm_version(named)
    if named is None:
        assumptions.append(f"vLLM {format_vllm_version(version)}: no image tag or pin names one")
    rules = rules_for(version)
    if rules.newer_than_known:
        assumptions.append(f"vLLM {named} is newer than the rules known here")
    source = find_model(launch.model or "", offline=True)
    assumptions += source.notes
    spec = find_gpu(card)
    if launch.mig is not None:
        raise InputError(f"a MIG slice ({launch.mig}): its memory is not in the catalogue")
    planner = Planner(
        shape=model_shape(source.config),
        model_config=source.config,
        stored=source.weights,
        gpu=spec,
        rules=rules,
        environment=launch.env,
    )
    assumptions += [f"{name}: the written default" for name in launch.defaulted]
    try:
        estimate = planner.estimate(serving(launch))
    except UnsupportedModelError:
        raise
    except InputError as error:
        return Judged(launch, planner, spec, None, error.message, tuple(assumptions))
    return Judged(launch, planner, spec, estimate, None, tuple(assumptions))


def serving(launch: LaunchFound) -> ServingConfig:
    """The launch's flags as the settings that every part of kvplan speaks."""
    flags: dict[str, Any] = {name: value for name, value in launch.flags.items() if name != "model"}
    for name, value in flags.items():
        if name in FIELD_NAMES and isinstance(value, list):
            flags[name] = tuple(value)
    return dataclasses.replace(ServingConfig(model=launch.model).with_flags(**flags))
