"""Find a card by any name people use for it, and the cards of this machine through NVML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kvplan.catalog import index
from kvplan.catalog.gpu_spec import spec_of
from kvplan.catalog.names import gpu_key, gpu_words, nearest
from kvplan.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvplan.catalog.detection import DetectedGpu
    from kvplan.memory.hardware import GpuSpec

_NEUTRAL: Final = frozenset(
    {"sxm", "pcie", "hbm3", "hbm3e", "ac", "blackwell", "jetson", "agx"}
    | {"workstation", "ws", "server", "s", "max", "q", "maxq"}
)
"""Words that a query may leave out: they name the form of a card; `ti`, `super` and `d` name another card."""
_SIZE_WORD: Final = r"\d+gb"


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
    found = _nearest(query, [profiles.names.get("gpus", {}) for profiles in catalogue])
    raise UnknownNameError(
        f"no GPU profile {query!r}",
        (f"did you mean {', '.join(found)}? " if found else "")
        + "`kvplan profiles gpus` lists all; --gpu-memory-gib takes any card",
        nearest=found,
    )


def detect_gpus(*, profiles_dir: str | None = None) -> list[DetectedGpu]:
    """The cards of this machine, each with the profile that its name and memory match; empty without any."""
    from kvplan.catalog.detection import described, read_nvml

    readings = read_nvml()
    if not readings:
        return []
    profiles = gpu_profiles(profiles_dir=profiles_dir)
    specs = [spec_of(profile) for profile in profiles]
    return [described(reading, profiles, specs) for reading in readings]


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


def _matches(query: str, names: Mapping[str, list[str]]) -> list[str]:
    """Ids that a query means: by a whole name, else by one written together, else by one but for its form."""
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


def _ids(names: Mapping[str, list[str]], wanted: Callable[[str], bool]) -> list[str]:
    return sorted({gpu for key, ids in names.items() if wanted(key) for gpu in ids})


def _names_all_but_form(key: str, words: tuple[str, ...]) -> bool:
    """Whether a query says a card's name but for its form factor and memory size."""
    name = set(key.split("-"))
    left = name - set(words)
    return (
        bool(words) and set(words) <= name and all(w in _NEUTRAL or re.fullmatch(_SIZE_WORD, w) for w in left)
    )


def _nearest(query: str, tables: Sequence[Mapping[str, list[str]]]) -> tuple[str, ...]:
    """Ids of cards that have the query's number (`4070` -> the 4070 Ti Super), then those spelt alike."""
    numbers = {word for word in gpu_words(query) if any(c.isdigit() for c in word) and len(word) > 2}
    names = {key: ids for table in reversed(tables) for key, ids in table.items()}
    same_number = [key for key in names if numbers & set(key.split("-"))]
    alike = nearest(gpu_key(query), names, count=6)
    return tuple(dict.fromkeys(gpu for key in (*same_number, *alike) for gpu in names[key]))[:3]


def _refuse_unsaid_size(query: str, record: Mapping[str, Any]) -> None:
    """Cards of one name with other memory sizes, which have no profile: the user must say which."""
    others = record.get("other_sizes_gb", ())
    if others and not any(re.fullmatch(_SIZE_WORD, word) or word.isdigit() for word in gpu_words(query)[1:]):
        sizes = " and ".join(f"{size} GB" for size in (*others, round(record["marketing_gb"])))
        raise InputError(
            f"{query!r} is sold with {sizes}",
            f"say {record['id']!r} for the one with a profile, --gpu-memory-gib for the other",
        )
