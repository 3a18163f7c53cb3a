"""Put a launch to the memory model: an estimate on each card it may run on, or why there is none."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.serving import FIELD_NAMES, ServingConfig
from kvplan.config.version import format_vllm_version
from kvplan.errors import InputError, KvplanError, UnsupportedModelError
from kvplan.gate.globs import value_matches
from kvplan.gate.refusal import Refusal, explain_refusal
from kvplan.gate.terms import NO_TERMS, Terms
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.architecture.model_shape import ModelShape
    from kvplan.catalog.model_source import ModelSource
    from kvplan.config.version_rules import VersionRules
    from kvplan.gate.found import LaunchFound
    from kvplan.memory.capacity import RequestLengths
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.planner import Planner

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_MATTERS: Final = FIELD_NAMES - {"model"}
_A_PATH: Final = "the model is a path, and its config.json is not known (the policy's `model:` would tell)"
_PARALLEL: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
)
_MOST_RANKS: Final = 1024
"""Beyond it a size is a slip or meant to keep the gate busy."""
_STATE_DTYPES: Final = frozenset({None, "auto", "float32", "float16", "bfloat16"})
_CHANGES_THE_MODEL: Final = (
    "hf_overrides",
    "hf_config_path",
    "rope_scaling",
    "rope_theta",
    "model_class_overrides",
)
"""With these vLLM serves another configuration than the one that is known by the model's name."""


class Judged(FrozenRecord):
    """A launch with its estimate on the card that serves least of those it may run on."""

    launch: LaunchFound
    planner: Planner
    serving: ServingConfig
    gpu: GpuSpec
    estimate: Estimate | None
    """None when vLLM refuses the flags before it looks at memory."""
    refusal: Refusal | None
    """Why it refuses them."""
    assumptions: tuple[str, ...]

    def ask(self, **flags: Any) -> Estimate | None:
        """The estimate with some flags changed (None takes one away); None where vLLM refuses them."""
        try:
            return self.planner.estimate(self.serving.with_flags(**flags))
        except InputError:
            return None


class NotJudged(FrozenRecord):
    """A launch that nothing sound can be said about, with the reason."""

    launch: LaunchFound
    reason: str


def judge(
    launch: LaunchFound,
    terms: Terms = NO_TERMS,
    *,
    gpu: str | None = None,
    vllm_version: str | None = None,
) -> Judged | NotJudged:
    """Judge one launch.

    Args:
        launch: what was read.
        terms: what the policy says of its path.
        gpu: the card for launches whose files name none.
        vllm_version: judge with this version, whatever the launch pins.
    """
    model = _model(launch, terms)
    reason = _undecided(launch, model)
    if reason is not None:
        return NotJudged(launch, reason)
    cards = cards_of(launch, terms, gpu)
    if not cards:
        return NotJudged(
            launch, "GPU unknown: no label, resource or field names it (give --gpu, or `gpu:` in the policy)"
        )
    try:
        judged = [_on_card(launch, terms, str(model), card, vllm_version) for card in cards]
    except UnsupportedModelError as error:
        return NotJudged(launch, f"no exact rule for this launch: {error.message}")
    except KvplanError as error:
        return NotJudged(launch, f"{error.message} ({error.hint})" if error.hint else error.message)
    return min(judged, key=_chance)


def version_rules_of(launch: LaunchFound, vllm_version: str | None = None) -> VersionRules | None:
    """The rules of the release that the launch is judged with; None where no release is named."""
    named = vllm_version or launch.vllm_version
    return None if named is None else _rules_named(named)


@functools.cache
def newest_rules() -> VersionRules:
    """The rules of the newest release that is known here, looked up once for all launches that name none."""
    from kvplan.catalog.engines import newest_known_version, rules_for

    return rules_for(newest_known_version())


@functools.lru_cache(maxsize=256)
def _rules_named(version: str) -> VersionRules | None:
    from kvplan.catalog.engines import rules_for
    from kvplan.config.version import parse_vllm_version

    try:
        return rules_for(parse_vllm_version(version))
    except InputError:
        return None


def _chance(judged: Judged) -> float:
    return judged.estimate.verdict.probability if judged.estimate is not None else -1.0


def _is_name(model: str) -> bool:
    return bool(_NAME.fullmatch(model)) and not Path(model).exists()


def _model(launch: LaunchFound, terms: Terms) -> str | None:
    """The model that is asked about: the file's, else the policy's where that is unknown or a path."""
    if terms.model is not None and (launch.model is None or not _is_name(launch.model)):
        return terms.model
    return launch.model if launch.model is None or _is_name(launch.model) else ""


