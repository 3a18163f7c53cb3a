"""What the workload needs of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.gate.rules.base import Case, Rule, Sight
from kvplan.gate.rules.passing import first_that_passes, more_memory, starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.gate.result import Finding


class TooShortForWorkload(Rule):
    """vLLM would refuse the workload's longest requests."""

    id = "KVP009"
    name = "max-model-len-below-workload"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate = case.starting
        if estimate is None or estimate.lengths is None:
            return
        longest = estimate.lengths.longest_total_len
        if estimate.max_model_len >= longest:
            return
        message = (
            f"max_model_len {estimate.max_model_len} is below the workload's longest request "
            f"({longest} tokens), which vLLM refuses"
        )
        change = {"max_model_len": longest}
        changes = [change]
        if case.judged is not None:
            changes += [{**change, **more} for more in more_memory(case.judged)]
        passes = first_that_passes(case, changes, starts)
        yield self.finding(case, message, passes=passes, flag="max_model_len", limit=f"at least {longest}")

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        length = case.estimate.max_model_len
        return Sight(f"max_model_len {length}", length)


class PrefixCachingOff(Rule):
    """The workload repeats itself, and nothing of it is kept."""

    id = "KVP017"
    name = "prefix-caching-off"
    severity = "warning"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate, workload = case.starting, case.terms.workload
        if estimate is None or workload is None or estimate.settings.enable_prefix_caching:
            return
        shared = workload.shared_prefix_tokens
        if not shared and workload.turns <= 1:
            return
        change = {"enable_prefix_caching": True}
        passes = first_that_passes(case, [change], lambda _: True)
        if passes is None:
            return  # vLLM cannot keep this model's states: nothing to be had
        what = f"a shared prefix of {shared} tokens" if shared else f"conversations of {workload.turns} turns"
        message = f"prefix caching is off and the workload has {what}: each request computes it again"
        yield self.finding(case, message, passes=passes, flag="enable_prefix_caching", limit="on")

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        on = case.estimate.settings.enable_prefix_caching
        return Sight("on" if on else "off", float(on))
