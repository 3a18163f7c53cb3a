"""Correct an estimate by what this user's own launches measured."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.serving import ServingConfig
from kvplan.config.version import format_vllm_version, parse_vllm_version
from kvplan.errors import KvplanError
from kvplan.memory.overhead.correction import Correction
from kvplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvplan.config.resolved import ResolvedSettings
    from kvplan.config.version import VllmVersion
    from kvplan.launch import Launch
    from kvplan.memory.planner import Planner

_LEAST_SPREAD: Final = 64 * MIB
"""Two identical launches print figures that differ by a few hundredths of a GiB."""
_LEAVES: Final = 0.5
"""Share of the model's own interval that remains when no launch ran with the sizes asked about."""
_SIZES: Final = ("max_num_batched_tokens", "max_num_seqs", "tensor_parallel_size", "enforce_eager")


def correction_for(
    planner: Planner,
    serving: ServingConfig,
    *,
    models: tuple[str, ...],
    launches: Iterable[Launch],
    store: Path,
) -> Correction | None:
    """What the launches of this model, card and version teach about the settings asked for; None if nothing.

    A launch teaches when it printed its available KV memory: predicted minus measured is what the overhead
    model missed on this machine. The median over launches is the shift; what remains uncertain is their own
    scatter, and half of the model's interval when none of them ran with the same sizes.

    Args:
        planner: answers for the model, card and version, without local calibration.
        serving: the settings that are asked about.
        models: what the model goes by: its id, and its folder if it has one.
        launches: the store.
        store: where it is kept, for the reader.
    """
    asked = planner.estimate(serving)
    lessons = [
        lesson
        for launch in launches
        if _matches(launch, planner, models) and (lesson := _lesson(launch, planner)) is not None
    ]
    if not lessons:
        return None
    import statistics

    shifts = [lesson.shift_bytes for lesson in lessons]
    middle = round(statistics.median(shifts))
    scatter = round(1.5 * statistics.median(abs(s - middle) for s in shifts))
    spread = max(scatter, _LEAST_SPREAD)
    if not any(_same_sizes(lesson.settings, asked.settings) for lesson in lessons):
        interval = asked.budget.available_kv_bytes
        spread = max(spread, round(_LEAVES * (interval.high - interval.low) / 2))
    newest = max((lesson.started_at for lesson in lessons if lesson.started_at), default=None)
    return Correction(middle, spread, len(lessons), newest, str(store))


@dataclass(frozen=True, slots=True)
class _Lesson:
    """One launch against what was predicted for it."""

    shift_bytes: int
    settings: ResolvedSettings
    started_at: str | None


def _same_sizes(one: ResolvedSettings, other: ResolvedSettings) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SIZES)


def _matches(launch: Launch, planner: Planner, models: tuple[str, ...]) -> bool:
    if launch.device != ("cpu" if planner.gpu.platform == "cpu" else "cuda"):
        return False
    if launch.model.rstrip("/") not in {model.rstrip("/") for model in models}:
        return False
    version = launch.facts.vllm_version
    if version is None or not _same_minor(version, planner.rules.asked_version):
        return False
    return planner.gpu.platform == "cpu" or _same_card(launch, planner)


def _same_minor(text: str, version: VllmVersion) -> bool:
    try:
        return parse_vllm_version(text)[:2] == version[:2]
    except KvplanError:
        return text == format_vllm_version(version)


def _same_card(launch: Launch, planner: Planner) -> bool:
    gpu = planner.gpu
    if launch.gpu in {gpu.id, gpu.name}:
        return True
    from kvplan.catalog.gpus import find_gpu

    try:
        return launch.gpu is not None and find_gpu(launch.gpu).id == gpu.id
    except KvplanError:
        return False


def _lesson(launch: Launch, planner: Planner) -> _Lesson | None:
    """Predicted minus measured available KV memory; None where nothing was measured."""
    measured = launch.facts.available_kv_bytes
    if measured is None or launch.settings.get("kv_cache_memory_bytes") is not None:
        return None
    gpu = planner.gpu
    if launch.gpu_total_bytes:
        total = launch.gpu_total_bytes
        gpu = dataclasses.replace(gpu, total_bytes=total, total_bytes_low=total, total_bytes_high=total)
    serving = ServingConfig().with_flags(**{k: _hashable(v) for k, v in launch.settings.items()})
    try:
        answer = dataclasses.replace(planner, gpu=gpu).estimate(serving)
    except KvplanError:
        # Settings that this kvplan refuses teach nothing; vLLM's own word on them is in the store.
        return None
    shift = answer.budget.available_kv_bytes.mid - measured
    return _Lesson(shift, answer.settings, launch.started_at)


def _hashable(value: Any) -> Any:
    """JSON knows no tuples; settings hold no lists."""
    return tuple(value) if isinstance(value, list) else value
