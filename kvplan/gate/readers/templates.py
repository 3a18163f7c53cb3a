"""`{{ … }}` expressions of Helm and Jinja: literals and defaults are facts, the rest is unknown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvplan.gate.taint import Taint

_LONGEST: Final = 2000
_LITERAL: Final = re.compile(r"\"([^\"\\]*)\"|'([^'\\]*)'|`([^`]*)`|(-?\d+(?:\.\d+)?|true|false)")
_PATH: Final = re.compile(r"\$?\.?[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*|\[['\"]?[\w-]+['\"]?\])*|\.")
_NEUTRAL: Final = frozenset(
    {
        "quote",
        "squote",
        "int",
        "int64",
        "toString",
        "trim",
        "string",
        "float",
        "float64",
        "toYaml",
        "tojson",
        "to_json",
        "bool",
    }
)


def literal(text: str) -> str | None:
    """The text of a literal, None when it is none."""
    match = _LITERAL.fullmatch(text.strip())
    if match is None:
        return None
    return next(group for group in match.groups() if group is not None)


def substitute(taint: Taint, text: str, lookup: Callable[[str], str | None]) -> str:
    """The text with every `{{ expression }}` replaced.

    Args:
        taint: the file's marks.
        text: any text.
        lookup: gives the value of a path (`.Values.x`, `var`) with marks, None when nothing gives it.
    """
    out: list[str] = []
    at = close = 0
    while True:
        begin = text.find("{{", at)
        if begin < 0:
            break
        if close < begin + 2:
            # Found once and kept: text full of openings must not be searched again from each of them.
            close = text.find("}}", begin + 2)
            if close < 0:
                break
        if close - begin > _LONGEST:
            out.append(text[at : begin + 2])
            at = begin + 2
            continue
        inner = text[begin + 2 : close].removeprefix("-").removesuffix("-").strip()
        out += [text[at:begin], expression(taint, inner, lookup)]
        at = close + 2
    return "".join([*out, text[at:]])


def expression(taint: Taint, text: str, lookup: Callable[[str], str | None]) -> str:
    """The value of one expression: a path or literal, piped through filters that do not change it."""
    parts = [part.strip() for part in _pipes(text)]
    head = parts[0]
    default_first = re.fullmatch(r"default\s+(\S+)\s+(\S+)", head)
    filters = parts[1:]
    if default_first:
        head, filters = default_first[2], [f"default {default_first[1]}", *filters]
    value = literal(head)
    known = value is not None
    path = head.removeprefix("$") if head.startswith("$.") else head
    for neutral in _NEUTRAL:
        path = path.removeprefix(f"{neutral} ")
    path = path.strip("() ")
    if value is None and _PATH.fullmatch(path):
        value = lookup(path)
    for item in filters:
        name, _, argument = item.replace("(", " ").replace(")", " ").strip().partition(" ")
        if name in _NEUTRAL:
            continue
        if name in {"default", "d"} and not known:
            fallback = literal(argument.strip().partition(",")[0])
            if value is None and fallback is not None:
                value = taint.defaulted(path, fallback)
            continue
        if name in {"default", "d"}:
            continue
        return taint.unknown(path if _PATH.fullmatch(path) else text[:120])
    return value if value is not None else taint.unknown(path if _PATH.fullmatch(path) else text[:120])


def _pipes(text: str) -> list[str]:
    parts: list[str] = []
    current, quote = "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'`":
            quote = char
        elif char == "|":
            parts.append(current)
            current = ""
            continue
        current += char
    return [*parts, current]


def from_map(values: Mapping[str, str]) -> Callable[[str], str | None]:
    """A lookup over flat names."""
    return values.get
