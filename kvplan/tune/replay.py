"""A run's outcome from its journal alone: the one it ended with, or its search replayed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.tune.problem import Problem
from kvplan.tune.recommend import Recommendation, recommend
from kvplan.tune.search import SearchState, StopSearch
from kvplan.tune.strategies import search_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.tune.card import KvRules
    from kvplan.tune.journal import JournalContents
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
    problem = Problem.from_dict(contents.header["problem"])
    rules = rules_of(contents.header)
    state = replayed(problem, rules, contents)
    return Outcome(recommend(state, rules), is_finished=False)


def replayed(problem: Problem, rules: KvRules, contents: JournalContents) -> SearchState:
    """The search up to the first question that the journal has no answer for."""
    finished, context = contents.finished(), contents.header["context"]

    def answer(spec: TrialSpec) -> Trial:
        trial = finished.get(spec.key(context))
        if trial is None:
            raise StopSearch(INTERRUPTED)
        return trial

    budget = (contents.last("resumed") or contents.header)["budget"]
    probe_utilization = contents.header["assumed"]["probe_utilization"]
    search = search_of(problem, rules, answer, budget["max_launches"], probe_utilization=probe_utilization)
    return search.run()


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
    """The recommendation back from a journal; keys that a newer kvplan added are ignored."""
    from pydantic import TypeAdapter

    return TypeAdapter(Recommendation).validate_python(record)
