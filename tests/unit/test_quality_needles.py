"""Haystacks: made alike everywhere, as long as asked for, with five facts of one form at five depths."""

from __future__ import annotations

import re

import pytest

from kvplan.quality.needles import DEPTHS, HAYSTACKS, haystack, is_found
from kvplan.quality.passages import PASSAGES


@pytest.mark.parametrize("number", range(HAYSTACKS))
def test_five_facts_lie_where_they_should_and_each_is_asked_for(number: int) -> None:
    hidden = haystack(number, 8000)
    assert hidden is not None
    assert 7500 < len(hidden.text) <= 8000
    facts = list(re.finditer(r"The code of the (\w+) is (\d{5})\.", hidden.text))
    assert tuple(fact.group(2) for fact in facts) == hidden.answers
    assert len({fact.group(1) for fact in facts}) == len(set(hidden.answers)) == 5
    for fact, depth, question in zip(facts, DEPTHS, hidden.questions, strict=True):
        assert fact.start() / len(hidden.text) == pytest.approx(depth, abs=0.05)
        assert question.endswith(f"The code of the {fact.group(1)} is")
        assert fact.group(2) not in question


def test_the_same_everywhere_and_another_for_each_number() -> None:
    assert haystack(0, 3000) == haystack(0, 3000)
    texts = {hidden.text for n in range(HAYSTACKS) if (hidden := haystack(n, 3000)) is not None}
    assert len(texts) == HAYSTACKS


def test_without_room_for_the_facts_there_is_no_haystack() -> None:
    facts = haystack(0, 250)
    assert facts is not None
    assert haystack(0, 150) is None


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (" 48213.", True),
        (" 48213", True),
        ("48213\n\nQuestion: what", True),
        (" 482", False),
        (" 482134", False),
        (" 11111, not 48213", False),
        (" unknown", False),
        ("", False),
    ],
)
def test_the_first_number_of_the_answer_counts(answer: str, *, found: bool) -> None:
    assert is_found(answer, "48213") is found


def test_every_passage_is_long_enough_and_no_two_begin_alike() -> None:
    # 160 tokens of 4 to 5 characters, which is what vocabularies of 100k and more make of English.
    assert all(len(passage) >= 800 for passage in PASSAGES)
    assert len({passage[:20] for passage in PASSAGES}) == len(PASSAGES)
