"""Where the ladder's last step has its settings from: a tuning run that fits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.foreign import reading
from kvplan.tune.journal import FILE_NAME, read_journal
from kvplan.tune.problem import Problem
from kvplan.tune.replay import outcome_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvplan.tune.ladder import Scale


@dataclass(frozen=True, slots=True)
class Tuned:
    """Settings that a tuning run recommends, and which run."""

    run: str
    settings: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def fitting_run(header: Mapping[str, Any], scale: Scale, runs_dir: Path) -> Tuned | None:
    """The newest run of the same model, machine and vLLM whose recommendation holds the ladder's load."""
    for path in sorted(runs_dir.glob(f"*/{FILE_NAME}"), reverse=True):
        try:
            tuned = recommended_by(path.parent)
        except InputError:
            continue
        if tuned is None:
            continue
        then = read_journal(path).header
        same = ("model", "machine", "vllm_version")
        if any(then["context"].get(key) != header["context"][key] for key in same):
            continue
        problem, mine = Problem.from_dict(then["problem"]), Problem.from_dict(header["problem"])
        if (
            problem.device == mine.device
            and problem.card_bytes == mine.card_bytes
            and problem.max_model_len >= scale.request_len
            and problem.target_concurrency >= scale.users
        ):
            return with_notes(tuned, problem, scale)
    return None


def recommended_by(folder: Path) -> Tuned | None:
    """What a run recommends; None if it is no tuning run, or recommends nothing that was confirmed."""
    contents = read_journal(folder)
    if contents.header.get("what", "tune") != "tune" or contents.last("outcome") is None:
        return None
    with reading(f"the journal of {folder}"):
        recommendation = outcome_of(contents).recommendation
    if recommendation.settings is None or not recommendation.met:
        return None
    return Tuned(contents.run_id, dict(recommendation.settings))


def with_notes(tuned: Tuned, problem: Problem, scale: Scale) -> Tuned:
    """The same, saying so where the run was for another load."""
    lengths = problem.lengths
    notes = []
    then = (lengths.longest_input, lengths.longest_output, problem.target_concurrency)
    if then != (scale.input_len, scale.output_len, scale.users):
        notes.append(
            f"that run was for {then[2]} users of {then[0]:,} + {then[1]:,} tokens, not for this load"
        )
    return dataclasses.replace(tuned, notes=tuple(notes))
