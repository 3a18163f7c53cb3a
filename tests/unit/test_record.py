"""Records are dataclasses in all but how their methods are made: each is held against a real one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvplan.record import FrozenRecord, Record


@dataclass(frozen=True)
class RealPoint:
    """What the standard library makes."""

    x: int
    y: int = 2
    tags: dict[str, int] = field(default_factory=dict)
    hidden: int = field(default=0, repr=False)


class Point(FrozenRecord):
    """The same as a record."""

    x: int
    y: int = 2
    tags: dict[str, int] = field(default_factory=dict)
    hidden: int = field(default=0, repr=False)


class Place(FrozenRecord):
    """Two numbers."""

    x: int
    y: int = 2


class Spot(FrozenRecord):
    """The same two numbers as another kind."""

    x: int
    y: int = 2


class Box(Record):
    """One that may be changed."""

    width: int
    items: list[int] = field(default_factory=list)


class Key(Record, kw_only=True):
    """A keyword with a default."""

    name: str | None = None


class NamedKey(Key, kw_only=True):
    """One below it that must be given."""

    kind: str


@pytest.mark.parametrize(
    "given", [((1,), {}), ((1, 3), {}), ((), {"x": 1, "tags": {"a": 1}}), ((1, 2, {}, 4), {})]
)
def test_a_record_holds_and_shows_what_a_dataclass_does(
    given: tuple[tuple[Any, ...], dict[str, Any]],
) -> None:
    values, named = given
    real, point = RealPoint(*values, **named), Point(*values, **named)
    assert dataclasses.asdict(point) == dataclasses.asdict(real)
    assert repr(point) == repr(real).replace("RealPoint", "Point")
    assert [one.name for one in dataclasses.fields(Point)] == [
        one.name for one in dataclasses.fields(RealPoint)
    ]
    assert dataclasses.replace(point, y=9) == Point(point.x, 9, point.tags, point.hidden)


@pytest.mark.parametrize(
    "given", [((), {}), ((1, 2, {}, 0, 5), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": 1})]
)
def test_wrong_arguments_are_refused_as_a_dataclass_refuses_them(
    given: tuple[tuple[Any, ...], dict[str, Any]],
) -> None:
    values, named = given
    for kind in (RealPoint, Point):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_equal_values_of_two_kinds_are_not_equal() -> None:
    assert Place(1) == Place(1, 2)
    assert Place(1) != Place(1, 3)
    assert Place(1) != Spot(1)
    assert len({Place(1), Place(1), Place(2)}) == 2


def test_a_frozen_record_cannot_be_changed_and_a_record_has_no_hash() -> None:
    place, box = Place(1), Box(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        place.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del place.x
    box.width = 2
    assert box == Box(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(box)


def test_every_record_has_its_own_list() -> None:
    first, second = Box(1), Box(1)
    first.items.append(1)
    assert second.items == []


def test_a_key_that_must_be_named_may_stand_before_one_that_is_needed() -> None:
    assert dataclasses.asdict(NamedKey(kind="a")) == {"name": None, "kind": "a"}
    with pytest.raises(TypeError, match="NamedKey lacks kind"):
        NamedKey()  # type: ignore[call-arg]


def test_records_are_copied_and_pickled() -> None:
    point = Point(1, tags={"a": 1})
    for made in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):  # noqa: S301  our own
        assert made == point
        assert made is not point
