"""A card's profile (facts with sources) -> what the memory model needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.memory.hardware import GpuSpec
from kvplan.units import bytes_from_gib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SPEC_FIELD: Final = {
    "total_gib": "total_bytes",
    "total_gib_low": "total_bytes_low",
    "total_gib_high": "total_bytes_high",
}


def spec_of(record: Mapping[str, Any]) -> GpuSpec:
    """The card of a profile, as the index holds it (`schema.GpuProfile` as JSON types)."""
    total = record["total_gib"]
    capability = _value(record, "compute_capability")
    prices = record.get("prices", ())
    return GpuSpec(
        id=record["id"],
        name=record["name"],
        total_bytes=_memory_bytes(total),
        total_bytes_low=_memory_bytes(record.get("total_gib_low", total)),
        total_bytes_high=_memory_bytes(record.get("total_gib_high", total)),
        compute_capability=_capability(capability) if capability else None,
        vendor=record.get("vendor", "nvidia"),
        arch=record.get("arch"),
        unified_memory=record.get("unified_memory", False),
        usd_per_hour=prices[0]["usd_per_hour"] if prices else None,
        total_is_derived=total.get("derived", False),
        bandwidth_gbs=_value(record, "bandwidth_gbs"),
        pcie_gbs_per_direction=_value(record, "pcie_gbs_per_direction"),
        notes=tuple(record.get("notes", ())),
        sources=dict(_sources(record)),
    )


def _value(record: Mapping[str, Any], fact: str) -> Any:
    return record[fact]["value"] if fact in record else None


def _memory_bytes(fact: Mapping[str, Any]) -> int:
    exact: int | None = fact.get("bytes")
    return exact if exact is not None else bytes_from_gib(fact["value"])


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _sources(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, fact in record.items():
        if isinstance(fact, dict) and "source" in fact:
            note = f" ({fact['note']})" if fact.get("note") else ""
            yield _SPEC_FIELD.get(key, key), fact["source"] + note
    if record.get("prices"):
        price = record["prices"][0]
        yield "usd_per_hour", f"{price['provider']} {price['kind']}, {price['date']}: {price['source']}"
