"""Find a card by any name people use for it, and the cards of this machine through NVML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kvplan.catalog import index
from kvplan.catalog.names import gpu_key, gpu_words, nearest
from kvplan.errors import InputError, UnknownNameError
from kvplan.memory.hardware import GpuSpec
from kvplan.units import bytes_from_gib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NEUTRAL: Final = frozenset(
    "sxm pcie hbm3 hbm3e ac blackwell workstation ws server s max q maxq jetson agx".split()
)
"""Words that a query may leave out: they name the form of a card, not another card (`ti`, `super`, `d` do)."""
_SIZE_WORD: Final = re.compile(r"\d+gb")


def find_gpu(query: str, *, profiles_dir: str | None = None) -> GpuSpec:
    """The card of that name: id, alias, NVML name; vendor words, case, spaces and dashes don't matter.

    Raises:
        UnknownNameError: no such card; `nearest` holds similar names.
        InputError: several cards go by that name; the hint names them.
    """
    record = find_gpu_profile(query, profiles_dir=profiles_dir)
    return spec_of(record)


def find_gpu_profile(query: str, *, profiles_dir: str | None = None) -> Mapping[str, Any]:
    """The whole profile of a card as JSON types: every fact with its source (see docs/profiles.md).

    Raises:
        UnknownNameError, InputError: as `find_gpu`.
    """
    catalogue = index.indexes(profiles_dir)
    for profiles in catalogue:
        ids = _matches(query, profiles.names.get("gpus", {}))
        if len(ids) > 1:
            raise InputError(
                f"{query!r} may be {', '.join(ids[:-1])} or {ids[-1]}", "give one of these names"
            )
        if ids:
            record = profiles.record("gpus", ids[0])
            _refuse_unsaid_size(query, record)
            return record
    known = [name for profiles in catalogue for name in profiles.records.get("gpus", {})]
    found = nearest("-".join(gpu_words(query)), known) or nearest(query, known)
    raise UnknownNameError(
        f"no GPU profile {query!r}",
        (f"did you mean {', '.join(found)}? " if found else "")
        + "`kvplan profiles gpus` lists all; --gpu-memory-gib takes any card",
        nearest=found,
    )


def all_gpus(*, profiles_dir: str | None = None) -> list[GpuSpec]:
    """Every card that is known, by id; a user's profile in place of the built-in one of the same id."""
    return [spec_of(record) for record in gpu_profiles(profiles_dir=profiles_dir)]


def gpu_profiles(*, profiles_dir: str | None = None) -> list[Mapping[str, Any]]:
    """The whole profiles of `all_gpus`, in the same order."""
    records: dict[str, Mapping[str, Any]] = {}
    for profiles in index.indexes(profiles_dir):
        for gpu in profiles.records.get("gpus", {}):
            if gpu not in records:
                records[gpu] = profiles.record("gpus", gpu)
    return [records[gpu] for gpu in sorted(records)]


def spec_of(record: Mapping[str, Any]) -> GpuSpec:
    """What the memory model needs of a card's profile."""
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


def _matches(query: str, names: Mapping[str, list[str]]) -> list[str]:
    """Ids that a query means: by a name it has in full, else by the words of one, else by all but its form."""
    words = gpu_words(query)
    sized = tuple(
        f"{word}gb" if i and word.isdigit() and len(word) < 4 else word for i, word in enumerate(words)
    )
    for key in (gpu_key(query), "-".join(sized)):
        if key in names:
            return names[key]
    run_together = "".join(words)
    same_letters = _ids(names, lambda key: key.replace("-", "") == run_together)
    return same_letters or _ids(names, lambda key: _names_all_but_form(key, sized))


def _ids(names: Mapping[str, list[str]], wanted: Any) -> list[str]:
    return sorted({gpu for key, ids in names.items() if wanted(key) for gpu in ids})


def _names_all_but_form(key: str, words: tuple[str, ...]) -> bool:
    """Whether a query says a card's name but for its form factor and memory size."""
    name = set(key.split("-"))
    left = name - set(words)
    return bool(words) and set(words) <= name and all(w in _NEUTRAL or _SIZE_WORD.fullmatch(w) for w in left)


def _refuse_unsaid_size(query: str, record: Mapping[str, Any]) -> None:
    """Cards of one name with other memory sizes, which have no profile: the user must say which."""
    others = record.get("other_sizes_gb", ())
    if others and not any(_SIZE_WORD.fullmatch(word) or word.isdigit() for word in gpu_words(query)[1:]):
        sizes = " and ".join(f"{size} GB" for size in (*others, round(record["marketing_gb"])))
        raise InputError(
            f"{query!r} is sold with {sizes}",
            f"say {record['id']!r} for the one with a profile, --gpu-memory-gib for the other",
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
    renamed = {
        "total_gib": "total_bytes",
        "total_gib_low": "total_bytes_low",
        "total_gib_high": "total_bytes_high",
    }
    for key, fact in record.items():
        if isinstance(fact, dict) and "source" in fact:
            yield renamed.get(key, key), fact["source"]
    if record.get("prices"):
        price = record["prices"][0]
        yield "usd_per_hour", f"{price['provider']} {price['kind']}, {price['date']}: {price['source']}"
