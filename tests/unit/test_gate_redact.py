"""What the gate looks at before it takes a slower look must never be what a slower look would find."""

from __future__ import annotations

import re
import sys

from kvplan.gate.redact import INVISIBLE, without_invisible
from kvplan.gate.taint import clean_input
from kvplan.report.check.safe import clean

EVERY = [chr(code) for code in range(sys.maxunicode + 1)]


def test_no_character_that_is_hidden_counts_as_printable() -> None:
    hidden = set(re.findall(INVISIBLE, "".join(EVERY)))
    assert len(hidden) > 2000
    assert {character for character in hidden if character.isprintable()} == set()
    assert all(without_invisible(f"a{character}b") == "a\ufffdb" for character in hidden)


def test_every_end_of_line_becomes_a_space() -> None:
    ends = [one for one in EVERY if len(f"a{one}b".splitlines()) > 1 and not "\x1c" <= one <= "\x1e"]
    assert len(ends) == 7
    assert {clean(f"a{one}b") for one in [*ends, "\t"]} == {"a b"}


def test_our_marks_cannot_come_from_a_file() -> None:
    assert clean_input("a\ue0001\ue001b\ue002c\ue003") == "a\ufffd1\ufffdb\ufffdc\ufffd"
    assert clean_input("grün") == "grün"
