"""Will it start, and with how much to spare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.errors import FailureClass
from kvplan.gate.numbers import headroom_bytes
from kvplan.gate.rules.base import Case, Rule, Sight
from kvplan.gate.rules.passing import first_that_passes, longest_that_passes, starts
from kvplan.memory.advice import HIGHEST_UTILIZATION
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.gate.result import Finding
    from kvplan.memory.estimate import Estimate

_LACK_OF_KV: Final = (FailureClass.KV_TOO_SMALL, FailureClass.NO_KV_MEMORY)


class _Start(Rule):
    """Rules that read the probability of a start."""

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        chance = case.estimate.verdict.probability
        return Sight(f"starts with {round(100 * chance)} %", chance)


class WillNotStart(_Start):
    """vLLM is not expected to start on the card."""

    id = "KVP001"
    name = "will-not-start"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate = case.estimate
        if estimate is None or estimate.verdict.starts != "no":
            return
        # Memory for the KV cache is a matter of the length; any other failure is the launch's as a whole.
        flag = "max_model_len" if estimate.verdict.failure in _LACK_OF_KV else None
        message = f"will not start on {estimate.gpu.name}: {estimate.message}"
        yield self.finding(
            case, message, passes=longest_that_passes(case, starts), flag=flag, limit="more than 10 %"
        )


class Tight(_Start):
    """vLLM may or may not start."""

    id = "KVP002"
    name = "tight"
    severity = "warning"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate = case.estimate
        if estimate is None or estimate.verdict.starts != "tight":
            return
        chance = round(100 * estimate.verdict.probability)
        message = f"may not start on {estimate.gpu.name}: a chance of {chance} %"
        passes = longest_that_passes(case, starts)
        yield self.finding(case, message, passes=passes, flag="max_model_len", limit="at least 90 %")


class UtilizationTooHigh(Rule):
    """The share leaves too little for what vLLM does not count."""

    id = "KVP015"
    name = "utilization-too-high"
    severity = "warning"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate = case.starting
        if estimate is None or estimate.gpu.platform != "cuda":
            return
        share = estimate.settings.gpu_memory_utilization
        if share <= HIGHEST_UTILIZATION or estimate.settings.kv_cache_memory_bytes is not None:
            return
        free = headroom_bytes(estimate) / GIB
        message = (
            f"utilization {share:g} leaves {free:.1f} GiB of the card for what vLLM does not count "
            "(the context, NCCL, fragmentation): out of memory after hours is likely"
        )
        lower = {"gpu_memory_utilization": HIGHEST_UTILIZATION}
        passes = first_that_passes(case, [lower], starts) or longest_at(case, HIGHEST_UTILIZATION)
        limit = f"{HIGHEST_UTILIZATION:g}"
        yield self.finding(case, message, passes=passes, flag="gpu_memory_utilization", limit=limit)

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        share = case.estimate.settings.gpu_memory_utilization
        return Sight(f"{share:g} of the card", -share)


def longest_at(case: Case, share: float) -> str | None:
    """A length that starts with that share of the card."""
    judged = case.judged
    if judged is None or judged.estimate is None:
        return None
    length = judged.estimate.max_model_len
    while length > 256:
        length = length * 3 // 4
        answer = judged.ask(gpu_memory_utilization=share, max_model_len=length)
        if answer is not None and starts(answer):
            return f"--gpu-memory-utilization {share:g} --max-model-len {length}"
    return None


class HeadroomTooSmall(Rule):
    """Less of the card stays free than the policy asks for."""

    id = "KVP024"
    name = "headroom-too-small"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate, least = case.starting, case.terms.min_headroom_bytes
        if estimate is None or least is None:
            return
        free = headroom_bytes(estimate)
        if free >= least:
            return
        message = (
            f"{free / GIB:.1f} GiB of {estimate.gpu.name} stay free, the policy asks for {least / GIB:g} GiB"
        )
        settings = estimate.settings
        given = settings.kv_cache_memory_bytes
        flag = "gpu_memory_utilization" if given is None else "kv_cache_memory_bytes"
        changes = (
            [{flag: percent / 100} for percent in range(int(100 * settings.gpu_memory_utilization), 9, -1)]
            if given is None
            else [{flag: given - (least - free)}]
        )

        def enough(answer: Estimate) -> bool:
            return starts(answer) and headroom_bytes(answer) >= least

        passes = first_that_passes(case, changes, enough)
        yield self.finding(case, message, passes=passes, flag=flag, limit=f"{least / GIB:g} GiB")

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        free = headroom_bytes(case.estimate)
        return Sight(f"{free / GIB:.1f} GiB free", free)


class StartTooUnlikely(_Start):
    """The probability of a start lies below what the policy asks for."""

    id = "KVP025"
    name = "start-too-unlikely"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate, least = case.estimate, case.terms.min_start_probability
        if estimate is None or least is None or estimate.verdict.probability >= least:
            return
        if estimate.verdict.starts == "no" and case.terms.is_on(WillNotStart.id):
            return  # KVP001 says it
        chance = 100 * estimate.verdict.probability
        message = f"starts on {estimate.gpu.name} with {chance:.3g} %, the policy asks for {100 * least:g} %"
        passes = longest_that_passes(case, lambda answer: answer.verdict.probability >= least)
        limit = f"{100 * least:g} %"
        yield self.finding(case, message, passes=passes, flag="max_model_len", limit=limit)
