"""Correct an estimate by what this user's own launches measured."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.serving import ServingConfig
from kvplan.config.version import format_vllm_version, parse_vllm_version
from kvplan.errors import KvplanError
from kvplan.memory.overhead.correction import Correction
from kvplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvplan.config.version import VllmVersion
    from kvplan.launch import Launch
    from kvplan.memory.planner import Planner

_LEAST_SPREAD: Final = 64 * MIB
"""Two identical launches print figures that differ by a few hundredths of a GiB."""
_LEAVES: Final = 0.5
"""A launch with other settings than the one asked about says half of what one with the same settings says."""
_SIZES: Final = ("max_num_batched_tokens", "max_num_seqs", "tensor_parallel_size", "enforce_eager")


def correction_for(
    planner: Planner,
    serving: ServingConfig,
    *,
    model: str,
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
        model: the model's id.
        launches: the store.
        store: where it is kept, for the reader.
    """
    matching = [launch for launch in launches if _matches(launch, planner, model)]
    shifts: list[int] = []
    same_sizes = False
    newest: str | None = None
    for launch in matching:
        shift = _shift(launch, planner)
        if shift is None:
            continue
        shifts.append(shift)
        newest = max(filter(None, (newest, launch.started_at)), default=None)
        given = launch.settings
        same_sizes |= all(given.get(name) == getattr(serving, name) for name in _SIZES)
    if not shifts:
        return None
    middle = round(statistics.median(shifts))
    scatter = round(1.5 * statistics.median(abs(s - middle) for s in shifts)) if len(shifts) > 1 else 0
    spread = max(scatter, _LEAST_SPREAD)
    if not same_sizes:
        interval = planner.estimate(serving).budget.available_kv_bytes
        spread = max(spread, round(_LEAVES * (interval.high - interval.low) / 2))
    return Correction(middle, spread, len(shifts), newest, str(store))


def _matches(launch: Launch, planner: Planner, model: str) -> bool:
    if launch.device != ("cpu" if planner.gpu.platform == "cpu" else "cuda"):
        return False
    if launch.model.rstrip("/") not in {model.rstrip("/"), model.rpartition("/")[2]}:
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


def _shift(launch: Launch, planner: Planner) -> int | None:
    """Predicted minus measured available KV memory of one launch."""
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
        return None
    return answer.budget.available_kv_bytes.mid - measured


def _hashable(value: Any) -> Any:
    """JSON knows no tuples; settings hold no lists."""
    return tuple(value) if isinstance(value, list) else value
