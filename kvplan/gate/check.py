"""One run of the gate: every launch judged, every rule asked, the base compared, and what that comes to."""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from kvplan.config.project_file import FILE_NAME
from kvplan.errors import KvplanError
from kvplan.foreign import reading
from kvplan.gate.compare import is_same, pair
from kvplan.gate.globs import path_matches
from kvplan.gate.judge import Judged, NotJudged, judge
from kvplan.gate.numbers import numbers
from kvplan.gate.policy import NO_POLICY
from kvplan.gate.result import SEVERITIES, Checked, Finding, LaunchResult
from kvplan.gate.rules import NO_LAUNCH, RULES
from kvplan.gate.rules.base import Case
from kvplan.gate.waivers import WaiverBook, of_comments
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvplan.gate.found import Comment, Found, LaunchFound
    from kvplan.gate.policy import Policy
    from kvplan.gate.result import FailOn
    from kvplan.gate.rules.base import Rule
    from kvplan.gate.terms import Terms

_RULES = {rule.id: rule for rule in RULES}
_NOTICEABLE = 0.005
"""A share by which a measured quantity must fall to be called worse: less is rounding."""


class Base(FrozenRecord):
    """What a run is compared with."""

    found: Found
    name: str | None = None
    """The commit, for the reader."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Path now -> path in the base."""
    vllm_version: str | None = None
    """The release to judge the base with, whatever it pins."""
    comments_count: bool = True
    """Whether waivers in comments count though the base lacks them."""


def check_launches(
    found: Found,
    *,
    policy: Policy = NO_POLICY,
    gpu: str | None = None,
    vllm_version: str | None = None,
    base: Base | None = None,
    fail_on: FailOn = "error",
    today: dt.date | None = None,
    launch_paths: frozenset[str] | None = None,
) -> Checked:
    """Judge every launch; with a base, what it had already is kept apart.

    Args:
        found: the launches.
        policy: what they are held to.
        gpu: the card for launches whose files name none; wins over the policy's.
        vllm_version: judge with this version, whatever the launches pin.
        base: what to compare with.
        fail_on: from which severity on the gate says no.
        today: the day that waivers are measured against; the UTC date where None.
        launch_paths: files of the whole repository that hold launches; None where only a part was read, so
            that nothing can be said of paths without one.
    """
    today = today or dt.datetime.now(dt.UTC).date()
    run = _Run(found, policy, gpu, vllm_version, base)
    checked = Checked(
        found,
        fail_on=fail_on,
        base=base.name if base is not None else None,
        upgrade_to=vllm_version if base is not None and base.name is None else None,
    )
    checked.launches = [run.result(i) for i in range(len(found.launches))]
    waivers, wrong = of_comments(found.comments, today, counts=run.counts)
    book = WaiverBook([*policy.waivers, *waivers], today)
    for item in run.findings():
        note = book.note_for(item)
        told = dataclasses.replace(item, waiver=note)
        if note is not None and not note.expired:
            checked.waived.append(told)
        else:
            (checked.old if item.status == "unchanged" else checked.findings).append(told)
    checked.fixed, checked.removed = run.fixed(), run.removed()
    silent = {item.launch.path for item in checked.not_judged}
    loose = wrong
    if checked.upgrade_to is None:  # what a waiver does today is no matter of tomorrow's vLLM
        whole = launch_paths is not None and base is None
        loose += book.idle(found.launches, whole=whole, silent=silent)
    if launch_paths is not None:
        loose += _without_launch(policy, launch_paths, base)
    for item in loose:
        rated = _rated(item, policy.terms(item.path))
        if rated is not None:
            (checked.old if rated.status == "unchanged" else checked.findings).append(rated)
    checked.must_read = [miss for miss in found.not_read if policy.terms(miss.path).require_judged]
    return checked


