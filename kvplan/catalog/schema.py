"""What a profile file may say: the shapes that YAML is checked against, once, when an index is made.

Nothing on the path of a look-up imports this module (pydantic is slow to import): look-ups read the index.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvplan.units import bytes_from_gib

T = TypeVar("T")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fact(_Strict, Generic[T]):
    """A value and where it is from."""

    value: T
    source: str = Field(min_length=1)
    note: str | None = None


class MemoryFact(_Strict):
    """A memory size in GiB; `bytes` where the source printed it to the last byte."""

    value: float = Field(gt=0)
    source: str = Field(min_length=1)
    note: str | None = None
    bytes: int | None = Field(default=None, gt=0)
    derived: bool = False
    """Computed from another figure, never read on such a card."""

    @model_validator(mode="after")
    def _bytes_agree(self) -> MemoryFact:
        if self.bytes is not None and abs(self.bytes - bytes_from_gib(self.value)) > bytes_from_gib(0.006):
            raise ValueError(f"bytes ({self.bytes}) and value ({self.value} GiB) are different sizes")
        return self

    def exact_bytes(self) -> int:
        """The printed bytes, else the bytes of the printed GiB."""
        return self.bytes if self.bytes is not None else bytes_from_gib(self.value)


class Reading(_Strict):
    """One total that torch or CUDA printed on a card."""

    gib: float = Field(gt=0)
    source: str = Field(min_length=1)
    os: Literal["linux", "windows"] = "linux"
    names_card: bool = True
    """Whether the source names the card; if not, the capacity points to it."""
    note: str | None = None


class Price(_Strict):
    """What an hour of one card cost, where and when."""

    usd_per_hour: float = Field(gt=0)
    provider: str
    kind: str
    date: str
    source: str = Field(min_length=1)


class GpuProfile(_Strict):
    """`profiles/gpus/<id>.yaml`."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    name: str
    aliases: tuple[str, ...] = ()
    nvml_names: tuple[str, ...] = ()
    """Names that NVML (or the vendor's tool) prints; variants may share one: memory tells them apart."""
    vendor: Literal["nvidia", "amd", "intel", "huawei", "other"] = "nvidia"
    arch: str | None = None
    marketing_gb: float | None = None
    other_sizes_gb: tuple[int, ...] = ()
    """Memory sizes of cards that go by the same name and have no profile: the size must then be said."""
    devices_per_card: int = 1
    compute_capability: Fact[str] | None = None
    total_gib: MemoryFact
    total_gib_low: MemoryFact | None = None
    total_gib_high: MemoryFact | None = None
    readings: tuple[Reading, ...] = ()
    nvidia_smi_mib: Fact[int] | None = None
    unified_memory: bool = False
    ecc: Fact[str] | None = None
    cuda_context_mib: Fact[float] | None = None
    bandwidth_gbs: Fact[float] | None = None
    pcie_gbs_per_direction: Fact[float] | None = None
    prices: tuple[Price, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _in_order(self) -> GpuProfile:
        low, high = self.total_gib_low or self.total_gib, self.total_gib_high or self.total_gib
        if not low.exact_bytes() <= self.total_gib.exact_bytes() <= high.exact_bytes():
            raise ValueError("total_gib_low <= total_gib <= total_gib_high does not hold")
        return self


class WeightsFact(_Strict):
    """Bytes of the weight files, and how they are known."""

    value: int = Field(gt=0)
    kind: Literal["headers", "index", "index-sibling", "published", "derived"]
    """Read in its headers or index; in the index of a model with the same tensors; published; computed."""
    source: str = Field(min_length=1)
    note: str | None = None


class ModelProfile(_Strict):
    """`profiles/models/<org>__<name>.yaml`."""

    id: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
    base: str | None = None
    """Another profile whose config this one starts from; `config` then holds only the differences."""
    config: dict[str, Any] = Field(default_factory=dict)
    config_source: str = Field(min_length=1)
    confidence: Literal["config.json", "trimmed", "same-geometry", "derived"]
    """The file itself; a file cut to the keys that matter; another model's file; put together by hand."""
    parameters: Fact[int] | None = None
    weights_bytes: WeightsFact | None = None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_config(self) -> ModelProfile:
        if self.base is None and not self.config:
            raise ValueError("config is empty and there is no base to take it from")
        return self


SCHEMAS: dict[str, type[GpuProfile | ModelProfile]] = {"gpus": GpuProfile, "models": ModelProfile}
"""Folder of profiles -> what its files hold. Other folders (engines, workloads) are indexed as they are."""
