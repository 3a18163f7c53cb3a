"""The value that would pass: found by asking the memory model, never by a rule of thumb."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.gate.rules.base import option
from kvplan.memory.advice import HIGHEST_UTILIZATION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvplan.gate.judge import Judged
    from kvplan.gate.rules.base import Case
    from kvplan.memory.estimate import Estimate

    Test = Callable[[Estimate], bool]
    Change = dict[str, Any]

_SHORTEST_WORTH_NAMING = 256


def starts(estimate: Estimate) -> bool:
    """Whether it is expected to start, with 90 % or more."""
    return estimate.verdict.starts == "yes"


def first_that_passes(case: Case, changes: Iterable[Change], test: Test) -> str | None:
    """The first of the changes that the policy allows, vLLM takes and the test passes, as flags."""
    judged = case.judged
    if judged is None:
        return None
    for change in changes:
        if not all(case.terms.allows(flag, value) for flag, value in change.items() if value is not None):
            continue
        answer = judged.ask(**change)
        if answer is not None and test(answer):
            return as_options(change)
    return None


def as_options(change: Change) -> str:
    """The change as people write it on a command line."""
    words = []
    for flag, value in change.items():
        if value is None:
            words.append(f"without {option(flag)}")
        elif value is True:
            words.append(option(flag))
        else:
            words.append(f"{option(flag)} {value}")
    return " ".join(words)


def more_memory(judged: Judged) -> Iterator[Change]:
    """Changes that leave more for the KV cache: more of the card, then fewer bits, then more cards."""
    if judged.estimate is None:
        return
    settings = judged.estimate.settings
    more: list[Change] = []
    if settings.gpu_memory_utilization < HIGHEST_UTILIZATION and judged.gpu.platform == "cuda":
        more = [{"gpu_memory_utilization": HIGHEST_UTILIZATION}]
        yield from more
    if settings.kv_cache_dtype in {"auto", settings.dtype}:
        fewer: Change = {"kv_cache_dtype": "fp8"}
        yield fewer
        yield from ({**fewer, **change} for change in more)
    for factor in (2, 4, 8):
        yield {"tensor_parallel_size": settings.tensor_parallel_size * factor}


def longest_that_passes(case: Case, test: Test) -> str | None:
    """The longest max_model_len that passes, else other changes that do; None when nothing does."""
    judged = case.judged
    if judged is None or judged.estimate is None:
        return None
    low, high = 0, judged.estimate.max_model_len
    while high - low > 1:
        middle = (low + high) // 2
        answer = judged.ask(max_model_len=middle)
        low, high = (middle, high) if answer is not None and test(answer) else (low, middle)
    if low >= min(_SHORTEST_WORTH_NAMING, judged.estimate.max_model_len):
        # In whole hundreds, as people write it.
        return f"--max-model-len {low // 100 * 100 or low}"
    return first_that_passes(case, _other_shares(judged), test)


def _other_shares(judged: Judged) -> Iterator[Change]:
    """Where no length passes: more cards, or another share of this one."""
    assert judged.estimate is not None  # noqa: S101  the caller looked
    settings = judged.estimate.settings
    for percent in (95, 90, 85, 80, 75, 70):
        yield {"gpu_memory_utilization": percent / 100}
    for size in (2, 4, 8):
        if size > settings.tensor_parallel_size:
            yield {"tensor_parallel_size": size}
