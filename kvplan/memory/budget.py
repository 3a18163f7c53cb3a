"""The ledger of one GPU: lines that sum to the card, each with bytes, interval and source."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from kvplan.memory.interval import Interval
from kvplan.memory.overhead import combine
from kvplan.record import FrozenRecord

LineName = Literal["weights", "activations", "cuda_graphs", "other", "kv_cache", "unrequested"]


class BudgetLine(NamedTuple):
    """One use of the card's memory."""

    name: LineName
    bytes: Interval
    """May be negative for `kv_cache` (what is missing) and `unrequested` (promised beyond the card)."""
    source: str
    """Where the figure is from: config arithmetic, headers, the fitted overhead model, a flag."""


class Budget(FrozenRecord):
    """What becomes of one GPU's memory; the mid values of the lines sum to `total_bytes` exactly."""

    total_bytes: int
    requested_bytes: int
    """utilisation x total: what vLLM lets itself use. It is a target of vLLM's arithmetic, no ceiling."""
    lines: tuple[BudgetLine, ...]

    def line(self, name: LineName) -> BudgetLine:
        """The line of that name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def available_kv_bytes(self) -> Interval:
        """What vLLM prints as "Available KV cache memory"; negative when the rest does not fit."""
        return self.line("kv_cache").bytes


def requested_bytes(total_bytes: int, gpu_memory_utilization: float, rounding: Literal["int", "ceil"]) -> int:
    """The share of the card that vLLM plans with.

    Source: vLLM 0.32.0 v1/worker/utils.py::request_memory (ceil, since 0.14); gpu_worker.py before (int).
    """
    share = total_bytes * gpu_memory_utilization
    return math.ceil(share) if rounding == "ceil" else int(share)


def remaining(of_bytes: Interval, uses: Interval) -> Interval:
    """What is left of an amount after its uses; the two are independent."""
    return combine((of_bytes, Interval(-uses.high, -uses.mid, -uses.low)))
