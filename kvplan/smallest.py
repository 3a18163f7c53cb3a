"""The smallest hardware that does it: every known card, one to eight of them, cheapest first."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kvplan.variants import ask_variant

if TYPE_CHECKING:
    from kvplan.memory.estimate import Estimate
    from kvplan.planning import PlanRequest
    from kvplan.variants import Variant

COUNTS: Final = (1, 2, 4, 8)


def smallest_hardware(request: PlanRequest, *, concurrency: int, num_tokens: int) -> tuple[Variant, ...]:
    """Cards (and how many of each) that start and run the target, cheapest first, then smallest.

    Args:
        request: the question; its card and number of cards are varied.
        concurrency: requests that shall run at once; max_num_seqs is raised to it where it is below.
        num_tokens: tokens of each of them; max_model_len is raised to it where it is below.
    """
    from kvplan.catalog.gpus import all_gpus

    found = []
    for gpu in all_gpus(profiles_dir=request.profiles):
        if gpu.platform != "cuda":
            continue
        for count in COUNTS:
            serving = request.serving.with_flags(tensor_parallel_size=count)
            asked = dataclasses.replace(request, gpu=gpu.id, gpu_memory_gib=None, serving=serving)
            name = f"{count} x {gpu.id}" if count > 1 else gpu.id
            variant = ask_variant(name, asked)
            raised = (
                {} if variant.estimate is None else flags_to_raise(variant.estimate, concurrency, num_tokens)
            )
            if raised:
                variant = ask_variant(name, dataclasses.replace(asked, serving=serving.with_flags(**raised)))
            if variant.estimate is not None and _does_it(variant.estimate, concurrency, num_tokens):
                found.append(variant)
                break  # more of the same card do it too, and cost more
    return tuple(sorted(found, key=_cost))


def flags_to_raise(answer: Estimate, concurrency: int, num_tokens: int) -> dict[str, int]:
    """Flags that forbid the target whatever the memory, at the values that allow it."""
    raised = {}
    if answer.max_model_len < num_tokens:
        raised["max_model_len"] = num_tokens
    if answer.settings.max_num_seqs < concurrency:
        raised["max_num_seqs"] = concurrency
    return raised


def _does_it(answer: Estimate, concurrency: int, num_tokens: int) -> bool:
    fits = num_tokens <= answer.max_model_len and answer.capacity.requests(num_tokens).mid >= concurrency
    return answer.verdict.starts == "yes" and fits and answer.settings.max_num_seqs >= concurrency


def _cost(variant: Variant) -> tuple[bool, float, int]:
    answer = variant.estimate
    assert answer is not None  # noqa: S101  only answered variants are kept above
    price = answer.gpu.usd_per_hour
    return price is None, (price or 0.0) * answer.num_gpus, answer.gpu.total_bytes * answer.num_gpus
