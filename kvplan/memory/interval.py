"""A predicted quantity: low, mid and high, at 80 % coverage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Interval:
    """An 80 % interval of a size or a count; an exact quantity has low = mid = high."""

    low: int
    mid: int
    high: int

    def __post_init__(self) -> None:
        if not self.low <= self.mid <= self.high:
            raise ValueError(f"not an interval: {self.low}, {self.mid}, {self.high}")

    @classmethod
    def exactly(cls, value: int) -> Interval:
        """The interval of a quantity that is known to the last digit."""
        return cls(value, value, value)

    @property
    def exact(self) -> bool:
        """Whether there is nothing predicted in it."""
        return self.low == self.high

    def map(self, function: Callable[[int], int]) -> Interval:
        """The interval through a function that never decreases."""
        return Interval(function(self.low), function(self.mid), function(self.high))

    def __add__(self, other: Interval) -> Interval:
        """Sum of ends: wide on purpose, use `memory.budget` to combine independent terms."""
        return Interval(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def as_dict(self) -> dict[str, int]:
        """The three ends under their names, as in the JSON schema."""
        return {"low": self.low, "mid": self.mid, "high": self.high}
