"""What a policy's key may hold: how it is read, and the same as JSON Schema.

Written here because the libraries that do it cost more to import (msgspec 25 ms, pydantic 100) than the gate
takes to read a policy and judge a file: `kvplan check` may start 0.10 s later than an empty typer app.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import DataclassInstance

    Path = tuple[str | int, ...]

_T = TypeVar("_T", bound="DataclassInstance")


class WrongValueError(Exception):
    """A value that the key does not take."""

    def __init__(self, complaint: str, *path: str | int, unknown_key: bool = False) -> None:
        super().__init__(complaint)
        self.complaint = complaint
        self.path: Path = path
        self.unknown_key = unknown_key

    def below(self, *path: str | int) -> WrongValueError:
        """The same error, seen from further out."""
        return WrongValueError(self.complaint, *path, *self.path, unknown_key=self.unknown_key)


class Kind(FrozenRecord):
    """One kind of value."""

    read: Callable[[Any], Any]
    """The value as the gate uses it; raises WrongValueError."""
    schema: Mapping[str, Any]
    """What JSON Schema says of the same values."""


def key(kind: Kind, says: str | None = None) -> Any:
    """A key that may be left out or null."""
    return field(default=None, metadata={"kind": kind, "says": says})


def required(kind: Kind, says: str | None = None) -> Any:
    """A key that must be there."""
    return field(metadata={"kind": kind, "says": says, "required": True})


def entries(kind: Kind) -> Any:
    """A list that is empty where the key is left out."""
    return field(default_factory=tuple, metadata={"kind": kind, "says": None})


def read_keys(model: type[_T], value: Any) -> _T:
    """The mapping as the dataclass whose fields are its keys.

    Raises:
        WrongValueError: no mapping, an unknown key, one that is missing, or a wrong value; with its key path.
    """
    if not isinstance(value, dict):
        raise WrongValueError("not a mapping")
    known = {one.name: one for one in dataclasses.fields(model)}
    said: dict[str, Any] = {}
    for name, item in value.items():
        if name not in known:
            raise WrongValueError(f"unknown key {name!r}", name, unknown_key=True)
        if item is None and not known[name].metadata.get("required"):
            continue
        try:
            said[name] = known[name].metadata["kind"].read(item)
        except WrongValueError as error:
            raise error.below(name) from None
    for name, one in known.items():
        if one.metadata.get("required") and name not in said:
            raise WrongValueError(f"lacks `{name}`")
    return model(**said)


def schema_of(model: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a mapping whose keys are the dataclass's fields."""
    properties: dict[str, Any] = {}
    needed: list[str] = []
    for one in dataclasses.fields(model):
        schema = dict(one.metadata["kind"].schema)
        if one.metadata.get("required"):
            needed.append(one.name)
        else:
            schema = {"anyOf": [schema, {"type": "null"}]}
        if one.metadata["says"]:
            schema["description"] = one.metadata["says"]
        properties[one.name] = schema
    out = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**out, "required": needed} if needed else out


def _name(value: Any) -> str:
    """`gpu: 4090` and `vllm_version: 0.32` are numbers to YAML and names to people."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise WrongValueError("not a name")


NAME: Final = Kind(_name, {"type": ["string", "number"]})


def text(shortest: int = 0) -> Kind:
    """Text of at least so many characters."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise WrongValueError("not text")
        if len(value) < shortest:
            raise WrongValueError(f"shorter than {shortest} characters")
        return value

    return Kind(read, {"type": "string", "minLength": shortest} if shortest else {"type": "string"})


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise WrongValueError("not a whole number from 1 on")
    return value


WHOLE: Final = Kind(_whole, {"type": "integer", "minimum": 1})


def number(*, at_least: float | None = None, above: float | None = None, at_most: float = math.inf) -> Kind:
    """A number in a range."""
    low = f"at least {at_least:g}" if at_least is not None else f"above {above:g}"
    told = f"not a number {low}" + (f" and at most {at_most:g}" if math.isfinite(at_most) else "")
    schema: dict[str, Any] = {"type": "number"}
    schema |= {"minimum": at_least} if at_least is not None else {"exclusiveMinimum": above}
    if math.isfinite(at_most):
        schema["maximum"] = at_most

    def read(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise WrongValueError(told)
        if (value < at_least if at_least is not None else value <= (above or 0)) or value > at_most:
            raise WrongValueError(told)
        return float(value)

    return Kind(read, schema)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongValueError("neither true nor false")
    return value


BOOLEAN: Final = Kind(_boolean, {"type": "boolean"})


def one_of(*values: str, booleans: Mapping[bool, str] | None = None) -> Kind:
    """One of some words; YAML reads `off` and `on` as booleans."""

    def read(value: Any) -> str:
        if isinstance(value, bool) and booleans is not None:
            return booleans[value]
        if value not in values:
            raise WrongValueError(f"not one of {', '.join(values)}")
        return str(value)

    return Kind(read, {"enum": [*values, *(booleans or ())]})


def _anything(value: Any) -> Any:
    return value


ANYTHING: Final = Kind(_anything, {})


def _date(value: Any) -> dt.date:
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        try:
            return dt.date.fromisoformat(value)
        except ValueError:
            pass
    raise WrongValueError("not a date like 2027-03-31")


DATE: Final = Kind(_date, {"type": "string", "format": "date", "pattern": r"^\d{4}-\d{2}-\d{2}$"})


def list_of(kind: Kind, *, or_one: bool = False, shortest: int = 0) -> Kind:
    """A list; with `or_one` a single value stands for a list of one."""

    def read(value: Any) -> tuple[Any, ...]:
        items = [value] if or_one and not isinstance(value, list) else value
        if not isinstance(items, list):
            raise WrongValueError("not a list")
        if len(items) < shortest:
            raise WrongValueError("an empty list")
        found = []
        for i, item in enumerate(items):
            try:
                found.append(kind.read(item))
            except WrongValueError as error:
                raise error.below(*(() if items is not value else (i,))) from None
        return tuple(found)

    schema: dict[str, Any] = {"type": "array", "items": dict(kind.schema)}
    if shortest:
        schema["minItems"] = shortest
    return Kind(read, {"anyOf": [dict(kind.schema), schema]} if or_one else schema)


def map_of(kind: Kind, *, names: str | None = None, told: str = "") -> Kind:
    """A mapping of names, which may have to match a pattern, to values of one kind."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise WrongValueError("not a mapping")
        found = {}
        for name, item in value.items():
            if names is not None and not re.fullmatch(names, name):
                raise WrongValueError(told, name)
            try:
                found[name] = kind.read(item)
            except WrongValueError as error:
                raise error.below(name) from None
        return found

    schema: dict[str, Any] = {"type": "object"}
    if names is None:
        schema["additionalProperties"] = dict(kind.schema)
    else:
        schema |= {"patternProperties": {f"^{names}$": dict(kind.schema)}, "additionalProperties": False}
    return Kind(read, schema)


def mapping(model: type[Any]) -> Kind:
    """A mapping whose keys are a dataclass's fields."""
    return Kind(lambda value: read_keys(model, value), schema_of(model))
