"""The one change that helps most: each candidate is asked of the memory model itself."""

from __future__ import annotations

from operator import neg
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvplan.config.serving import ServingConfig
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.interval import Interval

HIGHEST_UTILIZATION: Final = 0.95
"""Advice never goes higher: above it, memory that vLLM does not count makes late failures."""


class Advice(FrozenRecord):
    """One change of settings and what it buys."""

    change: dict[str, Any]
    """vLLM flags by name."""
    requests_worst_case: Interval
    """Requests of the served max_model_len at once, after the change."""
    requests_p95: Interval | None
    starts: str
    why: str

    @property
    def costs_cards(self) -> bool:
        """Whether it takes more GPUs: such a change comes last."""
        return "tensor_parallel_size" in self.change


def advise(
    serving: ServingConfig, now: Estimate, ask: Callable[[ServingConfig], Estimate]
) -> tuple[Advice, ...]:
    """Single changes that help, the most helpful first; empty if none does.

    A change helps if the server then starts, or if more requests (at the workload's P95 length if there is
    one, else at max_model_len) run at once. Changes that cost quality or cards say so in `why`.
    """
    found = []
    for change, why in _candidates(now):
        try:
            after = ask(serving.with_flags(**change))
        except InputError:
            continue  # vLLM would refuse it with these flags, or on this card: it is no advice
        if _benefit(after) > _benefit(now):
            found.append(
                (
                    _benefit(after),
                    Advice(
                        change,
                        after.capacity.worst_case,
                        after.capacity.p95,
                        after.verdict.starts,
                        why,
                    ),
                )
            )
    found.sort(key=lambda pair: (pair[1].costs_cards, *map(neg, pair[0])))
    return tuple(advice for _, advice in found)


def _benefit(answer: Estimate) -> tuple[int, int]:
    """Starting comes first, then requests at once, of the length that matters."""
    rank = {"no": 0, "tight": 1, "yes": 2}[answer.verdict.starts]
    requests = answer.capacity.p95 or answer.capacity.worst_case
    return rank, min(requests.mid, answer.settings.max_num_seqs)


def _candidates(now: Estimate) -> Iterator[tuple[dict[str, Any], str]]:
    settings = now.settings
    if now.gpu.platform == "cuda" and settings.gpu_memory_utilization < HIGHEST_UTILIZATION:
        yield (
            {"gpu_memory_utilization": HIGHEST_UTILIZATION},
            "more of the card for KV cache; the tuner finds how far it really goes",
        )
    if settings.kv_cache_dtype in {"auto", settings.dtype}:
        yield {"kv_cache_dtype": "fp8"}, "half the bytes a token; look at answer quality before you serve it"
    fits = now.estimated_max_model_len
    if now.lengths is not None and now.lengths.longest_total_len < now.max_model_len:
        yield (
            {"max_model_len": now.lengths.longest_total_len},
            "the workload's longest request; nothing is reserved for max_model_len, but one must fit",
        )
    elif now.verdict.starts != "yes" and fits:
        yield {"max_model_len": fits}, "the longest request that fits the expected KV cache"
    if settings.max_num_batched_tokens > 2048:
        yield {"max_num_batched_tokens": 2048}, "smaller activations in the profile run; slower prefill"
    if settings.max_num_seqs > 64:
        yield {"max_num_seqs": 64}, "smaller sampler buffers and fewer CUDA graphs"
    if not settings.enforce_eager:
        yield {"enforce_eager": True}, "no CUDA graphs and no compilation; slower decoding"
    yield (
        {"tensor_parallel_size": settings.tensor_parallel_size * 2},
        "twice the cards: half the weights on each, and the KV heads divided",
    )
