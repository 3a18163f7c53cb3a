"""Shell values: parameter expansion and arithmetic, computed on text with marks and never executed."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.taint import is_unknown, without_notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.gate.taint import Taint

Value = str | list[str]
"""A variable's value, or the fields of an array; texts carry marks."""

_LONGEST_PATTERN: Final = 400
_ESCAPES: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "0": "\0",
}
_OPERATORS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
POSITIONAL: Final = re.compile(r"[0-9]+|[@*#]|OPTARG|#")


def arithmetic(text: str) -> int | None:
    """The value of `$(( ))` over whole numbers; None when it holds anything else."""
    if not re.fullmatch(r"[\d\s+*/%()-]{1,80}", text) or "**" in text or "//" in text:
        return None
    try:
        return _fold(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError, MemoryError):
        return None


def _fold(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_fold(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_fold(node.left), _fold(node.right))
    raise ValueError


def ansi_c(text: str) -> str:
    """The text of `$'…'`."""
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), text, flags=re.DOTALL).replace("\0", "�")


def unescape(text: str) -> str:
    """An unquoted word without its backslashes."""
    if "\\" not in text:
        return text
    return re.sub(r"\\(.)", lambda m: "" if m[1] == "\n" else m[1], text, flags=re.DOTALL)


def unescape_double(text: str) -> str:
    """The text of a double-quoted string."""
    if "\\" not in text:
        return text
    return re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], text)


def trim(value: str, operation: str, pattern: str) -> str | None:
    """`${V#p}`, `${V##p}`, `${V%p}`, `${V%%p}`; None when it is too long to be tried."""
    if len(value) > _LONGEST_PATTERN or len(pattern) > 60:
        return None
    expression = re.compile(fnmatch.translate(pattern))
    ends = range(len(value) + 1)
    if operation in {"#", "##"}:
        for end in ends if operation == "#" else reversed(ends):
            if expression.match(value[:end]):
                return value[end:]
    else:
        for start in reversed(ends) if operation == "%" else ends:
            if expression.match(value[start:]):
                return value[:start]
    return value


def parameter(  # noqa: PLR0911  one branch a kind
    taint: Taint, name: str, value: str | None, operation: str, word: Callable[[], str]
) -> str:
    """`${NAME<operation>word}` for a scalar.

    Args:
        taint: the file's marks.
        name: the variable.
        value: its value with marks; None when nothing in the file sets it.
        operation: `:-`, `-`, `:=`, `=`, `:+`, `+`, `:?`, `?`, `#`, `##`, `%`, `%%`, `/`, `//` or "".
        word: gives the expanded operand.
    """
    unset = value is None
    known_empty = value is not None and not is_unknown(value) and not without_notes(value)
    match operation:
        case ":-" | ":=" | "-" | "=":
            if unset or (known_empty and operation[0] == ":"):
                return taint.defaulted(name, word())
        case ":+" | "+":
            if unset or is_unknown(value or "") or (known_empty and value):
                return taint.unknown(name)
            return "" if known_empty and operation[0] == ":" else word()
        case "#" | "##" | "%" | "%%" | "/" | "//" if value is not None and not is_unknown(value):
            changed = _changed(without_notes(value), operation, word())
            return taint.unknown(name) if changed is None else value.replace(without_notes(value), changed, 1)
        case "#" | "##" | "%" | "%%" if value is not None and taint.split(value).unknown == ("@",):
            # An argument of the caller stays one.
            return value
        case "" | ":?" | "?":
            pass
        case _:
            return taint.unknown(name)
    return taint.unknown(name) if value is None else value


def _changed(value: str, operation: str, word: str) -> str | None:
    if is_unknown(word):
        return None
    if operation in {"#", "##", "%", "%%"}:
        return trim(value, operation, word)
    pattern, _, replacement = word.partition("\0")
    if not pattern or any(char in pattern for char in "*?["):
        return None
    return value.replace(pattern, replacement, 1 if operation == "/" else -1)
