"""Needle prompts: facts hidden at several depths of a haystack, each asked for by itself. Pure."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Final

from kvplan.quality.passages import PROSE

DEPTHS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Where the facts lie: share of the haystack before them."""
HAYSTACKS: Final = 4
CODE_DIGITS: Final = 5
_NAMES: Final = (
    *("cellar", "granary", "chapel", "boathouse", "orchard", "library", "kennel", "foundry", "lighthouse"),
    *("stable", "dairy", "armoury", "brewery", "greenhouse", "archive", "cistern", "smithy", "pavilion"),
    *("infirmary", "quarry"),
)


@dataclass(frozen=True, slots=True)
class Haystack:
    """One text with five facts in it, and a question for each; the questions follow the text directly."""

    text: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]


def haystack(number: int, characters: int) -> Haystack | None:
    """The text of that number, at most so long; None where not even the facts have room.

    Every fact has the same form, so that an answer must come from the right one of five. Equal arguments give
    equal texts, on every machine.
    """
    rng = random.Random(f"haystack {number}")
    names = rng.sample(_NAMES, len(DEPTHS))
    codes = [f"{rng.randrange(10 ** (CODE_DIGITS - 1), 10**CODE_DIGITS)}" for _ in names]
    facts = [f" The code of the {name} is {code}." for name, code in zip(names, codes, strict=True)]
    room = characters - sum(map(len, facts))
    if room < 0:
        return None
    hay = _hay(rng, room)
    length = sum(map(len, hay))
    text, used, placed = "", 0, 0
    for sentence in (*hay, ""):
        while placed < len(facts) and used >= DEPTHS[placed] * length:
            text += facts[placed]
            placed += 1
        text += sentence
        used += len(sentence)
    text += "".join(facts[placed:])
    questions = tuple(
        f"\n\nQuestion: what is the code of the {name}?\nAnswer: The code of the {name} is" for name in names
    )
    return Haystack(text.strip(), questions, tuple(codes))


def is_found(answer: str, code: str) -> bool:
    """Whether the answer's first number is the code."""
    first = re.search(r"\d+", answer)
    return first is not None and first.group() == code


def _hay(rng: random.Random, characters: int) -> list[str]:
    """Sentences in a random order, again and again until the room is used."""
    sentences = [
        f" {s}" for passage in PROSE for s in re.split(r"(?<=[.?!])\s+", " ".join(passage.split())) if s
    ]
    chosen: list[str] = []
    while True:
        rng.shuffle(sentences)
        for sentence in sentences:
            if len(sentence) > characters:
                return chosen
            chosen.append(sentence)
            characters -= len(sentence)
