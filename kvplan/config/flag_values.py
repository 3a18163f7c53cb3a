"""Words of a command line turned into the values that vLLM's parser makes of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvplan.config.flag_table import Flag

_HUMAN: Final = r"(\d{1,30}(?:\.\d{1,30})?)([kKmMgGtT])"
_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_JSON_STRING: Final = r'("(?:[^"\\]|\\.)*")'
_JSON_NUMBER: Final = r"\b\d{1,30}(?:\.\d{1,30})?[kKmMgGtT]\b"
_OLD_LIMIT: Final = r"[a-z_]+=\d+(,[a-z_]+=\d+)*"
_MAX_NESTING: Final = 60


class BadValueError(ValueError):
    """vLLM would refuse the value; the message never quotes it."""


class UnsetError(Exception):
    """The value is vLLM's way to say "not set" (an empty word or `None`)."""


def human_int(text: str) -> int:
    """`8k` is 8000, `8K` 8192, `25.6k` 25600; `1.5K` is refused.

    Source: vLLM 0.32.0 utils/argparse_utils.py::human_readable_int.
    """
    text = text.strip()
    match = re.fullmatch(_HUMAN, text) if text[-1:].isalpha() else None
    if match is None:
        return plain_int(text)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    if "." in number:
        raise BadValueError("decimals are not allowed with a binary suffix")
    return int(number) * _BINARY[suffix]


def plain_int(text: str) -> int:
    """What Python's `int` makes of it.

    Raises:
        BadValueError: not an integer.
    """
    if len(text) > 100:
        raise BadValueError("not an integer")
    try:
        return int(text)
    except ValueError:
        raise BadValueError("empty value" if not text.strip() else "not an integer") from None


def parse_value(flag: Flag, text: str) -> Any:  # noqa: PLR0911  one branch a kind
    """The value of one word.

    Raises:
        UnsetError: it means "not set".
        BadValueError: vLLM would refuse it.
    """
    if flag.nullable and text in {"", "None"}:
        raise UnsetError
    match flag.kind:
        case "int":
            return plain_int(text)
        case "float":
            return _float(text)
        case "human_int":
            return human_int(text)
        case "human_int_or_auto":
            return -1 if text.strip().lower() in {"-1", "auto"} else human_int(text)
        case "json":
            return _json(flag.name, text)
        case "json_or_str":
            return _json(flag.name, text) if re.fullmatch(r"(?s)\s*\{.*\}\s*", text) else text
        case "lower":
            return text.lower().replace("-", "_")
    return text


def parse_json(text: str) -> Any:
    """The JSON value; nesting is bounded, because the text may come from anyone.

    Raises:
        ValueError: not JSON, or nested too deep.
    """
    depth = deepest = 0
    for char in text:
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    if deepest > _MAX_NESTING:
        raise ValueError("nested too deep")
    return json.loads(text)


def dotted_value(text: str) -> Any:
    """The value of a dotted option: JSON, else a human-readable integer, else text."""
    try:
        return parse_json(text)
    except ValueError:
        pass
    try:
        return human_int(text)
    except BadValueError:
        return text


def comma_list(text: str) -> list[Any]:
    """The value of a dotted option that ends in `+`; whole numbers as integers, as vLLM makes them later."""
    return [
        int(item) if item.isascii() and item.isdigit() and len(item) < 19 else item
        for item in text.split(",")
    ]


def merge(into: dict[str, Any], update: dict[str, Any]) -> None:
    """Merge dotted parts of one flag as vLLM does: maps merge, lists join, the last scalar wins."""
    for key, value in update.items():
        old = into.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merge(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            old += value
        else:
            into[key] = value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValueError("empty value" if not text.strip() else "not a number") from None


def _json(name: str, text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        pass
    if name == "limit_mm_per_prompt" and re.fullmatch(_OLD_LIMIT, text.strip()):
        # The form of vLLM up to 0.9: image=2,video=1.
        return {k: int(v) for k, v in (item.split("=") for item in text.strip().split(","))}
    parts = re.split(_JSON_STRING, text)
    parts[::2] = [re.sub(_JSON_NUMBER, lambda m: str(human_int(m[0])), part) for part in parts[::2]]
    try:
        return parse_json("".join(parts))
    except ValueError:
        raise BadValueError("empty value" if not text.strip() else "not JSON") from None
