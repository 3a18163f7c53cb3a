"""What the gate found: the one model that every output format renders."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kvplan.errors import ExitCode
from kvplan.record import FrozenRecord, Record

if TYPE_CHECKING:
    from kvplan.gate.found import Found, LaunchFound, NotRead

Severity = Literal["error", "warning", "note"]
Verdict = Literal["passes", "fails", "cannot_judge"]
FailOn = Literal["error", "warning", "never"]
SEVERITIES: Final[tuple[Severity, ...]] = ("note", "warning", "error")


class WaiverNote(FrozenRecord):
    """The waiver that a finding fell under."""

    until: str
    """The last day it holds, ISO 8601."""
    reason: str
    owner: str | None = None
    expired: bool = False
    """An expired waiver leaves the finding where it is; it is shown with it."""
    path: str = ""
    """Where the waiver stands: the policy file, or the file with the comment."""
    line: int = 1


class Finding(FrozenRecord):
    """What a rule says of one launch. Texts are not yet redacted."""

    rule: str
    name: str
    """The rule's short name: `will-not-start`."""
    severity: Severity
    message: str
    passes: str | None
    """The value that would pass; None where no single change is known to."""
    path: str
    line: int
    column: int
    launch: LaunchFound | None
    """None for findings of a file or of the policy (an unused waiver, a launch that is missing)."""
    end_line: int = 0
    """The last line of the place; the same as `line` for a flag."""
    flag: str | None = None
    """vLLM's name of the flag that the finding is about, where it is about one."""
    seen: str | None = None
    """What the rule looked at, in a few words: `0 % start probability`."""
    before: str | None = None
    """The same of the base; None where the base has no such launch, or none that could be judged."""
    limit: str | None = None
    """What `seen` is held against, where the rule has a limit."""
    status: Literal["new", "worse", "unchanged"] = "new"
    waiver: WaiverNote | None = None

    @property
    def key(self) -> tuple[str, str, str | None, str | None]:
        """What stays the same when lines move: rule, file, the launch's own name and its model."""
        if self.launch is None:
            return self.rule, self.path, None, None
        return self.rule, self.path, self.launch.name, self.launch.model


class Numbers(NamedTuple):
    """What a launch's memory comes to on its card, expected values. Sizes in bytes, lengths in tokens."""

    gpu: str
    """The card's name."""
    num_gpus: int
    """GPUs of one replica."""
    vllm_version: str
    max_model_len: int
    starts: Literal["yes", "tight", "no"]
    start_probability: float
    kv_tokens: int
    """What vLLM would print as "GPU KV cache size"."""
    max_requests: int
    """Requests of max_model_len tokens that run at once, bounded by max_num_seqs too."""
    headroom_bytes: int
    """Left free on the card beyond all that vLLM plans with and what it does not count; may be negative."""
    kv_spare_bytes: int
    """KV cache beyond what one request of max_model_len needs; negative when it will not start."""
    usd_per_hour: float | None = None
    """Of one replica, where the card's profile has a price."""


class LaunchResult(FrozenRecord):
    """One launch with what it comes to, now and in the base."""

    launch: LaunchFound
    change: Literal["added", "changed", "unchanged"] | None = None
    """Against the base; None without one. `changed` is whatever changes the launch, also a file beside it."""
    now: Numbers | None = None
    """None when it was not judged, or when vLLM refuses its flags (`refusal`)."""
    before: Numbers | None = None
    refusal: str | None = None
    """Why vLLM refuses the flags before it looks at memory."""
    not_judged: str | None = None
    """Why nothing sound can be said of its memory; None when it was judged."""
    must_be_judged: bool = False
    """Whether the policy asks that it can be judged (`require_judged`)."""
    assumptions: tuple[str, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether an answer was found: an estimate, or vLLM's refusal."""
        return self.not_judged is None


class Checked(Record):
    """One run of the gate."""

    found: Found
    launches: list[LaunchResult] = field(default_factory=list)
    """Every launch of the files that were read, in their order."""
    findings: list[Finding] = field(default_factory=list)
    """What counts: new, or worse than in the base."""
    old: list[Finding] = field(default_factory=list)
    """Findings that the base has too: listed, not failed on."""
    waived: list[Finding] = field(default_factory=list)
    """Findings under a waiver that holds; each carries it."""
    fixed: list[Finding] = field(default_factory=list)
    """Findings of the base that are gone."""
    removed: list[LaunchFound] = field(default_factory=list)
    """Launches of the base that are gone."""
    notes: list[str] = field(default_factory=list)
    """One line each: where the policy came from, what was assumed for the whole run."""
    must_read: list[NotRead] = field(default_factory=list)
    """What could not be read where the policy asks that everything can be judged."""
    base: str | None = None
    """The commit compared with."""
    upgrade_to: str | None = None
    """The vLLM that all are judged with, where the releases that the launches pin are the base."""
    fail_on: FailOn = "error"

    @property
    def judged(self) -> list[LaunchResult]:
        """Launches that an answer was found for."""
        return [item for item in self.launches if item.judged]

    @property
    def not_judged(self) -> list[LaunchResult]:
        """Launches that nothing sound can be said about, each with its reason."""
        return [item for item in self.launches if not item.judged]

    @property
    def not_read(self) -> list[NotRead]:
        """What could not be read at all."""
        return self.found.not_read

    @property
    def failing(self) -> list[Finding]:
        """The findings that make the gate say no."""
        if self.fail_on == "never":
            return []
        bad = SEVERITIES[SEVERITIES.index(self.fail_on) :]
        return [item for item in self.findings if item.severity in bad]

    @property
    def unmet(self) -> list[LaunchResult]:
        """Launches that the policy wants judged and that could not be."""
        return [item for item in self.not_judged if item.must_be_judged]

    @property
    def verdict(self) -> Verdict:
        """`fails` on sound evidence, whatever else could not be judged; else whether the rest was judged."""
        if self.failing:
            return "fails"
        if self.unmet or self.must_read:  # `fail_on` is of findings: it makes nothing known
            return "cannot_judge"
        return "cannot_judge" if self.found.nothing_read else "passes"

    @property
    def exit_code(self) -> ExitCode:
        """0 passes, 1 the gate says no, 2 could not judge."""
        return {
            "passes": ExitCode.OK,
            "fails": ExitCode.NO,
            "cannot_judge": ExitCode.CANNOT_JUDGE,
        }[self.verdict]
