"""What a name holds after an `if` or a loop, of which it is not known which way was taken."""

from __future__ import annotations

from kvplan.gate.readers.python_scope import Val


def copied(value: Val) -> Val:
    """A value of its own for one way: what is added to a list there is not in the other's."""
    inner = value.value
    return Val(
        inner.copy() if isinstance(inner, list | dict) else inner,
        value.unknown,
        value.defaulted,
        value.line,
        value.column,
    )


def after_all_ways(name: str, before: Val | None, values: list[Val | None], condition: str) -> Val:
    """The value after all ways; unknown where they differ, and what they share is kept.

    Args:
        name: that has the value.
        before: its value before the ways parted.
        values: at the end of each way; None where the way does not set it.
        condition: names what decides between the ways.
    """
    present = [value for value in values if value is not None]
    first = present[0]
    if len(present) == len(values) and all(
        v.value == first.value and v.unknown == first.unknown for v in present
    ):
        return first
    base = before.value if before is not None else None
    if isinstance(base, list) and all(
        isinstance(v.value, list) and v.value[: len(base)] == base for v in present
    ):
        line = next((v.value[len(base)].line for v in present if len(v.value) > len(base)), 0)
        return Val([*base, Val(unknown=(condition,), line=line)])
    if isinstance(base, dict) and all(isinstance(v.value, dict) for v in present):
        same = {k: v for k, v in base.items() if all(p.value.get(k) == v for p in present)}
        return Val({**same, "**": Val(unknown=(condition,))})
    if len(present) == len(values) and all(isinstance(v.value, dict) for v in present):
        # Written anew on every way: what all of them say holds.
        said = {k: v for k, v in first.value.items() if all(_alike(v, p.value.get(k)) for p in present)}
        return Val({**said, "**": Val(unknown=(condition,))})
    return Val(unknown=(name,))


def _alike(one: Val, other: Val | None) -> bool:
    return other is not None and (one.value, one.unknown) == (other.value, other.unknown)
