"""The smallest hardware that does it: every known card, one to eight of them, cheapest first."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kvplan.memory.solve import most_requests
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
        concurrency: requests that shall run at once.
        num_tokens: tokens of each of them.
    """
    from kvplan.catalog.gpus import all_gpus

    found = []
    for gpu in all_gpus(profiles_dir=request.profiles):
        if gpu.platform != "cuda":
            continue
        for count in COUNTS:
            serving = request.serving.with_flags(tensor_parallel_size=count)
            variant = ask_variant(
                f"{count} x {gpu.id}" if count > 1 else gpu.id,
                dataclasses.replace(request, gpu=gpu.id, gpu_memory_gib=None, serving=serving),
            )
            if variant.estimate is not None and _does_it(variant.estimate, concurrency, num_tokens):
                found.append(variant)
                break  # more of the same card do it too, and cost more
    return tuple(sorted(found, key=_cost))


def _does_it(answer: Estimate, concurrency: int, num_tokens: int) -> bool:
    fits = most_requests(answer, num_tokens).mid >= concurrency
    return answer.verdict.starts == "yes" and fits and answer.settings.max_num_seqs >= concurrency


def _cost(variant: Variant) -> tuple[bool, float, int]:
    answer = variant.estimate
    assert answer is not None  # noqa: S101  only answered variants are kept above
    price = answer.gpu.usd_per_hour
    return price is None, (price or 0.0) * answer.num_gpus, answer.gpu.total_bytes * answer.num_gpus
