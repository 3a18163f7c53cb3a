"""A run's outcome from its journal alone: the one it ended with, or its search replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from kvplan.errors import InputError
from kvplan.tune.problem import Problem
from kvplan.tune.recommend import Recommendation, recommend
from kvplan.tune.search import SearchState, StopSearch
from kvplan.tune.strategies import search_of

if TYPE_CHECKING:
    from kvplan.tune.card import KvRules
    from kvplan.tune.journal import JournalContents
    from kvplan.tune.problem import Budget
    from kvplan.tune.trial import Trial, TrialSpec

INTERRUPTED = "the run was interrupted; kvplan tune --resume continues it"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    recommendation: Recommendation
    is_finished: bool
    """False: interrupted or killed before its end; the recommendation is of what had finished."""


def outcome_of(contents: JournalContents) -> Outcome:
    """The outcome of a journal: its last `outcome` line, unless trials came after it.

    Raises:
        InputError: the model in the journal has no exact rule here.
    """
    for line in reversed(contents.lines):
        if line["kind"] == "outcome":
            return Outcome(recommendation_from_dict(line["recommendation"]), bool(line["finished"]))
        if line["kind"] == "trial":
            break
    rules = rules_of(contents.header)
    budget = (contents.last("resumed") or contents.header)["budget"]
    state = replayed(contents.header, rules, contents.finished(), budget["max_launches"])
    return Outcome(recommend(state, rules), is_finished=False)


def replayed(
    header: Mapping[str, Any], rules: KvRules, answers: Mapping[str, Trial], max_launches: int
) -> SearchState:
    """The search up to the first question that the trials, by their keys, do not answer."""

    def answer(spec: TrialSpec) -> Trial:
        trial = answers.get(spec.key(header["context"]))
        if trial is None:
            raise StopSearch(INTERRUPTED)
        return trial

    problem, probe_utilization = Problem.from_dict(header["problem"]), header["assumed"]["probe_utilization"]
    return search_of(problem, rules, answer, max_launches, probe_utilization=probe_utilization).run()


def nothing_left(contents: JournalContents, budget: Budget) -> str | None:
    """Why the run would launch nothing if it went on now; None when it would.

    Args:
        contents: the journal.
        budget: the one that it would go on with.
    """
    last = contents.lines[-1]
    if last["kind"] != "outcome" or not last["finished"]:
        return None
    stopped = last["recommendation"].get("stopped")
    if stopped is not None:
        # Ended before it was done: a larger budget, or asking again what nothing explained, may go further.
        answers = explained(contents)
        state = replayed(contents.header, rules_of(contents.header), answers, budget.max_launches)
        if state.stopped == INTERRUPTED and contents.measured_s < 60 * budget.max_minutes:
            return None
    return f"run {contents.run_id} is finished" + (
        f": {stopped}" if stopped else "; nothing is left to launch"
    )


def explained(contents: JournalContents) -> dict[str, Trial]:
    """The trials that a run which goes on need not repeat: a failure that nothing explains is no answer."""
    return {key: trial for key, trial in contents.finished().items() if trial.status != "failed"}


def rules_of(header: Mapping[str, Any]) -> KvRules:
    """The KV-cache arithmetic of the run's model, from the configuration that the journal holds."""
    from kvplan.config.version import parse_vllm_version
    from kvplan.memory.hardware import GpuSpec
    from kvplan.tune.rules import kv_rules

    gpu = dict(header["gpu"])
    if gpu["compute_capability"] is not None:
        gpu["compute_capability"] = tuple(gpu["compute_capability"])
    version = parse_vllm_version(header["context"]["vllm_version"])
    return kv_rules(header["model_config"], GpuSpec(**gpu), version)


def recommendation_as_dict(recommendation: Recommendation) -> dict[str, Any]:
    """The recommendation as JSON types."""
    return dataclasses.asdict(recommendation)


def recommendation_from_dict(record: Mapping[str, Any]) -> Recommendation:
    """The recommendation back from a journal of this or an older kvplan.

    Keys that a newer kvplan added are ignored; what an older one did not write yet is unknown or empty.

    Raises:
        InputError: a key is missing or wrong without which there is no answer.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Recommendation).validate_python(_completed(Recommendation, record))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"the journal's outcome cannot be read: {where}: {first['msg'].lower()}",
            "it was written by another version of kvplan, or changed since; its trials are whole",
        ) from error


def _completed(kind: Any, value: Any) -> Any:
    """The value of an annotated type, with what is missing in its dataclasses unknown or empty."""
    if value is None:
        return None
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        hints = get_type_hints(kind)
        found = dict(value)
        for name in (field.name for field in dataclasses.fields(kind)):
            if name in found:
                found[name] = _completed(hints[name], found[name])
            elif NoneType in get_args(hints[name]):
                found[name] = None
            elif get_origin(hints[name]) in {tuple, dict}:
                found[name] = get_origin(hints[name])()
        return found
    inner = next((of for of in get_args(kind) if dataclasses.is_dataclass(of)), None)
    if inner is None:
        return value
    return (
        [_completed(inner, one) for one in value] if get_origin(kind) is tuple else _completed(inner, value)
    )
