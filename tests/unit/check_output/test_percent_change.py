"""By how much the KV cache changed, as people read it."""

from __future__ import annotations

import pytest

from kvplan.report.check.words import percent_change


@pytest.mark.parametrize(
    ("before", "now", "digits", "told"),
    [
        (1000, 1500, 1, "+50.0 %"),
        (1000, 0, 1, "-100.0 %"),
        (100_000, 99_970, 1, "0.0 %"),  # -0.03: nothing at one digit, and no "-0.0"
        (100_000, 100_030, 1, "0.0 %"),
        (1000, 996, 0, "0 %"),
        (1000, 990, 0, "-1 %"),
    ],
)
def test_what_rounds_to_nothing_has_no_sign(before: int, now: int, digits: int, told: str) -> None:
    assert percent_change(before, now, digits) == told
