"""The words of a dry run."""

from __future__ import annotations

import pytest

from kvplan.report.tune_plan import limit_min


@pytest.mark.parametrize(
    ("minutes", "text"), [(101.667, "101 min"), (60.0, "60 min"), (2.5, "2.5 min"), (1.0, "1 min")]
)
def test_a_limit_is_said_without_fractions_that_nobody_reads(minutes: float, text: str) -> None:
    assert limit_min(minutes) == text