def _answer(
    launch: LaunchFound, terms: Terms, gpu: str | None, vllm_version: str | None
) -> Judged | NotJudged:
    """The judgement of one launch; impossible values leave the other launches alone."""
    try:
        with reading(f"{launch.path}:{launch.line}"):
            return judge(launch, terms, gpu=gpu, vllm_version=vllm_version)
    except (KvplanError, OSError) as error:
        return NotJudged(launch, str(error))


class _Run:
    """The launches of one run with their terms, answers and counterparts in the base."""

    def __init__(
        self, found: Found, policy: Policy, gpu: str | None, vllm_version: str | None, base: Base | None
    ) -> None:
        self._found = found
        self._policy = policy
        self._base = base
        self._terms = [policy.terms(launch.path) for launch in found.launches]
        self._answers = [
            _answer(launch, terms, gpu, vllm_version)
            for launch, terms in zip(found.launches, self._terms, strict=True)
        ]
        before = base.found.launches if base is not None else []
        self._pairs = pair(found.launches, before, base.renames if base is not None else {})
        by_identity = {id(launch): i for i, launch in self._pairs.items()}
        self._before: dict[int, Judged | NotJudged] = {}
        self._base_cases: dict[int, Case] = {}
        for launch in before:
            i = by_identity.get(id(launch))
            if i is None:
                continue
            version = base.vllm_version if base is not None else None
            answer = _answer(launch, self._terms[i], gpu, version)
            self._before[i] = answer
            self._base_cases[i] = Case(
                launch,
                self._terms[i],
                _judged(answer),
                None,
                _beside(launch, before),
                version,
                replicas=_copies(launch, found.launches[i]),
            )
        self._cases = [
            Case(
                launch,
                self._terms[i],
                _judged(self._answers[i]),
                _judged(self._before.get(i)),
                _beside(launch, found.launches),
                vllm_version,
                replicas=_copies(launch, self._pairs.get(i)),
                base_replicas=_copies(self._pairs.get(i), launch),
            )
            for i, launch in enumerate(found.launches)
        ]
        self._fixed: list[Finding] = []

    def result(self, i: int) -> LaunchResult:
        """The launch with its figures now and before."""
        launch, answer = self._found.launches[i], self._answers[i]
        before = _judged(self._before.get(i))
        change = self._change(i)
        judged = _judged(answer)
        return LaunchResult(
            launch,
            change=change,
            now=None if judged is None or judged.estimate is None else numbers(judged.estimate),
            before=None if before is None or before.estimate is None else numbers(before.estimate),
            refusal=None if judged is None or judged.refusal is None else judged.refusal.message,
            not_judged=answer.reason if isinstance(answer, NotJudged) else None,
            must_be_judged=self._terms[i].require_judged and change != "unchanged",
            assumptions=() if judged is None else judged.assumptions,
        )

    def _change(self, i: int) -> Literal["added", "changed", "unchanged"] | None:
        if self._base is None:
            return None
        other = self._pairs.get(i)
        if other is None:
            return "added"
        return "unchanged" if is_same(self._found.launches[i], other) else "changed"

    def findings(self) -> Iterator[Finding]:
        """Every finding with its status; what only the base has is kept for `fixed`."""
        for i, case in enumerate(self._cases):
            base_case = self._base_cases.get(i)
            known = {} if base_case is None else {_about(one): one for one in _asked(base_case)}
            seen = set()
            for item in _asked(case):
                seen.add(_about(item))
                yield _compared(item, case, known.get(_about(item)), base_case)
            # What a launch that no longer starts does not show is not mended.
            if case.starting is not None or base_case is None or base_case.starting is None:
                self._fixed += [one for about, one in known.items() if about not in seen]

    def fixed(self) -> list[Finding]:
        """Findings of the base that are gone; those of launches that can no longer be judged are not."""
        return self._fixed

    def removed(self) -> list[LaunchFound]:
        """Launches of the base that are gone. Those of a file that cannot be read now may still be there."""
        if self._base is None or self._base.name is None:
            return []
        kept = {id(launch) for launch in self._pairs.values()}
        unread = {self._base.renames.get(path, path) for path in self._found.unread}
        return [
            launch
            for launch in self._base.found.launches
            if id(launch) not in kept and launch.path not in unread
        ]

    def counts(self, comment: Comment) -> bool:
        """Whether a waiver in a comment counts: the base has it too, or need not."""
        if self._base is None or self._base.comments_count:
            return True
        path = self._base.renames.get(comment.path, comment.path)
        return any(one.path == path and one.text == comment.text for one in self._base.found.comments)


