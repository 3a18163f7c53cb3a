"""The bracket of the memory boundary: highest utilisation that survived, lowest that failed.

Utilisation is counted in whole points (multiples of a step), so that "probed before" is exact. The search is
a value: ask `next_point`, try it, tell `with_result`, until `next_point` gives None.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bracket:
    """What is known of the boundary between `lowest` and `highest` (both may be probed)."""

    lowest: int
    highest: int
    tolerance: int
    """The bracket is tight enough once failure and success are at most this many points apart."""
    survived: tuple[int, ...] = ()
    """Points that started and survived, in the order tried."""
    failed: tuple[int, ...] = ()
    """Points with a classified failure, in the order tried."""

    def __post_init__(self) -> None:
        if not (self.lowest <= self.highest and self.tolerance >= 1):
            raise ValueError(f"not a bracket: {self.lowest}..{self.highest} to {self.tolerance}")

    @property
    def lowest_failure(self) -> int | None:
        """The lowest point that failed."""
        return min(self.failed, default=None)

    @property
    def highest_success(self) -> int | None:
        """The highest point that survived with no failure at or below it."""
        ceiling = self.lowest_failure
        return max((p for p in self.survived if ceiling is None or p < ceiling), default=None)

    @property
    def is_monotone(self) -> bool:
        """False when something survived above a failure: the boundary itself is noisy there."""
        return self.highest_success == max(self.survived, default=None)

    @property
    def is_closed(self) -> bool:
        """One success and one failure, no further apart than the tolerance."""
        low, high = self.highest_success, self.lowest_failure
        return low is not None and high is not None and high - low <= self.tolerance

    def with_result(self, point: int, survived: bool) -> Bracket:
        """The bracket after one more probe."""
        if survived:
            return dataclasses.replace(self, survived=(*self.survived, point))
        return dataclasses.replace(self, failed=(*self.failed, point))

    def next_point(self, predicted: int) -> int | None:
        """The point to try next; None when the bracket is closed or no point is left to try.

        Starts half a tolerance below the prediction and, after a success, goes a tolerance up: a prediction
        that is right to half the tolerance is proven in two probes. A wrong one is left in doubling steps,
        or at once when a survivor's own memory use moved the prediction up; then the gap is halved.
        """
        low, high = self.highest_success, self.lowest_failure
        if low is not None and high is not None:
            return None if high - low <= self.tolerance else (low + high) // 2
        first = predicted - self.tolerance // 2
        if low is not None:
            stride = self.tolerance if low <= first else self._stride(self.survived)
            return self._clamped(first if first > low + self.tolerance else low + stride, above=low)
        if high is not None:
            return self._clamped(high - self._stride(self.failed), below=high)
        return min(max(first, self.lowest), self.highest)

    def _stride(self, tried: tuple[int, ...]) -> int:
        """The tolerance after the first probe on this side, then twice the last step."""
        if len(tried) == 1:
            return self.tolerance
        ordered = sorted(tried)
        last_step = ordered[-1] - ordered[-2] if tried[-1] == ordered[-1] else ordered[1] - ordered[0]
        return 2 * last_step

    def _clamped(self, point: int, *, above: int | None = None, below: int | None = None) -> int | None:
        point = min(max(point, self.lowest), self.highest)
        if (above is not None and point <= above) or (below is not None and point >= below):
            return None
        return point
