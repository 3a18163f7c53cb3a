"""The utilisation at which a probe on a GPU is tried next. Pure; the same one is never asked twice."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

LEAST_GAP: Final = 0.01
"""Between too high and too low: closer than this there is no point worth a launch."""
LOWEST: Final = 0.15
HIGHEST: Final = 0.97
STEP_DOWN: Final = 0.15
STEP_UP: Final = 0.1


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """A utilisation to try, between what was too high and what was too low."""

    utilization: float
    highest: float = HIGHEST
    """Never above: what the user allows, at most 0.97."""
    too_high: float | None = None
    """The lowest that was too much memory."""
    too_low: float | None = None
    """The highest that left too little KV cache."""

    def failed(self, *, is_too_high: bool) -> ProbePoint:
        """The same point, now one of the two ends."""
        if is_too_high:
            return dataclasses.replace(self, too_high=self.utilization)
        return dataclasses.replace(self, too_low=self.utilization)

    def following(self) -> ProbePoint | None:
        """The point to try after this one failed; None when nothing is left to try."""
        point = self._next()
        return None if point is None else dataclasses.replace(self, utilization=point)

    def _next(self) -> float | None:
        """In steps while only one end is known, then half-way between the two."""
        if self.too_high is not None and self.too_low is not None:
            is_wide = self.too_high - self.too_low > LEAST_GAP + 1e-9
            return round((self.too_high + self.too_low) / 2, 3) if is_wide else None
        if self.too_high is not None:
            point = round(max(LOWEST, self.utilization - STEP_DOWN), 3)
            return point if point < self.utilization else None
        point = round(min(HIGHEST, self.highest, self.utilization + STEP_UP), 3)
        return point if point > self.utilization else None

    def told(self) -> str:
        """The two ends, where both are known."""
        high, low = self.too_high, self.too_low
        if high is None or low is None:
            return ""
        return f"utilisation {high:g} takes too much memory and {low:g} leaves too little KV cache; "
