"""A quantised KV cache wins with a passing verdict on its answers, or when the user wanted none."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from kvplan.quality.sample import QualitySample, Run, Step, TextScore
from kvplan.report.quality import quality_line, quality_rows
from kvplan.tune.answers import is_looked_at
from kvplan.tune.assumed import AssumedServer
from kvplan.tune.problem import Problem, Space
from kvplan.tune.recommend import Recommendation, recommend
from kvplan.tune.replay import recommendation_as_dict, recommendation_from_dict
from kvplan.tune.strategies import search_of
from kvplan.tune.trial import Trial
from kvplan.units import MIB
from tests.tiny_search import CARD, LENGTHS, RULES

if TYPE_CHECKING:
    from kvplan.tune.search import SearchState
    from kvplan.tune.trial import LoadLevel, TrialSpec

PROBLEM = Problem(
    model="tiny",
    device="cpu",
    card_bytes=CARD,
    target_concurrency=8,
    lengths=LENGTHS,
    space=Space(kv_cache_dtype=("auto", "fp8"), utilization=(0.5, 0.6)),
)


def answers(moved: float) -> QualitySample:
    """Twelve passages whose tokens are all moved by so much, up and down by turns; every fact is found."""

    def run(by: float) -> Run:
        steps = tuple(Step(token, -0.5 - by, 99, -3.0) for token in (1, 2, 3))
        texts = tuple(TextScore((-2.0 - by * (-1) ** n,) * 3, (1, 2, 3), steps) for n in range(12))
        return Run(texts, (True,) * 20)

    return QualitySample("same", 4, 100, run(moved), run(0.001))


@dataclasses.dataclass(slots=True)
class Server(AssumedServer):
    """fp8 is a fifth faster than auto; what it answers is moved by `moved`, or not sampled."""

    moved: float | None = 0.01

    def speed(self, spec: TrialSpec, level: LoadLevel, repeat: int) -> float:
        """Flat, but for the dtype."""
        del level
        return (120.0 if spec.settings.kv_cache_dtype == "fp8" else 100.0) + repeat / 10

    def run_trial(self, spec: TrialSpec) -> Trial:
        """The trial, with its answers where they are looked at."""
        trial = super(Server, self).run_trial(spec)
        if self.moved is not None and trial.survived and is_looked_at(self.problem, spec):
            moved = self.moved if spec.settings.kv_cache_dtype == "fp8" else 0.0
            trial = self.trials[-1] = dataclasses.replace(trial, quality=answers(moved))
        return trial


def tuned(problem: Problem, moved: float | None = 0.01) -> tuple[SearchState, Recommendation]:
    server = Server(problem, RULES, non_kv_bytes=600 * MIB, unbudgeted_bytes=500 * MIB, moved=moved)
    state = search_of(problem, RULES, server.run_trial, 30).run()
    return state, recommend(state, RULES)


def dtype_of(answer: Recommendation) -> str:
    assert answer.settings is not None
    return str(answer.settings["kv_cache_dtype"])


STRATEGIES = [PROBLEM, dataclasses.replace(PROBLEM, strategy="grid")]


@pytest.mark.parametrize("problem", STRATEGIES, ids=["guided", "grid"])
def test_a_faster_quantised_cache_with_a_passing_verdict_wins(problem: Problem) -> None:
    _, answer = tuned(problem)
    assert dtype_of(answer) == "fp8"
    (found,) = answer.quality
    assert (found.kv_cache_dtype, found.base_trial) == ("fp8", 1)
    assert found.verdict.outcome == "passes"


@pytest.mark.parametrize("problem", STRATEGIES, ids=["guided", "grid"])
def test_a_faster_quantised_cache_that_answers_otherwise_does_not_win(problem: Problem) -> None:
    _, answer = tuned(problem, moved=0.5)
    assert dtype_of(answer) == "auto"
    assert answer.quality[0].verdict.outcome == "fails"


@pytest.mark.parametrize("problem", STRATEGIES, ids=["guided", "grid"])
def test_nor_one_whose_answers_nobody_sampled(problem: Problem) -> None:
    _, answer = tuned(problem, moved=None)
    assert dtype_of(answer) == "auto"
    assert answer.quality == ()


@pytest.mark.parametrize("problem", STRATEGIES, ids=["guided", "grid"])
def test_without_the_gate_it_wins_unseen(problem: Problem) -> None:
    _, answer = tuned(dataclasses.replace(problem, quality_gate=False))
    assert dtype_of(answer) == "fp8"
    assert answer.quality == ()


def test_what_won_unseen_is_said_to_be_unseen() -> None:
    _, answer = tuned(dataclasses.replace(PROBLEM, quality_gate=False))
    assert "kv_cache_dtype=fp8 is better: its answers were not looked at (--no-quality-gate)" in answer.notes
    effect = next(e for e in answer.effects if e.knob == "kv_cache_dtype")
    assert effect.verdict == "better"
    assert effect.why.endswith("its answers were not looked at (--no-quality-gate)")


def test_the_effect_and_the_note_say_why_it_did_not_win() -> None:
    _, answer = tuned(PROBLEM, moved=0.5)
    effect = next(e for e in answer.effects if e.knob == "kv_cache_dtype")
    assert effect.verdict == "not recommended"
    assert "its answers: fails, log-probability" in effect.why
    assert any("fp8 was measured and is not recommended: its answers: fails" in note for note in answer.notes)


def test_only_the_reference_and_the_quantised_variants_are_asked() -> None:
    state, _ = tuned(
        dataclasses.replace(PROBLEM, space=Space(kv_cache_dtype=("auto", "fp8"), block_size=(128, 32)))
    )
    asked = [(t.spec.phase, t.spec.settings.kv_cache_dtype) for t in state.trials if t.quality is not None]
    # fp8 won, so the block size that is tried next is tried with it.
    assert asked == [("probe", "auto"), ("knob", "fp8"), ("knob", "fp8")]
    state, _ = tuned(dataclasses.replace(PROBLEM, space=Space(kv_cache_dtype=("auto",))))
    assert all(t.quality is None for t in state.trials)


def test_a_quantised_base_gives_way_to_the_unquantised_cache_unless_its_answers_pass() -> None:
    problem = dataclasses.replace(PROBLEM, space=Space(kv_cache_dtype=("fp8", "auto")))
    _, answer = tuned(problem)
    assert dtype_of(answer) == "fp8"
    _, answer = tuned(problem, moved=0.5)
    assert dtype_of(answer) == "auto"


@pytest.mark.parametrize("strategy", ["guided", "grid"])
def test_who_asks_for_nothing_but_a_quantised_cache_gets_it(strategy: str) -> None:
    space = Space(kv_cache_dtype=("fp8",), utilization=(0.5, 0.6))
    problem = dataclasses.replace(PROBLEM, space=space, strategy=strategy)  # type: ignore[arg-type]
    state, answer = tuned(problem)
    assert dtype_of(answer) == "fp8"
    assert all(t.quality is None for t in state.trials)


def test_the_journal_gives_trial_and_verdict_back_as_they_were() -> None:
    state, answer = tuned(PROBLEM)
    trial = next(t for t in state.trials if t.quality is not None)
    assert Trial.from_dict(json.loads(json.dumps(trial.as_dict()))) == trial
    assert recommendation_from_dict(json.loads(json.dumps(recommendation_as_dict(answer)))) == answer


def test_the_report_shows_every_measure_with_its_limit_and_keeps_the_scores_out() -> None:
    _, answer = tuned(PROBLEM)
    rows = quality_rows(answer.quality)
    # Twelve passages of three tokens; 0.01 against 0.001 by turns: 0.009 beyond the repeat, in every passage.
    assert rows[0] == (
        "log-probability moves, nat",
        "fp8",
        "0.0010",
        "0.0100",
        "0.0090 to 0.0090",
        "0.1000",
        "passes",
    )
    assert rows[-1] == ("facts found, of 20", "fp8", "20", "20 of them", "loss <= 14%", "none lost", "passes")
    line = quality_line(answer.quality[0])
    assert line.startswith("fp8 (trial 2 against trial 1): passes")
    # Two decode steps of each passage; the first of the three tokens is the prompt's.
    assert line.endswith("Compared: 36 tokens of text, 24 greedy steps, facts in up to 100 tokens")


def test_an_unread_cache_is_not_told_as_like_a_repeat() -> None:
    _, answer = tuned(PROBLEM, moved=0.0)
    line = quality_line(answer.quality[0])
    assert "undecided: not one number differs" in line
    assert "repeat" not in line
