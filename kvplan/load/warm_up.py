"""Warm-up: load that is not counted, sent until the server's speed no longer rises.

The first batch of a fresh server runs at a tenth of its later speed on a CPU (threads and allocators are set
up, graphs are compiled on first use); a fixed number of warm-up requests is either too few or a waste.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Final

from kvplan.load.workload import ClosedLoop, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.load.records import RequestRecord

MOST_WAVES: Final = 5
_SHORT_ANSWER: Final = 32
"""Tokens; enough gaps to judge a wave's speed by."""
_SETTLED: Final = 0.85
"""A wave that needs at least this share of the time of the one before it: the speed has settled."""


def wave_of(workload: Workload, users: int) -> Workload:
    """The workload's prompts with short answers, sent by `users` at once."""
    samples = tuple(
        replace(sample, output_len=min(sample.output_len, _SHORT_ANSWER)) for sample in workload.samples
    )
    return replace(workload, samples=samples, arrivals=ClosedLoop(users), turns=1)


def median_gap_s(records: Sequence[RequestRecord]) -> float | None:
    """Median time per token of whole answers, None if there is none: what one wave is compared by."""
    gaps = [record.tpot_s for record in records if record.ok and record.tpot_s is not None]
    return median(gaps) if gaps else None


def has_settled(waves_s: Sequence[float | None]) -> bool:
    """Whether the last wave was about as quick as the one before it."""
    if len(waves_s) < 2:
        return False
    before, last = waves_s[-2], waves_s[-1]
    return before is not None and last is not None and last >= _SETTLED * before
