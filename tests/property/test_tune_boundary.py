"""The bracket of the boundary: one success, one failure, nothing probed twice, few probes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kvplan.tune.boundary import Bracket

points = st.integers(0, 400)


def search(bracket: Bracket, boundary: int, predicted: int) -> tuple[Bracket, list[int]]:
    """Probe until the bracket asks no more; a point survives up to and including `boundary`."""
    probed: list[int] = []
    while (point := bracket.next_point(predicted)) is not None:
        assert len(probed) <= 1000, "the search does not end"
        probed.append(point)
        bracket = bracket.with_result(point, point <= boundary)
    return bracket, probed


@given(points, points, st.integers(0, 200), st.integers(1, 20), st.integers(-50, 500))
def test_brackets_the_boundary_and_probes_nothing_twice(
    lowest: int, boundary: int, width: int, tolerance: int, predicted: int
) -> None:
    bracket, probed = search(Bracket(lowest, lowest + width, tolerance), boundary, predicted)
    assert len(probed) == len(set(probed))
    assert all(lowest <= point <= lowest + width for point in probed)
    low, high = bracket.highest_success, bracket.lowest_failure
    assert low is None or low <= boundary
    assert high is None or high > boundary
    if boundary < lowest:
        assert (low, high) == (None, lowest)
    elif boundary >= lowest + width:
        assert (low, high) == (lowest + width, None)
    else:
        assert bracket.is_closed
        assert low is not None
        assert high is not None
        assert high - low <= tolerance


@given(st.integers(50, 150), st.integers(1, 20))
def test_a_right_prediction_is_proven_in_two_probes(boundary: int, tolerance: int) -> None:
    # Right: the boundary lies less than half a tolerance above or below. With tolerance t the probes are at
    # p - t//2 and p - t//2 + t, so every boundary in [p - t//2, p - t//2 + t) is closed by these two.
    bracket, probed = search(Bracket(0, 200, tolerance), boundary, predicted=boundary)
    assert len(probed) == 2
    assert bracket.is_closed


@given(st.integers(0, 199), st.integers(1, 10), st.integers(0, 200))
def test_a_wrong_prediction_costs_logarithmically(boundary: int, tolerance: int, predicted: int) -> None:
    # Doubling away from the prediction over a distance d takes at most log2(d / t) + 2 steps, and the gap it
    # leaves is at most as wide as d, halved back down to t in log2(d / t) + 1.
    _, probed = search(Bracket(0, 200, tolerance), boundary, predicted)
    distance = max(tolerance, abs(boundary - predicted) + tolerance)
    assert len(probed) <= 2 * math.log2(distance / tolerance) + 5


def test_a_survivor_above_a_failure_is_told_and_not_trusted() -> None:
    bracket = Bracket(0, 100, 2).with_result(40, survived=True).with_result(50, survived=False)
    noisy = bracket.with_result(60, survived=True)
    assert bracket.is_monotone
    assert not noisy.is_monotone
    assert noisy.highest_success == 40
    assert noisy.next_point(predicted=70) == 45