def _undecided(launch: LaunchFound, model: str | None) -> str | None:
    """Why the flags or the model are not known well enough."""
    settled = {name for flag, names in launch.unresolved_flags.items() if flag != "model" for name in names}
    if model is None:
        own = launch.unresolved_flags.get("model") or [one for one in launch.unresolved if one not in settled]
        names = ", ".join(own) or "the model"
        return f"model unknown: {names} (a value in the policy's `assume:`, or its `model:`, would tell)"
    # Only a whole word that is unknown, or a flag that decides memory, can change the answer.
    flags = [name for name in launch.unresolved_flags if name in _MATTERS]
    if flags:
        deciding = dict.fromkeys(name for flag in flags for name in launch.unresolved_flags[flag])
        by = f": {', '.join(deciding)} (a value in the policy's `assume:` would tell)" if deciding else ""
        return f"unknown value of {', '.join(flags)}{by}"
    settled.update(launch.unresolved_flags.get("model", ()))
    whole = [name for name in launch.unresolved if name not in settled]
    if whole:
        told = "a value in the policy's `assume:` would tell"
        return f"arguments that are not known here: {', '.join(whole)} ({told})"
    changed = [name for name in _CHANGES_THE_MODEL if launch.flags.get(name)]
    if changed:
        return f"--{changed[0].replace('_', '-')} changes the model's configuration"
    return None if model else _A_PATH


def cards_of(launch: LaunchFound, terms: Terms, gpu: str | None) -> list[str]:
    """The cards that the launch may run on: mapped by the policy, named by the file, given, or the policy's.

    Where the file names several, they are alternatives.
    """
    named = [] if launch.gpu is None else [launch.gpu] if isinstance(launch.gpu, str) else list(launch.gpu)
    signs = [f"{label}={value}" for label, value in launch.hints.items()]
    mapped = [card for sign in signs for pattern, card in terms.gpu_map if value_matches(pattern, sign)]
    if mapped:
        return list(dict.fromkeys(mapped))
    products = {pattern: card for pattern, card in terms.gpu_map if "=" not in pattern}
    if named:
        return [products.get(name, name) for name in named]
    given = gpu or terms.gpu
    return [given] if given else []


def _on_card(launch: LaunchFound, terms: Terms, model: str, card: str, vllm_version: str | None) -> Judged:
    from kvplan.catalog.engines import rules_for
    from kvplan.config.version import parse_vllm_version

    assumptions: list[str] = []
    named = vllm_version or launch.vllm_version
    if named is None:
        rules = newest_rules()
        assumptions.append(
            f"vLLM {format_vllm_version(rules.version)}: no image tag, pin or policy names one"
        )
    else:
        rules = version_rules_of(launch, vllm_version) or rules_for(parse_vllm_version(named))
    if rules.newer_than_known:
        raise InputError(
            f"vLLM {named} is newer than the rules known here ({format_vllm_version(rules.version)})",
            "update kvplan, or judge with --vllm-version",
        )
    if launch.mig is not None:
        raise InputError(
            f"a MIG slice ({launch.mig}): its memory is not in the catalogue",
            "a profile of your own may hold its memory (docs/profiles.md)",
        )
    spec = _known_card(card)
    if spec.platform == "other":
        raise InputError(
            f"{spec.name}: no rules for vLLM's memory on cards that are not NVIDIA's", "name an NVIDIA card"
        )
    source, _ = _known_model(model)
    assumptions += source.notes
    if model != launch.model:
        assumptions.append(f"model {model}: the policy's")
    if not launch.gpu and not launch.hints:
        assumptions.append(f"GPU {spec.name}: not named by the file")
    assumptions += [f"{name}: the written default" for name in launch.defaulted]
    assumptions += [f"{name}: assumed by the policy" for name in launch.assumed]
    settings = serving_of(launch, model)
    _refuse_what_is_not_modelled(settings, launch.env)
    planner = _planner(model, card, rules, tuple(sorted(launch.env.items())), _lengths(terms))
    planner = _calibrated(planner, settings, source, terms, assumptions)
    try:
        estimate = planner.estimate(settings)
    except UnsupportedModelError:
        raise
    except InputError as error:
        refusal = explain_refusal(planner, settings, error)
        return Judged(launch, planner, settings, spec, None, refusal, tuple(assumptions))
    return Judged(launch, planner, settings, spec, estimate, None, tuple(assumptions))


