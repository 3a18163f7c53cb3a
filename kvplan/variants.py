"""One question asked of several models, cards or versions: `--compare A B …` and `--gpu all`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.errors import InputError, KvplanError
from kvplan.planning import PlanRequest, plan_for

if TYPE_CHECKING:
    from kvplan.memory.estimate import Estimate
    from kvplan.planning import Planned


@dataclass(frozen=True, slots=True)
class Variant:
    """One column of a comparison: an answer, or why there is none."""

    name: str
    planned: Planned | None
    estimate: Estimate | None
    refusal: str | None = None
    hint: str | None = None
    """What to do about the refusal."""


def ask_variant(name: str, request: PlanRequest) -> Variant:
    """The answer for one variant; what cannot be answered is a row that says why."""
    try:
        planned = plan_for(request)
        return Variant(name, planned, planned.estimate())
    except KvplanError as error:
        return Variant(name, None, None, error.message, error.hint)


def compare(names: list[str], request: PlanRequest) -> tuple[Variant, ...]:
    """Ask the request with each name in turn: a vLLM version, a card or a model.

    Raises:
        InputError: fewer than two names, or a name that is none of the three.
    """
    if len(names) < 2:
        raise InputError("--compare needs two names at least", "name models, cards or vLLM versions")
    return tuple(ask_variant(name, _with(request, name)) for name in names)


def all_cards(request: PlanRequest) -> tuple[Variant, ...]:
    """Every known card, the best first.

    Those that start lead, then those that may; among them those that meet the target, then the cheaper, then
    the smaller one.

    Raises:
        InputError: no card can be asked at all, all for one reason: the fault is the question's.
    """
    from kvplan.catalog.gpus import all_gpus

    cards = [gpu for gpu in all_gpus(profiles_dir=request.profiles) if gpu.platform == "cuda"]
    variants = [ask_variant(gpu.id, dataclasses.replace(request, gpu=gpu.id)) for gpu in cards]
    complaints = {(variant.refusal, variant.hint) for variant in variants}
    if len(complaints) == 1:
        (message, hint), *_ = complaints
        if message is not None:
            raise InputError(message, hint)
    return tuple(sorted(variants, key=_rank))


def meets_target(answer: Estimate) -> bool | None:
    """Whether the target's requests run at once at the P95 length; None without a target."""
    lengths, requests = answer.lengths, answer.capacity.p95
    if lengths is None or lengths.concurrency is None or requests is None:
        return None
    if lengths.total_len.p95 > answer.max_model_len:
        return False  # vLLM refuses requests that are longer than max_model_len
    return min(requests.mid, answer.settings.max_num_seqs) >= lengths.concurrency


def _rank(variant: Variant) -> tuple[int, bool, bool, float, int]:
    if variant.estimate is None:
        return 3, True, True, 0.0, 0
    answer = variant.estimate
    starts = {"yes": 0, "tight": 1, "no": 2}[answer.verdict.starts]
    price = answer.gpu.usd_per_hour
    return starts, meets_target(answer) is False, price is None, price or 0.0, answer.gpu.total_bytes


def _with(request: PlanRequest, name: str) -> PlanRequest:
    """The request with one thing exchanged for what the name names."""
    from kvplan.catalog.gpus import find_gpu
    from kvplan.catalog.models import find_model
    from kvplan.config.version import parse_vllm_version

    if name[:1].isdigit() or name.startswith("v0"):
        try:
            parse_vllm_version(name)
        except InputError:
            pass
        else:
            if "." in name:
                return dataclasses.replace(request, vllm_version=name)
    try:
        find_gpu(name, profiles_dir=request.profiles)
    except InputError as no_gpu:
        try:
            find_model(
                name, profiles_dir=request.profiles, offline=request.offline, revision=request.revision
            )
        except InputError as no_model:
            raise InputError(
                f"--compare: {name!r} is neither a model nor a card nor a vLLM version", no_model.hint
            ) from no_gpu
        return dataclasses.replace(request, model=name)
    return dataclasses.replace(request, gpu=name)
