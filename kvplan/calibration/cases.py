"""A published launch prepared for the model: everything that does not depend on the coefficients."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.config.defaults import resolve
from kvplan.config.version import parse_vllm_version
from kvplan.errors import InputError, KvplanError, UnknownNameError
from kvplan.memory.hardware import GpuSpec
from kvplan.memory.overhead import overhead_inputs
from kvplan.memory.planner import Planner
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from kvplan.calibration.public_launches import PublicLaunch
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.config.serving import ServingConfig
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.overhead import OverheadInputs
    from kvplan.memory.overhead.coefficients import Coefficients

_GENERATIONS: Final = {
    "turing": (7, 5),
    "volta": (7, 0),
    "v100": (7, 0),
    "ampere": (8, 6),
    "blackwell": (12, 0),
}

_VISIBLE_SHARE: Final = 0.975
"""Of a marketing size in GB, read as GiB: what software sees of it on most cards."""


@dataclass(frozen=True, slots=True)
class Case:
    """One launch, ready to be predicted with any coefficients."""

    launch: PublicLaunch
    planner: Planner
    serving: ServingConfig
    settings: ResolvedSettings
    facts: OverheadInputs
    total_is_known: bool
    """Whether the card's memory is its profile's or the post's own, not read off its marketing size."""

    def predict(self, fitted: Coefficients) -> Estimate:
        """The whole answer, from the names and flags alone.

        Raises:
            InputError: flags that vLLM refuses.
            UnsupportedModelError: no exact rule covers the model with these flags.
        """
        return dataclasses.replace(self.planner, coefficients=fitted).estimate(self.serving)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A launch that could not be prepared or predicted, and why."""

    launch: PublicLaunch
    reason: str


def prepare(
    launches: Iterable[PublicLaunch], profiles_dir: str | None = None
) -> tuple[list[Case], list[Unanswered]]:
    """Every launch whose model, card and version are known here; the others with the reason."""
    cases: list[Case] = []
    missing: list[Unanswered] = []
    for launch in launches:
        try:
            cases.append(case_of(launch, profiles_dir))
        except KvplanError as error:
            missing.append(Unanswered(launch, error.message))
    return cases, missing


def case_of(launch: PublicLaunch, profiles_dir: str | None = None) -> Case:
    """Prepare one launch.

    Raises:
        InputError: the model, the card or the version is not known.
        UnsupportedModelError: no exact rule covers the model.
    """
    from kvplan.architecture.model_shape import model_shape
    from kvplan.catalog.engines import rules_for
    from kvplan.catalog.models import find_model

    version = launch.vllm_version or launch.vllm_inferred
    if launch.model is None or version is None:
        raise InputError(f"{launch.id}: model or version is not stated", "add `model` and `vllm` to its line")
    source = find_model(launch.model, profiles_dir=profiles_dir, offline=True)
    gpu, total_is_known = _card(launch, profiles_dir)
    rules = rules_for(parse_vllm_version(version))
    shape = model_shape(source.config)
    serving = _serving(launch, source.config)
    settings = resolve(serving, rules=rules, gpu=gpu, shape=shape)
    return Case(
        launch=launch,
        planner=Planner(shape=shape, model_config=source.config, stored=source.weights, gpu=gpu, rules=rules),
        serving=serving,
        settings=settings,
        facts=overhead_inputs(shape, source.config, settings, gpu),
        total_is_known=total_is_known,
    )


def _serving(launch: PublicLaunch, config: Mapping[str, Any]) -> ServingConfig:
    """The flags of the launch, among them those that its post only names in words."""
    serving = launch.serving
    if "quantization_config" not in config and launch.quantization in {"fp8", "bitsandbytes"}:
        serving = dataclasses.replace(serving, quantization=launch.quantization)
    if "language-model-only" in launch.other_flags:
        serving = serving.with_flags(language_model_only=True)
    offloaded = re.search(r"--cpu-offload-gb (\d+)", launch.other_flags)
    return serving.with_flags(cpu_offload_gb=int(offloaded[1])) if offloaded else serving


def _card(launch: PublicLaunch, profiles_dir: str | None) -> tuple[GpuSpec, bool]:
    """The card's profile, or what the post says of an unnamed card; whether its size is known."""
    from kvplan.catalog.gpus import find_gpu

    name = launch.gpu or "80GB-class"
    try:
        return find_gpu(name, profiles_dir=profiles_dir), True
    except UnknownNameError:
        total = launch.gpu_total_bytes
        marketing = re.search(r"(\d+) ?GB", name)
        if total is None and marketing is None:
            raise
    known = total is not None
    if total is None and marketing is not None:
        total = round(_VISIBLE_SHARE * int(marketing[1]) * GIB)
    words = re.findall(r"[a-z0-9]+", name.lower())
    generation = next((_GENERATIONS[w] for w in words if w in _GENERATIONS), None)
    if "80gb" in words:
        generation = (9, 0)
    size = total or 0
    return GpuSpec(name, name, size, size, size, compute_capability=generation), known
