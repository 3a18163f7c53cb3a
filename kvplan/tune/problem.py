"""What the user asks of a tuning run: the target, the constraints, the card, the budget. Values, no I/O."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.config.serving import FIELD_NAMES, ServingConfig
from kvplan.units import round_up

if TYPE_CHECKING:
    from collections.abc import Mapping

Device = Literal["cuda", "cpu"]
Objective = Literal["target", "throughput", "latency", "capacity"]
Strategy = Literal["guided", "grid"]

DEFAULT_BLOCK_SIZE: Final[Mapping[str, int]] = {"cpu": 128, "cuda": 16}
"""What vLLM takes when --block-size is not given (platforms/cpu.py; v1/attention/backends for CUDA)."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token lengths of the workload that the search needs."""

    mean_input: int
    mean_output: int
    longest_input: int
    longest_output: int

    @property
    def longest_request(self) -> int:
        """Tokens of the longest prompt with the longest answer."""
        return self.longest_input + self.longest_output

    @property
    def mean_request(self) -> int:
        """Tokens of an average request when it ends."""
        return self.mean_input + self.mean_output


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a setting must hold to meet the target; None is "not asked"."""

    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    e2e_p99_ms: float | None = None
    max_preemptions: int | None = None
    min_headroom_bytes: int | None = None
    """Least distance of the recommendation from the boundary, in bytes of the card."""


@dataclass(frozen=True, slots=True)
class Space:
    """The values that each knob may take."""

    kv_cache_dtype: tuple[str, ...] = ("auto",)
    """The first is the base; the others are tried one at a time."""
    block_size: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()
    """Rising; also the loads that the sweep of one server uses."""
    utilization: tuple[float, ...] = ()
    """As given: the grid strategy's values; the guided one searches between the two ends below."""
    lowest_utilization: float = 0.05
    highest_utilization: float = 1.0
    utilization_step: float = 0.005
    """Utilisations are whole multiples of this step."""
    other: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Any other vLLM flag as a categorical knob; the first value is the base."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop, whatever has been learnt by then."""

    max_launches: int
    max_minutes: float


@dataclass(frozen=True, slots=True)
class Problem:
    """One tuning problem. Two runs of equal problems ask for the same trials."""

    model: str
    """For people and for the launch; a trial's identity is the model's fingerprint in the run's context."""
    device: Device
    card_bytes: int
    """What torch sees of the GPU, or on CPU the size of the memory cgroup."""
    target_concurrency: int
    lengths: Lengths
    space: Space
    constraints: Constraints = field(default_factory=Constraints)
    objective: Objective = "target"
    strategy: Strategy = "guided"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Flags that every launch gets as they are (enforce_eager, dtype, quantization, ...)."""
    tolerance: float = 0.02
    """Widest bracket of the boundary that ends the search for it, in utilisation."""
    margin: float = 0.02
    """Least step back from the highest utilisation that survived, in utilisation."""
    prove_low_end: bool = False
    """Spend a launch on the utilisation just too low for one request (arithmetic says the same)."""
    quality_gate: bool = True
    """Whether a quantised KV cache must show that its answers are as good before it may win."""
    repeats: int = 6
    """Measured repeats of the load at the target concurrency, in one server."""
    seed: int = 0

    @property
    def max_model_len(self) -> int:
        """The longest request in whole blocks: vLLM holds whole blocks, so the rounding costs nothing."""
        given = self.fixed.get("max_model_len")
        if given is not None:
            return int(given)
        return round_up(self.lengths.longest_request, self.base_block_size)

    @property
    def base_block_size(self) -> int:
        """The block size of the base settings: the space's first, else vLLM's own default."""
        return self.space.block_size[0] if self.space.block_size else DEFAULT_BLOCK_SIZE[self.device]

    @property
    def loads(self) -> tuple[int, ...]:
        """Numbers of users that the sweep of one server tries, rising; the target is one of them."""
        if self.space.max_num_seqs:
            return tuple(sorted({*self.space.max_num_seqs, self.target_concurrency}))
        target = self.target_concurrency
        return tuple(sorted({max(1, target // 2), target, 2 * target, 4 * target}))

    def base_settings(self) -> ServingConfig:
        """The settings that every candidate differs from in one knob; utilisation and KV are not in it."""
        settings = ServingConfig(
            max_model_len=self.max_model_len,
            max_num_seqs=max(self.loads),
            kv_cache_dtype=self.space.kv_cache_dtype[0],
            block_size=self.space.block_size[0] if self.space.block_size else None,
        )
        for name, values in self.space.other.items():
            settings = settings.with_flags(**{name: values[0]})
        return settings.with_flags(**dict(self.fixed))

    def as_dict(self) -> dict[str, Any]:
        """The problem as JSON types, for the journal's first line."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Problem:
        """The problem back from a journal."""
        space = dict(record["space"])
        for name in ("kv_cache_dtype", "block_size", "max_num_seqs", "utilization"):
            space[name] = tuple(space.get(name, ()))
        space["other"] = {name: tuple(values) for name, values in space["other"].items()}
        plain = {f.name for f in dataclasses.fields(cls)} - {"lengths", "space", "constraints"}
        rest = {k: v for k, v in record.items() if k in plain}
        return cls(
            lengths=Lengths(**record["lengths"]),
            space=Space(**space),
            constraints=Constraints(**record["constraints"]),
            **rest,
        )


def settings_from_dict(flags: Mapping[str, Any]) -> ServingConfig:
    """The ServingConfig whose `given()` is `flags`."""
    named = {k: v for k, v in flags.items() if k in FIELD_NAMES}
    if named.get("kv_cache_dtype_skip_layers") is not None:
        named["kv_cache_dtype_skip_layers"] = tuple(named["kv_cache_dtype_skip_layers"])
    return ServingConfig(**named, other_flags={k: v for k, v in flags.items() if k not in FIELD_NAMES})
