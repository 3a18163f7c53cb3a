"""How many requests run at once, against what is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from kvplan.gate.judge import target_of
from kvplan.gate.numbers import at_once
from kvplan.gate.rules.base import Case, Rule, Sight
from kvplan.gate.rules.passing import first_that_passes, more_memory, starts
from kvplan.units import cdiv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.gate.judge import Judged
    from kvplan.gate.result import Finding, Severity
    from kvplan.gate.rules.passing import Test
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.interval import Interval

Which = Literal["p95", "p99", "worst_case"]

_SAID: Final[dict[Which, str]] = {
    "p95": "the workload's P95 length",
    "p99": "the workload's P99 length",
    "worst_case": "max_model_len tokens",
}
_GRADE: Final[dict[Which, Severity]] = {"p95": "error", "p99": "warning", "worst_case": "note"}
_ORDER: Final[tuple[tuple[str, Which], ...]] = (
    ("KVP006", "p95"),
    ("KVP007", "p99"),
    ("KVP008", "worst_case"),
)


class BelowTarget(Rule):
    """Fewer requests of a length run at once than the policy's target."""

    def __init__(self, rule_id: str, which: Which) -> None:
        self.id = rule_id
        self.name = f"below-target-{which.replace('_', '-')}"
        self.severity = _GRADE[which]
        self._which = which

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate, target = case.starting, target_of(case.terms)
        if estimate is None or target is None or self._said_by_a_graver_one(case, estimate, target):
            return
        named = self.id in case.terms.named_rules
        if self._which == "worst_case" and estimate.lengths is not None and not named:
            return  # with a workload nobody means the worst case, unless the policy says so
        if estimate.settings.max_num_seqs * estimate.settings.data_parallel_size < target:
            if self._which == "p95":
                yield self._too_few_seqs(case, estimate, target)
            return
        held = _held(estimate, self._which)
        if held is None or held.low >= target:
            return
        # Surely below is what the rule says; perhaps below is a warning at most.
        severity = self.severity if held.high < target or self.severity == "note" else "warning"
        spread = "" if held.exact else f" ({held.low} to {held.high})"
        message = (
            f"{held.mid}{spread} requests of {_SAID[self._which]} run at once on {estimate.gpu.name}, "
            f"the target is {target}"
        )
        yield self.finding(
            case,
            message,
            passes=self._passing(case, held, target),
            severity=severity,
            limit=f"{target} requests",
            flag="max_model_len" if self._which == "worst_case" else None,
        )

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        held = None if case.estimate is None else _held(case.estimate, self._which)
        return None if held is None else Sight(f"{held.mid} requests", held.mid)

    def _said_by_a_graver_one(self, case: Case, estimate: Estimate, target: int) -> bool:
        for rule, which in _ORDER:
            if which == self._which:
                return False
            held = _held(estimate, which)
            if held is not None and held.low < target and case.terms.is_on(rule):
                return True
        return False

    def _too_few_seqs(self, case: Case, estimate: Estimate, target: int) -> Finding:
        ranks = estimate.settings.data_parallel_size
        message = (
            f"at most {estimate.settings.max_num_seqs * ranks} requests run at once, the target is {target}"
        )
        change = {"max_num_seqs": cdiv(target, ranks)}

        def enough(answer: Estimate) -> bool:
            held = _held(answer, "p95")
            return starts(answer) and (held is None or held.low >= target)

        more = [change]
        if case.judged is not None:
            more += [{**change, **other} for other in more_memory(case.judged)]
        passes = first_that_passes(case, more, enough)
        return self.finding(case, message, passes=passes, flag="max_num_seqs", limit=f"{target} requests")

    def _passing(self, case: Case, held: Interval, target: int) -> str | None:
        def enough(answer: Estimate) -> bool:
            now = _held(answer, self._which)
            return starts(answer) and now is not None and now.low >= target

        found = first_that_passes(case, more_memory(case.judged), enough) if case.judged is not None else None
        return found or f"target_concurrency {held.low} in the policy"


def _held(estimate: Estimate, which: Which) -> Interval | None:
    """Requests of that length at once, by memory and max_num_seqs."""
    count: Interval | None = getattr(estimate.capacity, which)
    return None if count is None else count.map(lambda requests: at_once(estimate, requests))