def _copies(launch: LaunchFound | None, other: LaunchFound | None) -> int:
    """Replicas of a launch, where its counterpart says so too: else nothing can be compared."""
    if launch is None or other is None or not launch.replicas or not other.replicas:
        return 1
    return launch.replicas


def _judged(answer: Judged | NotJudged | None) -> Judged | None:
    return answer if isinstance(answer, Judged) else None


def _beside(launch: LaunchFound, launches: list[LaunchFound]) -> tuple[LaunchFound, ...]:
    if launch.devices is None:
        return (launch,)  # only launches on named GPUs can be known to share one
    return tuple(one for one in launches if one.path == launch.path)


def _asked(case: Case) -> Iterator[Finding]:
    """What all rules say of one launch, with the policy's severities."""
    for rule in RULES:
        if case.terms.is_on(rule.id):
            for item in rule.check(case):
                rated = _rated(item, case.terms)
                if rated is not None:
                    yield rated


def _rated(item: Finding, terms: Terms) -> Finding | None:
    """The finding with the policy's severity; None where the policy has it off."""
    if item.rule not in terms.severities:
        return item
    severity = terms.severities[item.rule]
    return None if severity is None else dataclasses.replace(item, severity=severity)


def _about(item: Finding) -> tuple[str, str | None]:
    """What tells several findings of one launch apart."""
    return item.rule, item.flag if _RULES[item.rule].each_flag else None


def _compared(item: Finding, case: Case, before: Finding | None, base_case: Case | None) -> Finding:
    """The finding with what the base was like; old where the base has it and it did not get worse."""
    if base_case is None:
        return item
    rule: Rule = _RULES[item.rule]
    was, now = rule.sight(base_case), rule.sight(case)
    item = dataclasses.replace(item, before=None if was is None else was.text)
    if before is None:
        return item
    graver = SEVERITIES.index(item.severity) > SEVERITIES.index(before.severity)
    fell = (
        was is not None
        and now is not None
        and was.goodness - now.goodness > _NOTICEABLE * max(abs(was.goodness), 1e-9)
    )
    return dataclasses.replace(item, status="worse" if graver or fell else "unchanged")


def _without_launch(policy: Policy, launch_paths: frozenset[str], base: Base | None) -> Iterator[Finding]:
    """A finding for each path that must hold a launch and holds none; no news where the base holds none too.

    A launch that the change moved elsewhere is not there any more, though it is the same launch. Of the base
    the files that the change touches are read, and those are enough: any other would hold its launch still.
    """
    rule, name = NO_LAUNCH
    for required in policy.required:
        if any(path_matches(one, path) for one in required.patterns for path in launch_paths):
            continue
        held_before = base is not None and any(
            path_matches(one, launch.path) for one in required.patterns for launch in base.found.launches
        )
        patterns = ", ".join(required.patterns)
        yield Finding(
            rule=rule,
            name=name,
            severity="error",
            message=f"no vLLM launch is found in {patterns}, and the policy requires one",
            passes=f"a launch in {patterns} that kvplan can read (`kvplan check --list`)",
            path=FILE_NAME,
            line=required.line,
            column=1,
            launch=None,
            end_line=required.line,
            status="new" if base is None or (held_before and base.name is not None) else "unchanged",
        )
