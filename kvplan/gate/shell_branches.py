"""What variables hold after a branch that is not known to be taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.gate.shell_expand import POSITIONAL, Value
from kvplan.gate.taint import is_unknown, without_notes

if TYPE_CHECKING:
    from kvplan.gate.taint import Taint

Variables = dict[str, Value]


def merge_branches(
    taint: Taint, before: Variables, arms: list[Variables], asked: list[str], empty: str | None
) -> Variables:
    """The variables after an `if`, `case`, loop or `&&`.

    Args:
        taint: the file's marks.
        before: values ahead of the branch.
        arms: values after each way through it.
        asked: variables that the condition asks and that nothing in the file settles.
        empty: the variable X when the branch is `[ -z "$X" ]`, shell's older way to write a default.
    """
    merged: Variables = {}
    names = dict.fromkeys(name for arm in [before, *arms] for name in arm)
    for name in names:
        values = [arm.get(name) for arm in arms]
        first = values[0]
        if all(value == first for value in values):
            if first is not None:
                merged[name] = first
            continue
        merged[name] = _merge(taint, name, before.get(name), values, asked, empty)
    return merged


def _merge(  # noqa: PLR0911  one return a way to merge
    taint: Taint,
    name: str,
    base: Value | None,
    values: list[Value | None],
    asked: list[str],
    empty: str | None,
) -> Value:
    changed = [value for value in values if value is not None and value != base]
    if not changed:
        # Unset on one way through (`shift`, `unset`), as before on the others.
        return taint.unknown(name)
    bare = without_notes(base) if isinstance(base, str) else None
    if bare is not None and all(isinstance(v, str) and without_notes(v) == bare for v in changed):
        # Only the provenance was added further in.
        return changed[0]
    if name == empty and len(changed) == 1 and isinstance(changed[0], str):
        return taint.defaulted(name, without_notes(changed[0])) if not is_unknown(changed[0]) else changed[0]
    if (
        isinstance(base, str)
        and base
        and not is_unknown(base)
        and all(_from_caller(taint, v) for v in changed)
    ):
        # An option loop (`--model) MODEL="$2"`): without arguments the written value holds.
        return taint.defaulted(name, base)
    marks = [taint.unknown(asked_name) for asked_name in asked] or [taint.unknown(name)]
    if isinstance(base, list) and all(isinstance(v, list) and v[: len(base)] == base for v in changed):
        return [*base, *marks]
    if isinstance(base, str) and not is_unknown(base) and all(_extends(base, v) for v in changed):
        return f"{base} {' '.join(marks)}" if base.strip() else " ".join(marks)
    if isinstance(base, list) or any(isinstance(v, list) for v in changed):
        return [taint.unknown(name)]
    return taint.unknown(name)


def _extends(base: str, value: Value) -> bool:
    """Whether the value only appends words to the base (an empty base: words that begin with a dash)."""
    if not isinstance(value, str):
        return False
    if not base.strip():
        return without_notes(value).lstrip().startswith("-") or not value.strip()
    return value.startswith(base) and value[len(base) : len(base) + 1].isspace()


def _from_caller(taint: Taint, value: Value) -> bool:
    if not isinstance(value, str):
        return False
    unknown = taint.split(value).unknown
    return bool(unknown) and all(
        POSITIONAL.fullmatch(name) or name.startswith(("${1", "${2")) for name in unknown
    )