def _refuse_what_is_not_modelled(settings: ServingConfig, environment: Mapping[str, str]) -> None:
    """What kvplan has no figures for is no refusal of vLLM's: it makes the launch one that is not judged.

    Raises:
        InputError: a flag or variable that changes the budget in a way that is not modelled.
    """
    from kvplan.config.side_memory import side_memory

    for flag in _PARALLEL:
        size = getattr(settings, flag)
        if size is not None and size > _MOST_RANKS:
            raise InputError(
                f"--{flag.replace('_', '-')} {size}: no such cluster is known here", "is it a typing mistake?"
            )
    for flag in ("mamba_cache_dtype", "mamba_ssm_cache_dtype"):
        if getattr(settings, flag) not in _STATE_DTYPES:
            raise InputError(
                f"--{flag.replace('_', '-')}: not a dtype that is known here",
                "auto, float32, float16 or bfloat16",
            )
    for flag in ("cpu_offload_gb", "max_loras", "max_lora_rank"):
        size = settings.other_flags.get(flag)
        if size is not None and not (isinstance(size, int | float) and 0 <= size < math.inf):
            raise InputError(f"--{flag.replace('_', '-')}: not a size", "give a number from 0 up")
    speculative = settings.other_flags.get("speculative_config")
    if speculative is not None and not isinstance(speculative, dict | str):
        raise InputError("--speculative-config: not a JSON object", "write it as JSON, in braces")
    side_memory(settings.other_flags, environment)


def _known_model(model: str) -> tuple[ModelSource, ModelShape]:
    found = _look_up(model)
    if isinstance(found, KvplanError):
        raise found
    return found


@functools.lru_cache(maxsize=512)
def _look_up(model: str) -> tuple[ModelSource, ModelShape] | KvplanError:
    """The model, or why it is not known: also that is looked up once, however many launches name it."""
    from kvplan.architecture.model_shape import model_shape
    from kvplan.catalog.models import find_model

    try:
        source = find_model(model, offline=True)
    except KvplanError as error:
        return InputError(error.message, f"`kvplan profiles add {model}` where the hub can be reached")
    try:
        return source, model_shape(source.config)
    except KvplanError as error:
        return error.with_traceback(None)


@functools.lru_cache(maxsize=256)
def _known_card(name: str) -> GpuSpec:
    from kvplan.catalog.gpus import find_gpu

    return find_gpu(name)


@functools.lru_cache(maxsize=256)
def _planner(
    model: str,
    card: str,
    rules: VersionRules,
    environment: tuple[tuple[str, str], ...],
    lengths: RequestLengths | None,
) -> Planner:
    """One planner for all launches that it can answer: what it computes once is most of the work."""
    from kvplan.memory.planner import Planner

    source, shape = _known_model(model)
    return Planner(
        shape=shape,
        model_config=source.config,
        stored=source.weights,
        gpu=_known_card(card),
        rules=rules,
        lengths=lengths,
        environment=dict(environment),
    )


def _lengths(terms: Terms) -> RequestLengths | None:
    if terms.workload is None:
        return None
    from kvplan.planning import lengths_of

    return lengths_of(terms.workload, target_of(terms))


def target_of(terms: Terms) -> int | None:
    """Requests that shall run at once: the policy's figure, else the users of its workload."""
    if terms.target_concurrency is not None or terms.workload is None:
        return terms.target_concurrency
    return terms.workload.concurrency


def _calibrated(
    planner: Planner, settings: ServingConfig, source: ModelSource, terms: Terms, assumptions: list[str]
) -> Planner:
    """The planner corrected by the launches that lie in the repository; this machine's play no part."""
    if terms.calibration is None:
        return planner
    import dataclasses

    from kvplan.calibration.local import correction_for

    try:
        correction = correction_for(
            planner,
            settings,
            models=(source.id, source.path or source.id),
            launches=terms.calibration.launches,
            store=Path(terms.calibration.path),
        )
    except InputError:
        return planner  # vLLM refuses these flags: there is nothing to correct
    if correction is None:
        return planner
    assumptions.append(correction.describe())
    return dataclasses.replace(planner, correction=correction)


def serving_of(launch: LaunchFound, model: str | None = None) -> ServingConfig:
    """The launch's flags as the settings that every part of kvplan speaks."""
    flags: dict[str, Any] = {name: value for name, value in launch.flags.items() if name != "model"}
    for name, value in flags.items():
        if name in FIELD_NAMES and isinstance(value, list):
            flags[name] = tuple(value)
    return ServingConfig(model=model or launch.model).with_flags(**flags)
