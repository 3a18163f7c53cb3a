"""Constant folding of Python expressions from their syntax tree: nothing is imported or called."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.readers.python_scope import MAX_DEPTH, Val, dotted, name_of, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.gate.readers.python_scope import Scope

MAX_TEXT: Final = 100_000

_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def fold(node: ast.expr, scope: Scope, depth: int = 0) -> Val:
    """The value of an expression."""
    if depth > MAX_DEPTH:
        return Val(unknown=("expression nested too deep",))
    result = _fold(node, scope, depth + 1)
    result.line, result.column = node.lineno, node.col_offset + 1
    return result


def _unknown(node: ast.expr, scope: Scope) -> Val:
    return Val(unknown=(name_of(node, scope),))


def _fold(node: ast.expr, scope: Scope, depth: int) -> Val:  # noqa: C901, PLR0911, PLR0912  one branch a kind
    match node:
        case ast.Constant():
            return Val(node.value)
        case ast.Name():
            found = scope.get(node.id)
            return (
                Val(found.value, found.unknown, found.defaulted)
                if found is not None
                else _unknown(node, scope)
            )
        case ast.Attribute():
            return _attribute(node, scope)
        case ast.JoinedStr():
            return _joined(node, scope, depth)
        case ast.List() | ast.Tuple():
            return Val(_elements(node, scope, depth))
        case ast.Dict():
            return _dict(node, scope, depth)
        case ast.BinOp():
            return _binary(node, scope, depth)
        case ast.UnaryOp():
            return _unary(node, scope, depth)
        case ast.BoolOp(op=ast.Or()):
            return _or(node, scope, depth)
        case ast.Call():
            return _call(node, scope, depth)
        case ast.Subscript():
            return _subscript(node, scope, depth)
        case ast.IfExp():
            test = fold(node.test, scope, depth)
            if not test.unknown and not test.defaulted:
                return fold(node.body if test.value else node.orelse, scope, depth)
            return Val(unknown=(name_of(node.test, scope),))
    return _unknown(node, scope)


def _attribute(node: ast.Attribute, scope: Scope) -> Val:
    default = scope.argument(node.attr) if dotted(node).count(".") == 1 else None
    base = node.value.id if isinstance(node.value, ast.Name) else ""
    if default is not None and base in {"args", "cli_args", "opts", "options", "parsed_args", "cfg"}:
        return Val(default, defaulted=(f"{base}.{node.attr}",))
    found = scope.get(f"{base}.{node.attr}") if base else None
    return Val(found.value, found.unknown, found.defaulted) if found is not None else _unknown(node, scope)


def _joined(node: ast.JoinedStr, scope: Scope, depth: int) -> Val:
    out = ""
    result = Val("")
    for part in node.values:
        if isinstance(part, ast.Constant):
            out += str(part.value)
        elif isinstance(part, ast.FormattedValue):
            value = fold(part.value, scope, depth)
            plain = part.format_spec is None and part.conversion == -1
            if not plain or value.value is None or isinstance(value.value, list | dict):
                value = Val(unknown=value.unknown or (name_of(part.value, scope),))
            result = result.with_names(value)
            out += "" if value.unknown else str(value.value)
        if len(out) > MAX_TEXT:
            return _unknown(node, scope)
    return Val(None if result.unknown else out, result.unknown, result.defaulted)


def _elements(node: ast.List | ast.Tuple, scope: Scope, depth: int) -> list[Val]:
    items: list[Val] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            inner = fold(element.value, scope, depth)
            if isinstance(inner.value, list):
                items += inner.value
            else:
                items.append(
                    Val(unknown=inner.unknown or (name_of(element.value, scope),), line=element.lineno)
                )
        else:
            items.append(present(fold(element, scope, depth), element, scope))
    return items[:5000]


def present(value: Val, node: ast.expr, scope: Scope) -> Val:
    """A name that is None here gets its value somewhere else: no command holds the word "None"."""
    if value.value is None and not value.unknown and not isinstance(node, ast.Constant):
        return Val(unknown=(name_of(node, scope),), line=value.line, column=value.column)
    return value


def _dict(node: ast.Dict, scope: Scope, depth: int) -> Val:
    items: dict[str, Val] = {}
    names: list[str] = []
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            inner = fold(value, scope, depth)
            if isinstance(inner.value, dict):
                items |= inner.value
            else:
                names += inner.unknown or [name_of(value, scope)]
            continue
        name = fold(key, scope, depth)
        if isinstance(name.value, str | int):
            items[str(name.value)] = fold(value, scope, depth)
    if names:
        items["**"] = Val(unknown=tuple(names))
    return Val(items)


def _binary(node: ast.BinOp, scope: Scope, depth: int) -> Val:  # noqa: PLR0911  one branch a kind
    left, right = fold(node.left, scope, depth), fold(node.right, scope, depth)
    if isinstance(node.op, ast.Add) and isinstance(left.value, list):
        more = (
            right.value
            if isinstance(right.value, list)
            else [Val(unknown=right.unknown or (name_of(node.right, scope),), line=node.lineno)]
        )
        return Val([*left.value, *more][:5000])
    if (
        isinstance(node.op, ast.Pow)
        and left.value == 2
        and isinstance(right.value, int)
        and 0 <= right.value < 64
    ):
        return Val(2**right.value).with_names(left, right)
    if left.unknown or right.unknown:
        return Val().with_names(left, right)
    numbers = isinstance(left.value, int | float) and isinstance(right.value, int | float)
    texts = isinstance(left.value, str) and isinstance(right.value, str) and isinstance(node.op, ast.Add)
    operation = _BINARY.get(type(node.op))
    if operation is None or not (numbers or texts):
        return _unknown(node, scope)
    if texts and len(left.value) + len(right.value) > MAX_TEXT:
        return _unknown(node, scope)
    try:
        value = operation(left.value, right.value)
    except (ArithmeticError, ValueError, TypeError):
        return _unknown(node, scope)
    if isinstance(value, int) and abs(value) > 2**80:
        return _unknown(node, scope)
    return Val(value).with_names(left, right)


def _unary(node: ast.UnaryOp, scope: Scope, depth: int) -> Val:
    inner = fold(node.operand, scope, depth)
    if inner.unknown:
        return inner
    if isinstance(node.op, ast.Not):
        return Val(not inner.value).with_names(inner)
    if isinstance(node.op, ast.USub) and isinstance(inner.value, int | float):
        return Val(-inner.value).with_names(inner)
    return _unknown(node, scope)


def _or(node: ast.BoolOp, scope: Scope, depth: int) -> Val:
    """`os.getenv("X") or "default"`: the environment is unknown, the written default is used."""
    first = fold(node.values[0], scope, depth)
    if first.unknown and _environment(node.values[0]) is not None and len(node.values) == 2:
        last = fold(node.values[1], scope, depth)
        return Val(last.value, last.unknown, (*last.defaulted, _environment(node.values[0]) or ""))
    if first.unknown:
        return first
    return first if first.value else fold(node.values[-1], scope, depth)


def _environment(node: ast.expr) -> str | None:
    """The variable that an expression reads from the environment."""
    if isinstance(node, ast.Call) and dotted(node.func) in {
        "os.environ.get",
        "os.getenv",
        "getenv",
        "environ.get",
    }:
        first = node.args[0] if node.args else None
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    if isinstance(node, ast.Subscript) and dotted(node.value) in {"os.environ", "environ"}:
        return (
            node.slice.value
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            else None
        )
    return None


def _subscript(node: ast.Subscript, scope: Scope, depth: int) -> Val:
    variable = _environment(node)
    if variable is not None:
        return Val(unknown=(variable,))
    base, index = fold(node.value, scope, depth), fold(node.slice, scope, depth)
    if isinstance(base.value, dict) and isinstance(index.value, str | int):
        found = base.value.get(str(index.value))
        return (
            Val(found.value, found.unknown, found.defaulted)
            if isinstance(found, Val)
            else _unknown(node, scope)
        )
    if (
        isinstance(base.value, list)
        and isinstance(index.value, int)
        and -len(base.value) <= index.value < len(base.value)
    ):
        item = base.value[index.value]
        return Val(item.value, item.unknown, item.defaulted)
    return _unknown(node, scope)


def _call(node: ast.Call, scope: Scope, depth: int) -> Val:  # noqa: PLR0911  one branch a kind
    name = dotted(node.func)
    variable = _environment(node)
    if variable is not None:
        if len(node.args) < 2:
            return Val(unknown=(variable,))
        default = fold(node.args[1], scope, depth)
        return Val(default.value, default.unknown, (*default.defaulted, variable))
    if (
        name in {"str", "int", "float", "bool", "Path", "pathlib.Path"}
        and len(node.args) == 1
        and not node.keywords
    ):
        return _convert(name, node, scope, depth)
    if name == "dict":
        return _dict_call(node, scope, depth)
    if name.rpartition(".")[2].endswith("Config") and node.keywords and not node.args:
        # vLLM's own config objects say the same as the JSON that the flag takes.
        return Val(keywords(node, scope, depth))
    if name in {"list", "tuple"} and len(node.args) == 1:
        return fold(node.args[0], scope, depth)
    if name == "json.dumps" and node.args:
        return _dumps(node, scope, depth)
    if name == "shlex.split" and node.args:
        return _split(node, scope, depth)
    if isinstance(node.func, ast.Attribute):
        return _method(node, node.func, scope, depth)
    return Val(unknown=(name_of(node, scope),))


def _convert(name: str, node: ast.Call, scope: Scope, depth: int) -> Val:  # noqa: PLR0911  one branch a kind
    inner = fold(node.args[0], scope, depth)
    if inner.unknown or inner.value is None or isinstance(inner.value, list | dict):
        return inner if inner.unknown else _unknown(node, scope)
    if isinstance(inner.value, str) and len(inner.value) > 1000 and name in {"int", "float"}:
        return _unknown(node, scope)
    try:
        match name:
            case "int":
                return Val(int(inner.value)).with_names(inner)
            case "float":
                return Val(float(inner.value)).with_names(inner)
            case "bool":
                return Val(bool(inner.value)).with_names(inner)
    except (ValueError, TypeError, OverflowError):
        return _unknown(node, scope)
    return Val(str(inner.value)).with_names(inner)


def _dict_call(node: ast.Call, scope: Scope, depth: int) -> Val:
    items: dict[str, Val] = {}
    for argument in node.args[:1]:
        inner = fold(argument, scope, depth)
        if isinstance(inner.value, dict):
            items |= inner.value
        else:
            items["**"] = Val(unknown=inner.unknown or (name_of(argument, scope),))
    items |= keywords(node, scope, depth)
    return Val(items)


def keywords(node: ast.Call, scope: Scope, depth: int = 0) -> dict[str, Val]:
    """The keyword arguments of a call; `**unknown` stays under the key `**`."""
    items: dict[str, Val] = {}
    for keyword in node.keywords:
        value = fold(keyword.value, scope, depth)
        if keyword.arg is not None:
            items[keyword.arg] = value
            value.line, value.column = keyword.value.lineno, keyword.value.col_offset + 1
        elif isinstance(value.value, dict):
            items = {**value.value, **items}
        else:
            items["**"] = Val(unknown=value.unknown or (name_of(keyword.value, scope),))
    return items


def _dumps(node: ast.Call, scope: Scope, depth: int) -> Val:
    import json

    inner = fold(node.args[0], scope, depth)
    names: list[str] = list(inner.unknown)
    value = plain(inner, names)
    return Val(unknown=tuple(names)) if names else Val(json.dumps(value, default=str))


def _split(node: ast.Call, scope: Scope, depth: int) -> Val:
    import shlex

    inner = fold(node.args[0], scope, depth)
    if inner.unknown or not isinstance(inner.value, str):
        return inner if inner.unknown else _unknown(node, scope)
    try:
        return Val([Val(word, line=node.lineno) for word in shlex.split(inner.value)])
    except ValueError:
        return _unknown(node, scope)


def _method(node: ast.Call, func: ast.Attribute, scope: Scope, depth: int) -> Val:
    if func.attr == "join" and len(node.args) == 1:
        return _join(node, func, scope, depth)
    base = fold(func.value, scope, depth)
    if func.attr == "copy" and isinstance(base.value, list | dict):
        return Val(base.value.copy())
    if func.attr == "get" and isinstance(base.value, dict) and node.args:
        key = fold(node.args[0], scope, depth)
        found = base.value.get(str(key.value)) if isinstance(key.value, str) else None
        if isinstance(found, Val):
            return Val(found.value, found.unknown, found.defaulted)
    arguments = [fold(argument, scope, depth) for argument in node.args]
    if isinstance(base.value, str) and func.attr in {
        "strip",
        "lower",
        "upper",
        "replace",
        "removeprefix",
        "removesuffix",
        "lstrip",
        "rstrip",
    }:
        texts = [argument.value for argument in arguments]
        if all(isinstance(text, str) for text in texts) and len(texts) <= 2:
            try:
                return Val(str(getattr(base.value, func.attr)(*texts))[:MAX_TEXT]).with_names(base)
            except TypeError:
                return _unknown(node, scope)
    return _unknown(node, scope)


def _join(node: ast.Call, func: ast.Attribute, scope: Scope, depth: int) -> Val:
    separator, items = fold(func.value, scope, depth), fold(node.args[0], scope, depth)
    if isinstance(separator.value, str) and isinstance(items.value, list):
        # Kept as words: the places of the list's items are better than the joined text's.
        return Val(items.value) if separator.value == " " else _unknown(node, scope)
    return _unknown(node, scope)
