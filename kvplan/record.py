"""Dataclasses that share their methods.

`@dataclass` writes the source of four to eight methods for every class and compiles it: 0.3 to 0.5 ms each, a
third of the time that `kvplan check` took, which may start 0.10 s after an empty typer app. The classes here
are dataclasses to `fields`, `replace`, `asdict` and the type checker, with one set of methods for them all:
0.04 ms each.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Shared:  # noqa: PLW1641  the frozen ones have a hash
    """What both kinds of record have."""

    __dataclass_fields__: ClassVar[Mapping[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self.__dataclass_fields__
        given = dict(zip(fields, values, strict=False)) | named
        if len(given) != len(values) + len(named) or not given.keys() <= fields.keys():
            raise TypeError(f"{type(self).__name__} takes {', '.join(fields)}, each once")
        for name, field in fields.items():
            if name in given:
                continue
            if field.default is not dataclasses.MISSING:
                given[name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                given[name] = field.default_factory()
            else:
                raise TypeError(f"{type(self).__name__} lacks {name}")
        self.__dict__.update(given)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self._values() == other._values()

    def __repr__(self) -> str:
        shown = (name for name, field in self.__dataclass_fields__.items() if field.repr)
        named = (f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({', '.join(named)})"

    def _values(self) -> tuple[Any, ...]:
        own = self.__dict__
        return tuple([own[name] for name in self.__dataclass_fields__])


@dataclass_transform(field_specifiers=(dataclasses.field,))
class Record(_Shared):
    """A base whose subclasses are what `@dataclass` makes."""


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class FrozenRecord(_Shared):
    """A base whose subclasses are what `@dataclass(frozen=True)` makes."""

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __hash__(self) -> int:
        return hash(self._values())
