"""What a rule is asked about, and what it answers with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.gate.judge import version_rules_of
from kvplan.gate.result import Finding
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.config.version_rules import VersionRules
    from kvplan.gate.found import LaunchFound
    from kvplan.gate.judge import Judged
    from kvplan.gate.result import Severity
    from kvplan.gate.terms import Terms
    from kvplan.memory.estimate import Estimate


class Case(FrozenRecord):
    """One launch, the terms it is held to, and what is known of it."""

    launch: LaunchFound
    terms: Terms
    judged: Judged | None = None
    """None when nothing sound can be said of its memory; rules that read only the flags are asked anyway."""
    base: Judged | None = None
    """The same launch in the base, where that was judged."""
    neighbours: tuple[LaunchFound, ...] = ()
    """Launches of the same file, this one among them."""
    vllm_version: str | None = None
    """The release that the run was told to judge with."""
    replicas: int = 1
    """Copies of the launch, where both it and its counterpart say how many; else one each."""
    base_replicas: int = 1

    @property
    def estimate(self) -> Estimate | None:
        """The estimate; None when it was not judged or vLLM refuses the flags."""
        return self.judged.estimate if self.judged is not None else None

    @property
    def starting(self) -> Estimate | None:
        """The estimate of a launch that may start: what it serves matters only then."""
        estimate = self.estimate
        return estimate if estimate is not None and estimate.verdict.starts != "no" else None

    @property
    def version_rules(self) -> VersionRules | None:
        """The rules of the release that is named; None where none is."""
        return version_rules_of(self.launch, self.vllm_version)


class Sight(FrozenRecord):
    """What a rule sees in a launch, whether it passes or not."""

    text: str
    goodness: float
    """Larger is better: a finding whose goodness fell is worse than the base's."""


class Rule:
    """A question to one launch."""

    id: str
    name: str
    severity: Severity = "error"
    """Without a policy; a finding may be milder."""
    each_flag = False
    """Whether a launch may have one finding for each of several flags."""

    def check(self, case: Case) -> Iterator[Finding]:
        """The findings; none when the launch passes."""
        raise NotImplementedError

    def sight(self, case: Case) -> Sight | None:
        """What the rule measures, for base against head; None where it measures nothing."""
        del case
        return None

    def finding(
        self,
        case: Case,
        message: str,
        *,
        passes: str | None,
        flag: str | None = None,
        severity: Severity | None = None,
        limit: str | None = None,
    ) -> Finding:
        """A finding at the flag's place, else at the launch's."""
        launch = case.launch
        line, column = launch.places.get(flag or "", (0, 0))
        sight = self.sight(case)
        return Finding(
            rule=self.id,
            name=self.name,
            severity=severity or self.severity,
            message=message.removesuffix("."),  # the value that would pass is said behind it
            passes=passes,
            path=launch.path,
            line=line or launch.line,
            column=column or launch.column,
            launch=launch,
            end_line=line or launch.line,
            flag=flag,
            seen=None if sight is None else sight.text,
            limit=limit,
        )


def option(flag: str) -> str:
    """`max_model_len` as it is written on a command line."""
    return flag if flag.startswith("-") else f"--{flag.replace('_', '-')}"
