"""What a machine's own launches add to the model: a shift, and a narrower interval around it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.memory.interval import Interval
from kvplan.units import format_gib

if TYPE_CHECKING:
    from kvplan.memory.overhead.inputs import Overhead


@dataclass(frozen=True, slots=True)
class Correction:
    """What launches of this model, card and version measured, against what was predicted for them."""

    shift_bytes: int
    """Measured minus predicted non-KV memory; positive means that more was used than predicted."""
    spread_bytes: int
    """Half-width of the 80 % interval that is left after the shift."""
    launches: int
    """How many launches it rests on."""
    newest: str | None
    """When the latest of them was started, UTC."""
    store: str
    """The file that they are kept in."""

    def describe(self) -> str:
        """One line for the reader of an estimate."""
        sign = "+" if self.shift_bytes >= 0 else "-"
        when = f", the latest {self.newest}" if self.newest else ""
        plural = "" if self.launches == 1 else "es"
        return (
            f"corrected by {sign}{format_gib(abs(self.shift_bytes))} from {self.launches} launch{plural} "
            f"measured here{when} ({self.store}; --no-local-calibration turns it off)"
        )


def corrected(overhead: Overhead, correction: Correction) -> Overhead:
    """The overhead moved by what was measured; its charged terms are then as certain as the measurement.

    The shift lands in `other`, whose interval becomes the correction's own; activations and graphs keep their
    middle and lose their width, because the launches measured their sum.
    """
    mid = overhead.other.mid + correction.shift_bytes
    other = Interval(mid - correction.spread_bytes, mid, mid + correction.spread_bytes)
    return dataclasses.replace(
        overhead,
        activations=Interval.exactly(overhead.activations.mid),
        cuda_graphs=Interval.exactly(overhead.cuda_graphs.mid),
        other=other,
        source="overhead model, corrected by launches measured here",
    )
