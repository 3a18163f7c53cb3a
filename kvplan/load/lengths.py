"""Length distributions: means, percentiles and limits turned into representative (input, output) pairs.

Pure functions of numbers. A marginal (prompt or answer lengths alone) becomes the distribution that assumes
least: maximum entropy under the stated quantiles, limits and mean. Between two stated quantiles that is an
exponential cut off at both ends, with one rate for all of them; without a stated mean the rate is 0 and the
quantile function is a straight line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from kvplan.errors import InputError
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

Dependence = Literal["comonotone", "independent"]

STRATA: Final = 1000
"""Pairs that stand for a distribution; one in a thousand is the finest quantile asked of it (P99.9)."""

_GOLDEN: Final = 0.6180339887498949


@dataclass(frozen=True, slots=True, order=True)
class LengthSample:
    """One request, in tokens, as the server sees it: the whole prompt and the whole answer."""

    input_len: int
    output_len: int
    count: int = 1
    """How many requests of the traffic look like this one."""

    @property
    def total_len(self) -> int:
        """Tokens whose keys and values are in the cache when the answer ends."""
        return self.input_len + self.output_len


class Marginal(FrozenRecord):
    """Lengths of prompts (or of answers) alone, in tokens."""

    knots: tuple[tuple[float, int], ...]
    """(share of requests at most this long, length), ascending, from (0, shortest) to (1, longest)."""
    mean: float | None = None

    @classmethod
    def fixed(cls, length: int) -> Marginal:
        """Every request has this length."""
        return cls(knots=((0.0, length), (1.0, length)))

    def rate(self) -> float:
        """The rate of the cut-off exponentials that gives the stated mean; 0 is a straight line.

        Raises:
            InputError: no distribution with these quantiles has this mean.
        """
        widths = [(b[0] - a[0], a[1], b[1] - a[1]) for a, b in pairwise(self.knots)]
        shortest = sum(share * low for share, low, _ in widths)
        spread = sum(share * width for share, _, width in widths)
        if self.mean is None or not spread:
            if self.mean is not None and abs(self.mean - shortest) > 0.5:
                raise InputError(
                    f"mean {self.mean:g} contradicts lengths that are all {shortest:g}",
                    "leave the mean out, or give percentiles",
                )
            return 0.0
        if not shortest <= self.mean <= shortest + spread:
            raise InputError(
                f"mean {self.mean:g} contradicts the percentiles",
                f"they allow a mean between {shortest:g} and {shortest + spread:g}",
            )

        def mean_at(rate: float) -> float:
            return sum(share * (low + width * _mean_share(rate * width)) for share, low, width in widths)

        longest = max(width for _, _, width in widths)
        low, high = -1e4 / longest, 1e4 / longest
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if mean_at(middle) > self.mean else (low, middle)
        return (low + high) / 2

    def strata(self, count: int = STRATA) -> list[float]:
        """The mean length of each of `count` equal shares of the requests, shortest first.

        The share that ends at a stated quantile has exactly the stated length; the shares below it give back
        what that adds, so that the mean stays.
        """
        rate = self.rate()
        # Four points a stratum: the strata's mean is then the distribution's to a few in 10^5.
        points = [self._quantile((i + 0.5) / (4 * count), rate) for i in range(4 * count)]
        lengths = [sum(points[4 * i : 4 * i + 4]) / 4 for i in range(count)]
        for (q_low, low), (q_high, high) in zip(self.knots[:-1], self.knots[1:-1], strict=False):
            first, last = math.ceil(q_low * count - 1e-9), math.ceil(q_high * count - 1e-9) - 1
            above_low = sum(lengths[first:last]) - low * (last - first)
            keep = 1 - (high - lengths[last]) / above_low if above_low > high - lengths[last] else 1.0
            lengths[first:last] = [low + (length - low) * keep for length in lengths[first:last]]
            lengths[last] = float(high)
        return lengths

    def _quantile(self, q: float, rate: float) -> float:
        for (q_low, low), (q_high, high) in pairwise(self.knots):
            if q <= q_high:
                share = (q - q_low) / (q_high - q_low)
                return low + (high - low) * _quantile_share(share, rate * (high - low))
        return float(self.knots[-1][1])


def _mean_share(x: float) -> float:
    """Mean of a density proportional to exp(-x t) on [0, 1]."""
    if abs(x) < 1e-4:
        return 0.5 - x / 12
    if x > 500:
        return 1 / x
    if x < -500:
        return 1 + 1 / x
    return 1 / x - 1 / math.expm1(x)


def _quantile_share(u: float, x: float) -> float:
    """Quantile `u` of a density proportional to exp(-x t) on [0, 1]."""
    if abs(x) < 1e-6:
        return u
    if x < 0:
        return 1 - _quantile_share(1 - u, -x)
    return -math.log1p(u * math.expm1(-x)) / x


def pair(inputs: Marginal, outputs: Marginal, dependence: Dependence) -> tuple[LengthSample, ...]:
    """Representative requests of two marginals, `STRATA` of them (one if both are fixed).

    Comonotone: the longest prompts get the longest answers, the cautious reading of two separate percentiles:
    no other pairing has a larger mean of what lies above any given total. Independent: neither says anything
    about the other (paired by a golden-ratio lattice, which spreads evenly over both).
    """
    input_lens, output_lens = _whole(inputs.strata()), _whole(outputs.strata())
    if dependence == "independent":
        order = sorted(range(STRATA), key=lambda i: (i * _GOLDEN) % 1.0)
        output_lens = [output_lens[i] for i in order]
    return merge([LengthSample(i, o) for i, o in zip(input_lens, output_lens, strict=True)])


def _whole(lengths: Sequence[float]) -> list[int]:
    """Whole tokens, at least 1, whose sum stays within one of the sum of `lengths`: the mean is kept."""
    whole, owed = [], 0.0
    for length in lengths:
        # 0.99: a length that is whole already stays what it is.
        rounded = max(1, round(length + 0.99 * owed))
        owed += length - rounded
        whole.append(rounded)
    return whole


def merge(samples: Sequence[LengthSample]) -> tuple[LengthSample, ...]:
    """The same requests with equal ones counted together, ascending by total length."""
    counts: dict[tuple[int, int], int] = {}
    for sample in samples:
        key = (sample.input_len, sample.output_len)
        counts[key] = counts.get(key, 0) + sample.count
    ordered = sorted(counts.items(), key=lambda item: (sum(item[0]), item[0]))
    return tuple(LengthSample(i, o, n) for (i, o), n in ordered)


def reduce(samples: Sequence[LengthSample], size: int) -> tuple[LengthSample, ...]:
    """At most `size` requests that stand for all of them: one out of each equal share, by total length.

    Of each share the middle request is kept, so that every pair really occurred; the longest is the caller's
    to state separately.
    """
    merged = merge(samples)
    if len(merged) <= size:
        return merged
    return merge([replace(at_share(merged, (i + 0.5) / size), count=1) for i in range(size)])


def at_share(merged: Sequence[LengthSample], q: float) -> LengthSample:
    """The request at share `q` of ascending `merged`: at least that share of requests is at most as long.

    This is the smallest length whose cumulative share reaches `q` (numpy's `inverted_cdf`): it is a length
    that occurs, and for the longest requests it does not interpolate downwards.
    """
    needed = q * sum(sample.count for sample in merged)
    seen = 0
    for sample in merged:
        seen += sample.count
        # A hair of slack: 0.95 * 20 is 19.000000000000004 in floating point.
        if seen >= needed - 1e-9 * max(1.0, needed):
            return sample
    return merged[-1]