class SeqsUnreachable(Rule):
    """max_num_seqs promises more than the KV cache holds."""

    id = "KVP013"
    name = "max-num-seqs-unreachable"
    severity = "warning"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate = case.starting
        if estimate is None or "max_num_seqs" not in case.launch.flags:
            return
        seqs = estimate.settings.max_num_seqs
        # Without a workload only requests of a single block are sure to be too many.
        held = estimate.capacity.mean or estimate.capacity.requests(estimate.plan.block_size)
        if held.high >= seqs:
            return
        of = (
            "the workload's mean length"
            if estimate.lengths is not None
            else f"{estimate.plan.block_size} tokens"
        )
        message = (
            f"max_num_seqs {seqs} is never reached: the KV cache holds {held.mid} requests of {of}, and the "
            "rest waits or is preempted"
        )
        passes = f"--max-num-seqs {max(held.high, 1)}"
        yield self.finding(
            case, message, passes=passes, flag="max_num_seqs", limit=f"at most {max(held.high, 1)}"
        )

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        seqs = case.estimate.settings.max_num_seqs
        return Sight(f"max_num_seqs {seqs}", -seqs)


class SeqsTooFew(Rule):
    """max_num_seqs leaves KV cache that no request can ever use."""

    id = "KVP014"
    name = "max-num-seqs-too-small"
    severity = "note"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate = case.starting
        if estimate is None or "max_num_seqs" not in case.launch.flags:
            return
        seqs = estimate.settings.max_num_seqs
        held = estimate.capacity.worst_case
        target = target_of(case.terms)
        if held.low <= seqs or (target is not None and seqs >= target):
            return
        message = (
            f"max_num_seqs {seqs} leaves KV cache unused: even {held.low} requests of max_model_len "
            f"{estimate.max_model_len} fit at once"
        )

        def used(answer: Estimate) -> bool:
            return starts(answer) and answer.capacity.worst_case.low <= answer.settings.max_num_seqs

        batch = max(estimate.settings.max_num_batched_tokens, held.low)
        changes = [
            {"max_num_seqs": held.low},
            {"max_num_seqs": held.low, "max_num_batched_tokens": batch},
        ]
        passes = first_that_passes(case, changes, used)
        yield self.finding(case, message, passes=passes, flag="max_num_seqs", limit=f"at least {held.low}")

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        seqs = case.estimate.settings.max_num_seqs
        return Sight(f"max_num_seqs {seqs}", seqs)


class CapacityRegression(Rule):
    """The launch holds less than the base's by more than the policy allows."""

    id = "KVP022"
    name = "capacity-regression"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        estimate, allowed = case.starting, case.terms.max_capacity_regression_percent
        if estimate is None or allowed is None or case.base is None or case.base.estimate is None:
            return
        before = _tokens(case.base.estimate) * case.base_replicas
        now = _tokens(estimate) * case.replicas
        least = before * (1 - allowed / 100)
        if before <= 0 or now >= least:
            return
        message = (
            f"holds {now:,.0f} KV tokens{_copies(case.replicas)}, {100 * (1 - now / before):.1f} % less than "
            f"the base ({before:,.0f}{_copies(case.base_replicas)}); the policy allows {allowed:g} %"
        )

        def enough(answer: Estimate) -> bool:
            return starts(answer) and _tokens(answer) * case.replicas >= least

        passes = self._passing(case, enough)
        yield self.finding(
            case, message, passes=passes, limit=f"at least {least:,.0f} tokens", flag=_first_change(case)
        )

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        tokens = _tokens(case.estimate) * case.replicas
        return Sight(f"{tokens:,.0f} KV tokens{_copies(case.replicas)}", tokens)

    @staticmethod
    def _passing(case: Case, enough: Test) -> str | None:
        judged, base = case.judged, case.base
        if judged is None or base is None:
            return None
        undo = [{flag: value} for flag, value in _changed_flags(judged, base)]
        found = first_that_passes(case, [*undo, *more_memory(judged)], enough)
        if found is None and case.replicas < case.base_replicas:
            return f"replicas: {case.base_replicas}"
        return found


def _tokens(estimate: Estimate) -> float:
    """KV tokens of all data-parallel ranks, as far as max_num_seqs requests of the workload can fill them."""
    tokens: float = max(estimate.capacity.tokens.mid, 0)
    if estimate.lengths is not None:
        tokens = min(tokens, estimate.settings.max_num_seqs * estimate.lengths.total_len.p95)
    return tokens * estimate.settings.data_parallel_size


def _copies(replicas: int) -> str:
    return "" if replicas == 1 else f" in {replicas} replicas"


def _changed_flags(judged: Judged, base: Judged) -> Iterator[tuple[str, object]]:
    """Flags that differ, with the base's value; None where the base does not give them."""
    now, before = judged.serving.given(), base.serving.given()
    for flag in {**now, **before}:
        if flag != "model" and now.get(flag) != before.get(flag):
            yield flag, before.get(flag)


def _first_change(case: Case) -> str | None:
    if case.judged is None or case.base is None:
        return None
    changed = (flag for flag, _ in _changed_flags(case.judged, case.base))
    return next((flag for flag in changed if flag in case.launch.places), None)
