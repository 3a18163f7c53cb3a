"""From what a user names (model, card, version, workload) to a Planner, and what was assumed on the way."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING

from kvplan.config.serving import ServingConfig
from kvplan.config.version import format_vllm_version, parse_vllm_version
from kvplan.errors import InputError
from kvplan.foreign import reading
from kvplan.memory.capacity import LengthSummary, RequestLengths
from kvplan.memory.hardware import GpuSpec, cpu_spec
from kvplan.memory.planner import Planner
from kvplan.record import FrozenRecord
from kvplan.units import bytes_from_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.catalog.model_source import ModelSource
    from kvplan.config.version import VllmVersion
    from kvplan.load.workload import Workload
    from kvplan.memory.estimate import Estimate


class PlanRequest(FrozenRecord):
    """What the user gave; None is "not given" and is taken from .kvplan.yaml, found, or asked for by name."""

    model: str | None = None
    gpu: str | None = None
    gpu_memory_gib: float | None = None
    device: str | None = None
    vllm_version: str | None = None
    serving: ServingConfig = dataclasses.field(default_factory=ServingConfig)
    target_concurrency: int | None = None
    input_len: int | None = None
    output_len: int | None = None
    workload: str | None = None
    profiles: str | None = None
    revision: str | None = None
    offline: bool = False
    local_calibration: bool = True
    used_gib: float | None = None
    """Memory that others use on the card; None: what is seen on a card found here, else nothing."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """VLLM_* variables of the server, given by name; those of this shell are added."""


class Planned(FrozenRecord):
    """A planner, what it is about, and what was assumed."""

    planner: Planner
    source: ModelSource
    serving: ServingConfig
    assumptions: tuple[str, ...]
    """One line each: what was not given, and what was taken in its place."""
    warnings: tuple[str, ...]

    def estimate(self) -> Estimate:
        """The answer for the settings that were asked about.

        Raises:
            InputError, UnsupportedModelError: as `Planner.estimate`; also a config.json of somebody's that
                holds what no config holds.
        """
        with reading(f"config.json of {self.source.id}"):
            return self.planner.estimate(self.serving)


def plan_for(request: PlanRequest) -> Planned:
    """Find everything that the request names.

    Raises:
        InputError: something is unknown, malformed or missing; the message names the flag.
        UnsupportedModelError: the architecture has no exact rule.
    """
    from kvplan.architecture.model_shape import model_shape
    from kvplan.catalog.engines import rules_for
    from kvplan.catalog.models import find_model

    request, assumptions = _from_project_file(request)
    warnings: list[str] = []
    model = request.model or request.serving.model
    if model is None:
        raise InputError("no model given", "name one: --model qwen2-7b, a folder, or a hub id")
    source = find_model(
        model, profiles_dir=request.profiles, offline=request.offline, revision=request.revision
    )
    gpu, used_bytes = _card(request, assumptions, warnings)
    version = _version(request, assumptions)
    rules = rules_for(version)
    if rules.newer_than_known:
        warnings.append(
            f"vLLM {format_vllm_version(version)} is newer than the rules known here: answered with those of "
            f"{format_vllm_version(rules.version)}"
        )
    with reading(f"config.json of {source.id}"):
        shape = model_shape(source.config)
    if request.used_gib is not None and request.used_gib < 0:
        raise InputError(f"--used-gib {request.used_gib:g} is negative", "give what others use, from 0 up")
    planner = Planner(
        shape=shape,
        model_config=source.config,
        stored=source.weights,
        gpu=gpu,
        rules=rules,
        lengths=request_lengths(request),
        used_bytes=used_bytes if request.used_gib is None else bytes_from_gib(request.used_gib, "--used-gib"),
        environment=_environment(request, assumptions),
    )
    if request.local_calibration:
        _correct(planner, request.serving, source, assumptions, warnings)
    return Planned(planner, source, request.serving, tuple(assumptions), tuple(warnings))


def _correct(
    planner: Planner,
    serving: ServingConfig,
    source: ModelSource,
    assumptions: list[str],
    warnings: list[str],
) -> None:
    """Let the user's own launches of this model, card and version correct the planner; say so."""
    from kvplan.calibration.store import remembered, store_path
    from kvplan.config.project_file import read_project_file

    store = store_path(read_project_file())
    if not store.exists():
        return
    launches, damaged = remembered(store)
    if damaged:
        warnings.append(f"{store}: {damaged} lines are not launches and were left out")
    from kvplan.calibration.local import correction_for

    names = (source.id, source.path or source.id)
    planner.correction = correction_for(planner, serving, models=names, launches=launches, store=store)
    if planner.correction is not None:
        assumptions.append(planner.correction.describe())


def _from_project_file(request: PlanRequest) -> tuple[PlanRequest, list[str]]:
    """Fill gaps from .kvplan.yaml in the current directory; say what was taken from it."""
    from kvplan.config.project_file import FILE_NAME, read_project_file

    project = read_project_file()
    if project is None:
        return request, []
    names = ["vllm_version"]
    if request.serving.model is None:
        names.append("model")
    if request.gpu is None and request.gpu_memory_gib is None and request.device is None:
        names += ["gpu", "gpu_memory_gib", "device"]
    if request.input_len is None and request.output_len is None:
        names += ["workload", "target_concurrency"]
    taken = {
        name: value
        for name in names
        if getattr(request, name) is None and (value := getattr(project, name)) is not None
    }
    assumptions = [f"{name} {value} ({FILE_NAME})" for name, value in taken.items()]
    return dataclasses.replace(request, **taken), assumptions


