"""The verdict on a quantised KV cache: worked by hand from what two servers said."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

import pytest

from kvplan.quality.judge import QualityVerdict, judge
from kvplan.quality.sample import QualitySample, Run, Step, TextScore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TEXTS = 12
FOUND = (True,) * 20


def run(
    move: Callable[[int], float] = lambda _: 0.0,
    *,
    needles: Sequence[bool] = FOUND,
    tops: Sequence[int] = (5, 6, 7, 8),
    steps: Sequence[Step] | None = None,
) -> Run:
    """Twelve passages of four tokens at -2, each moved down by `move(passage)`; four greedy steps at -0.5."""
    greedy = steps or tuple(Step(token, -0.5, 99, -3.0) for token in (1, 2, 3, 4))
    return Run(
        tuple(TextScore((-2.0 - move(n),) * 4, tuple(tops), tuple(greedy)) for n in range(TEXTS)),
        tuple(needles),
    )


def sample(first: Run, repeat: Run | None = None) -> QualitySample:
    return QualitySample("same", 5, 100, first, repeat)


BASE = sample(run(), run(lambda _: 0.01))


def of(verdict: QualityVerdict, name: str) -> tuple[float, float, float | None, float | None]:
    measure = next(m for m in verdict.measures if m.name == name)
    return measure.repeat, measure.value, measure.low, measure.high


def outcomes(verdict: QualityVerdict) -> dict[str, str]:
    return {m.name: m.outcome for m in verdict.measures}


def test_the_interval_is_students_over_the_passages_of_what_lies_beyond_the_repeat() -> None:
    # Six passages move by 0.02, six by 0.04; the repeat moves all by 0.01. Beyond it: 0.01 and 0.03, mean
    # 0.02, s = 0.01 x sqrt(12 / 11) = 0.0104447; half-width t(11, 0.975) x s / sqrt(12) =
    # 2.20099 x 0.0104447 / 3.4641 = 0.0066363.
    verdict = judge(BASE, sample(run(lambda n: 0.02 if n % 2 else 0.04)))
    repeat, value, low, high = of(verdict, "log-probability")
    assert repeat == pytest.approx(0.01)
    assert value == pytest.approx(0.03)
    assert low == pytest.approx(0.02 - 0.0066363, abs=1e-6)
    assert high == pytest.approx(0.02 + 0.0066363, abs=1e-6)
    assert verdict.is_above_noise


def test_a_cache_that_moves_little_and_loses_nothing_passes() -> None:
    # Up and down by turns: the passages as a whole become neither more nor less probable.
    verdict = judge(BASE, sample(run(lambda n: 0.02 if n % 2 else -0.02)))
    assert verdict.outcome == "passes"
    assert set(outcomes(verdict).values()) == {"passes"}
    assert verdict.needles is not None
    # Of 20 facts none was lost: losses of up to 1 - 0.05^(1/20) cannot be excluded at 95 %.
    assert verdict.needles.loss_high == pytest.approx(1 - 0.05 ** (1 / 20))


def test_passages_that_all_become_less_probable_fail_by_perplexity_alone() -> None:
    verdict = judge(BASE, sample(run(lambda n: 0.05 + n / 10_000)))
    assert verdict.outcome == "fails"
    assert outcomes(verdict) == {
        "log-probability": "passes",
        "perplexity": "fails",
        "top token": "passes",
        "first token": "passes",
        "greedy steps": "passes",
    }


def test_an_interval_that_contains_the_limit_decides_nothing() -> None:
    # Mean loss 0.01 - 0.01 (repeat) = 0, but eleven passages do not move and one moves by 0.12.
    verdict = judge(BASE, sample(run(lambda n: 0.0 if n else 0.24)))
    assert verdict.outcome == "undecided"
    assert outcomes(verdict)["perplexity"] == "undecided"


def test_a_repeat_that_moves_as_much_is_the_noise_floor_not_the_cache() -> None:
    noisy = sample(run(), run(lambda n: 0.09 if n % 2 else -0.09))
    verdict = judge(noisy, sample(run(lambda n: -0.09 if n % 2 else 0.09)))
    repeat, value, low, high = of(verdict, "log-probability")
    assert repeat == value == pytest.approx(0.09)
    assert low == pytest.approx(0.0, abs=1e-12)
    assert high == pytest.approx(0.0, abs=1e-12)
    assert outcomes(verdict)["log-probability"] == "passes"


def test_other_top_tokens_are_counted_beyond_those_that_the_repeat_changes() -> None:
    # One place of four: a quarter, five times the limit.
    verdict = judge(BASE, sample(run(lambda n: 0.001 * (n % 2), tops=(5, 6, 7, 9))))
    assert of(verdict, "top token")[:2] == (0.0, 0.25)
    assert verdict.outcome == "fails"
    assert verdict.reason.startswith("top token")


def test_greedy_steps_are_compared_as_long_as_both_said_the_same() -> None:
    # The first token is the prompt's; 0.1, then a parting in which the base's token came second with -0.8.
    parting = (Step(1, -0.9, 2, -1.0), Step(2, -0.6, 3, -1.0), Step(9, -0.7, 3, -0.8), Step(8, -9.0, 9, -9.5))
    verdict = judge(BASE, sample(run(steps=parting)))
    steps = next(m for m in verdict.measures if m.name == "greedy steps")
    assert steps.value == pytest.approx((0.1 + 0.3) / 2)
    assert steps.tokens == 2 * TEXTS
    assert steps.outcome == "fails"


GARBAGE = tuple(Step(88, -0.01, 7, -9.0) for _ in range(4))
"""A sure answer that has nothing of the reference: its token 1, at -0.5 there, is at -9 or less here."""


def answers(*garbled: int, greedy: Sequence[Step] = GARBAGE) -> Run:
    """A pass in which the greedy answers to some passages are other ones; all else is as it was."""
    whole = run(lambda n: 0.001 * (-1) ** n)
    texts = [
        dataclasses.replace(text, steps=tuple(greedy)) if number in garbled else text
        for number, text in enumerate(whole.texts)
    ]
    return dataclasses.replace(whole, texts=tuple(texts))


@pytest.mark.parametrize(
    ("broken", "outcome", "counted"),
    [
        # By count: 0.05 x 12 = 0.6, so one is let through. P(X >= 2) = 0.118 and P(X >= 3) = 0.0196 for
        # twelve passages that each leave at once with 5 %.
        (0, "passes", "passes"),
        # One: a move of 8.5 nat in one passage of twelve, the interval of the mean contains 0.1.
        (1, "undecided", "passes"),
        (2, "undecided", "undecided"),
        (3, "fails", "fails"),
        (5, "fails", "fails"),
        (6, "fails", "fails"),
        (12, "fails", "fails"),
    ],
)
def test_answers_that_leave_the_reference_at_once_count(broken: int, outcome: str, counted: str) -> None:
    verdict = judge(BASE, sample(answers(*range(broken))))
    assert verdict.outcome == outcome
    assert outcomes(verdict)["first token"] == counted
    assert of(verdict, "first token")[0] == 0.0
    assert of(verdict, "first token")[1] == pytest.approx(broken / 12)
    # The passages that stay with the reference do not move at all; the others by 9.0 - 0.5.
    steps = next(m for m in verdict.measures if m.name == "greedy steps")
    assert steps.passages == TEXTS
    assert steps.value == pytest.approx(8.5 * broken / 12)
    # Three decode steps of a passage that stays; the parting alone of one that leaves.
    assert steps.tokens == 3 * (12 - broken) + broken


@pytest.mark.parametrize(
    ("theirs", "again", "outcome"),
    [
        # A near tie: the reference's token comes second, 0.02 behind; it moves by 0.01.
        ((0,), (), "passes"),
        ((0,), (1,), "passes"),
        ((0, 1), (1,), "passes"),
        ((0, 1, 2), (1,), "undecided"),
        ((0, 1, 2, 3), (1,), "fails"),
        # The repeat parts in two passages itself: no reference.
        ((0, 1), (0, 1), "undecided"),
    ],
)
def test_near_ties_are_counted_beyond_those_of_the_repeat(
    theirs: Sequence[int], again: Sequence[int], outcome: str
) -> None:
    tie = tuple(Step(2, -0.49, 1, -0.51) for _ in range(4))
    base = sample(run(), answers(*again, greedy=tie))
    verdict = judge(base, sample(answers(*theirs, greedy=tie)))
    assert verdict.outcome == outcome
    assert outcomes(verdict)["greedy steps"] == "passes"
    if len(again) > 1:
        assert verdict.reason == "first token: the reference does not repeat itself within the limit"


@pytest.mark.parametrize(
    ("repeat", "of_what"),
    [
        (run(lambda n: 0.101 if n % 2 else -0.101), "log-probability"),
        (run(lambda _: 0.011), "perplexity"),
        (run(lambda _: -0.011), "perplexity"),
        (run(lambda n: 0.001 * (-1) ** n, tops=(5, 6, 7, 9)), "top token"),
        (run(steps=[Step(token, -0.61, 99, -3.0) for token in (1, 2, 3, 4)]), "greedy steps"),
    ],
)
def test_a_reference_that_does_not_repeat_itself_decides_nothing(repeat: Run, of_what: str) -> None:
    # The quantised cache moves exactly as much, or nothing, or everything: nothing to hold it against.
    for other in (repeat, run(lambda n: 0.001 * (-1) ** n), run(lambda _: 5.0, tops=(9, 9, 9, 9))):
        verdict = judge(sample(run(), repeat), sample(other))
        assert verdict.outcome == "undecided"
        assert verdict.reason == f"{of_what}: the reference does not repeat itself within the limit"


def test_what_most_passages_say_nothing_of_is_undecided() -> None:
    # Eight of twelve passages have answers: less than three quarters.
    def cut(whole: Run) -> Run:
        texts = [dataclasses.replace(t, steps=()) if n < 4 else t for n, t in enumerate(whole.texts)]
        return dataclasses.replace(whole, texts=tuple(texts))

    verdict = judge(sample(cut(run()), cut(run())), sample(cut(run(lambda n: 0.001 * (-1) ** n))))
    assert outcomes(verdict)["greedy steps"] == outcomes(verdict)["first token"] == "undecided"
    assert verdict.outcome == "undecided"


def shortened(whole: Run, what: str) -> Run:
    first = whole.texts[0]
    if what == "passages":
        return dataclasses.replace(whole, texts=whole.texts[1:])
    if what == "facts":
        return dataclasses.replace(whole, needles=whole.needles[1:])
    changed = dataclasses.replace(first, **{what: getattr(first, what)[1:]})
    return dataclasses.replace(whole, texts=(changed, *whole.texts[1:]))


@pytest.mark.parametrize("what", ["passages", "facts", "logprobs", "top_tokens", "steps"])
def test_samples_of_unequal_length_are_undecided(what: str) -> None:
    whole = run(lambda n: 0.001 * (-1) ** n)
    for base, other in (
        (BASE, sample(shortened(whole, what))),
        (sample(run(), shortened(whole, what)), sample(whole)),
        (sample(shortened(run(), what), whole), sample(whole)),
    ):
        verdict = judge(base, other)
        assert verdict.outcome == "undecided"
        assert "unequal length" in verdict.reason


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "-2"])
def test_what_is_no_number_is_undecided(value: object) -> None:
    whole = run(lambda n: 0.001 * (-1) ** n)
    first = dataclasses.replace(whole.texts[0], logprobs=(value, -2.0, -2.0, -2.0))  # type: ignore[arg-type]
    broken = dataclasses.replace(whole, texts=(first, *whole.texts[1:]))
    for base, other in ((BASE, sample(broken)), (sample(run(), broken), sample(whole))):
        verdict = judge(base, other)
        assert verdict.outcome == "undecided"
        assert "not a finite number" in verdict.reason


@pytest.mark.parametrize(
    ("lost", "outcome"),
    [
        # P(X >= 3) = 0.0755 and P(X >= 4) = 0.0159 for 20 facts that are each lost with 5 %.
        (0, "passes"),
        (1, "undecided"),
        (3, "undecided"),
        (4, "fails"),
    ],
)
def test_lost_facts_fail_when_more_than_one_in_twenty_is_shown(lost: int, outcome: str) -> None:
    needles = [False] * lost + [True] * (20 - lost)
    verdict = judge(BASE, sample(run(lambda n: 0.001 * (n % 2), needles=needles)))
    assert verdict.outcome == outcome
    assert verdict.needles is not None
    assert verdict.needles.quantised == 20 - lost


@pytest.mark.parametrize("found", [0, 15])
def test_a_model_that_finds_nothing_itself_is_never_a_pass(found: int) -> None:
    needles = [True] * found + [False] * (20 - found)
    base = sample(run(needles=needles), run(needles=needles))
    verdict = judge(base, sample(run(lambda n: 0.001 * (n % 2), needles=needles)))
    assert verdict.outcome == "undecided"
    assert verdict.needles is not None
    assert verdict.needles.outcome == "not informative"
    assert f"{found} of 20 hidden facts" in verdict.reason


def test_no_room_for_a_haystack_is_no_pass_either() -> None:
    base = sample(run(needles=()), run(needles=()))
    verdict = judge(base, sample(run(lambda n: 0.001 * (n % 2), needles=())))
    assert verdict.outcome == "undecided"
    assert "no room" in verdict.reason


def test_numbers_that_are_equal_to_the_last_digit_show_that_nothing_was_measured() -> None:
    verdict = judge(sample(run(), run()), sample(run()))
    assert verdict.outcome == "undecided"
    assert "not one number differs" in verdict.reason
    assert not verdict.is_above_noise


def test_what_could_not_be_measured_is_undecided_and_says_why() -> None:
    broken = QualitySample("", 5, 0, error="/v1/completions answered 400: no")
    other = sample(run(lambda n: 0.01 * n))
    assert "not looked at" in judge(BASE, None).reason
    assert "answered 400" in judge(BASE, broken).reason
    assert "answered 400" in judge(broken, other).reason
    assert "not asked the same" in judge(BASE, dataclasses.replace(other, prompts="others")).reason
    assert judge(sample(run()), other).reason == "a measurement is incomplete"
    for base, quantised in ((BASE, None), (BASE, broken), (broken, other), (sample(run()), other)):
        assert judge(base, quantised).outcome == "undecided"


def test_a_sample_comes_back_from_json_as_it_was() -> None:
    there = json.loads(json.dumps(BASE.as_dict()))
    assert QualitySample.from_dict(there | {"newer": 1}) == BASE
    assert math.isclose(QualitySample.from_dict(there).first.texts[0].steps[0].logprob, -0.5)  # type: ignore[union-attr]
