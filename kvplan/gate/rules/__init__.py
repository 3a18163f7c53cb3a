"""The gate's rules: what each looks at, what it says, and the value that would pass. One docs page each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.gate.rules.capacity import BelowTarget, CapacityRegression, SeqsTooFew, SeqsUnreachable
from kvplan.gate.rules.flags import (
    Contradiction,
    DeprecatedFlag,
    LongerThanModel,
    NewerThanRules,
    NotAllowed,
    Refused,
    TensorParallelSize,
    TooFewGpus,
    UnknownFlag,
    UnsupportedValue,
)
from kvplan.gate.rules.hosts import HostMemory, OffloadOverPcie, SharedGpu
from kvplan.gate.rules.start import (
    HeadroomTooSmall,
    StartTooUnlikely,
    Tight,
    UtilizationTooHigh,
    WillNotStart,
)
from kvplan.gate.rules.traffic import PrefixCachingOff, TooShortForWorkload

if TYPE_CHECKING:
    from kvplan.gate.rules.base import Rule

RULES: Final[tuple[Rule, ...]] = (
    WillNotStart(),
    Tight(),
    Refused(),
    UnknownFlag(),
    TooFewGpus(),
    BelowTarget("KVP006", "p95"),
    BelowTarget("KVP007", "p99"),
    BelowTarget("KVP008", "worst_case"),
    TooShortForWorkload(),
    LongerThanModel(),
    UnsupportedValue(),
    TensorParallelSize(),
    SeqsUnreachable(),
    SeqsTooFew(),
    UtilizationTooHigh(),
    DeprecatedFlag(),
    PrefixCachingOff(),
    OffloadOverPcie(),
    HostMemory(),
    Contradiction(),
    SharedGpu(),
    CapacityRegression(),
    NewerThanRules(),
    HeadroomTooSmall(),
    StartTooUnlikely(),
    NotAllowed(),
)
"""Asked of every launch, in the order of their ids."""

IDLE_WAIVER: Final = ("KVP027", "waiver-without-effect")
NO_LAUNCH: Final = ("KVP028", "no-launch")
RULE_IDS: Final = (*(rule.id for rule in RULES), IDLE_WAIVER[0], NO_LAUNCH[0])
