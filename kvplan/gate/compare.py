"""Launches of two trees matched with each other: by what they are called, never by the line they stand on."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvplan.gate.found import LaunchFound

    Key = Callable[[LaunchFound, int], tuple[object, ...]]


def pair(
    now: Sequence[LaunchFound], before: Sequence[LaunchFound], renames: Mapping[str, str]
) -> dict[int, LaunchFound]:
    """Index in `now` -> the same launch of `before`.

    Launches are the same by file (or what it was renamed from), container, service or function, model and
    ordinal; where one of name and model changed, by the other; a file's only launch by the file alone.

    Args:
        now: launches of the tree that is judged.
        before: launches of the base.
        renames: path now -> path in the base.
    """
    found: dict[int, LaunchFound] = {}
    taken: set[int] = set()
    keys: tuple[Key, ...] = (
        lambda launch, nth: (launch.name, launch.stage, launch.profile, launch.model, nth),
        lambda launch, nth: (launch.name, launch.stage, launch.profile, nth) if launch.name else (None,),
        lambda launch, nth: (launch.model, nth) if launch.model else (None,),
        lambda _, nth: (nth,),
    )
    for key in keys:
        left = [i for i in range(len(now)) if i not in found]
        free = [i for i in range(len(before)) if i not in taken]
        by_key = _grouped(((before[i].path, before[i], i) for i in free), key)
        for place, i in _grouped(
            ((renames.get(now[i].path, now[i].path), now[i], i) for i in left), key
        ).items():
            other = by_key.get(place)
            if other is not None and place[1:] != (None,):
                found[i] = before[other]
                taken.add(other)
    return found


def _grouped(launches: Iterable[tuple[str, LaunchFound, int]], key: Key) -> dict[tuple[object, ...], int]:
    """(path, key with ordinal) -> index."""
    seen: dict[tuple[object, ...], int] = defaultdict(int)
    grouped: dict[tuple[object, ...], int] = {}
    for path, launch, i in launches:
        plain = (path, *key(launch, 0))
        grouped[path, *key(launch, seen[plain])] = i
        seen[plain] += 1
    return grouped


def is_same(one: LaunchFound, other: LaunchFound) -> bool:
    """Whether two launches differ in nothing but where they stand."""
    return _without_places(one) == _without_places(other)


def _without_places(launch: LaunchFound) -> LaunchFound:
    return dataclasses.replace(launch, path="", line=0, column=0, places={}, model_place=None)