def _environment(request: PlanRequest, assumptions: list[str]) -> dict[str, str]:
    """Variables that change vLLM's budget: given by name, or set in this shell, which a server inherits."""
    from kvplan.config.side_memory import VARIABLES

    inherited = {
        name: value
        for name in VARIABLES
        if (value := os.environ.get(name)) and name not in request.environment
    }
    assumptions += [f"{name}={value} (this shell's environment)" for name, value in inherited.items()]
    return {**inherited, **request.environment}


def _version(request: PlanRequest, assumptions: list[str]) -> VllmVersion:
    from kvplan.catalog.engines import installed_vllm_version, newest_known_version

    if request.vllm_version is not None:
        return parse_vllm_version(request.vllm_version)
    installed = installed_vllm_version()
    version = installed or newest_known_version()
    how = "the one installed here" if installed else "the newest known"
    assumptions.append(f"vLLM {format_vllm_version(version)} ({how}; --vllm-version)")
    return version


def _card(request: PlanRequest, assumptions: list[str], warnings: list[str]) -> tuple[GpuSpec, int]:
    """The card, and the bytes in use on it now (0 unless it is this machine's)."""
    asked = request.gpu_memory_gib
    size = None if asked is None else bytes_from_gib(asked, "--gpu-memory-gib")
    if size is not None and size <= 0:
        raise InputError(
            f"--gpu-memory-gib {request.gpu_memory_gib:g} is not a size", "give a positive number"
        )
    if request.device not in {None, "cuda", "cpu"}:
        raise InputError(f"--device {request.device!r} is not known", "cuda or cpu")
    if request.device == "cpu" or (request.gpu or "").lower() == "cpu":
        return _cpu_card(size, assumptions), 0
    if request.gpu is not None:
        from kvplan.catalog.gpus import find_gpu

        gpu = find_gpu(request.gpu, profiles_dir=request.profiles)
        if size is not None:
            gpu = dataclasses.replace(gpu, total_bytes=size, total_bytes_low=size, total_bytes_high=size)
        return gpu, 0
    if size is not None:
        warnings.append(
            "the card is known by its memory alone: what its generation cannot run is not checked, and the "
            "prediction is wider"
        )
        return GpuSpec("custom", f"{request.gpu_memory_gib:g} GiB card", size, size, size), 0
    return _detected_card(request, assumptions, warnings)


def _cpu_card(size: int | None, assumptions: list[str]) -> GpuSpec:
    """vLLM's CPU backend: memory of the given size, or what an explicit KV size makes irrelevant."""
    if size is not None:
        return cpu_spec(size)
    total = _machine_memory_bytes()
    assumptions.append(f"memory of this machine, {total:,} B (--gpu-memory-gib)")
    return cpu_spec(total)


def _machine_memory_bytes() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _detected_card(request: PlanRequest, assumptions: list[str], warnings: list[str]) -> tuple[GpuSpec, int]:
    from kvplan.catalog.gpus import detect_gpus

    found = detect_gpus(profiles_dir=request.profiles)
    if not found:
        raise InputError(
            "no GPU given and none found here through NVML",
            "name one: --gpu 4090, or its memory: --gpu-memory-gib 24, or --device cpu",
        )
    card = found[0]
    assumptions.append(f"GPU 0 of this machine: {card.spec.name} (--gpu)")
    if len(found) > 1:
        warnings.append(f"{len(found)} GPUs are here; the figures are of GPU 0")
    warnings += card.notes
    return card.spec, card.used_bytes


def request_lengths(request: PlanRequest) -> RequestLengths | None:
    """The workload's lengths, from a file or preset, or from two fixed lengths.

    Raises:
        InputError: half a workload, or a malformed file.

    A target without lengths is no workload yet: it can be solved for (`--solve`), not judged.
    """
    if request.workload is not None:
        from kvplan.load.workload import load_workload

        traffic = load_workload(request.workload)
        return lengths_of(traffic, request.target_concurrency or traffic.concurrency)
    if request.input_len is None and request.output_len is None:
        return None
    if request.input_len is None or request.output_len is None:
        missing = "--input-len" if request.input_len is None else "--output-len"
        raise InputError(f"{missing} is missing", "a request is a prompt and an answer")
    if min(request.input_len, request.output_len) < 1:
        raise InputError("--input-len and --output-len must be at least 1", "give them in tokens")

    def fixed(tokens: int) -> LengthSummary:
        return LengthSummary(tokens, tokens, tokens)

    total = request.input_len + request.output_len
    return RequestLengths(
        request.target_concurrency,
        fixed(request.input_len),
        fixed(request.output_len),
        fixed(total),
        total,
        ((total, 1),),
    )


def lengths_of(workload: Workload, target_concurrency: int | None) -> RequestLengths:
    """A workload's lengths as the memory model reads them: means rounded up, quantiles as they occur."""
    return RequestLengths(
        concurrency=target_concurrency,
        input_len=LengthSummary(
            math.ceil(workload.mean_input_len),
            workload.input_len_quantile(0.95),
            workload.input_len_quantile(0.99),
        ),
        output_len=LengthSummary(
            math.ceil(workload.mean_output_len),
            workload.output_len_quantile(0.95),
            workload.output_len_quantile(0.99),
        ),
        total_len=LengthSummary(
            math.ceil(workload.mean_total_len),
            workload.total_len_quantile(0.95),
            workload.total_len_quantile(0.99),
        ),
        longest_total_len=workload.longest_total_len,
        total_lens=tuple(sorted((s.total_len, s.count) for s in workload.samples)),
    )
