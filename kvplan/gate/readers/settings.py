"""Flags written as map entries (engine_kwargs, vllmConfig, parallelism), typed as vLLM types them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvplan.config.flag_table import Flag, flag_table
from kvplan.config.flag_values import BadValueError, UnsetError, parse_value
from kvplan.gate.taint import is_unknown
from kvplan.gate.yaml_nodes import YamlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvplan.gate.flags import ParsedFlags
    from kvplan.gate.reading import Reading
    from kvplan.gate.yaml_nodes import Node


def snake(name: str) -> str:
    """`maxModelLen`, `max-model-len` and `max_model_len` are one name."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.replace("LoRA", "Lora")).lower().replace("-", "_")


def take_settings(
    reading: Reading,
    entries: Iterable[tuple[str, Node, Node]],
    into: ParsedFlags,
    expand: Callable[[str], str] | None = None,
    *,
    keep_unknown: bool = False,
) -> ParsedFlags:
    """Read map entries into flags.

    Args:
        reading: the file.
        entries: key text, key, value.
        into: gets the flags.
        expand: the format's substitution.
        keep_unknown: keys that are no flag of vLLM are named as unknown (they are dropped otherwise).
    """
    table = flag_table()
    for key, key_node, value in entries:
        name = snake(key)
        flag = table.flags.get(name)
        if flag is None and name.startswith("no_") and name[3:] in table.flags:
            into.flags[name[3:]] = False
            continue
        if flag is None and name != "model":
            if keep_unknown:
                into.unknown_flags[name] = None
            continue
        into.places[name] = (key_node.line, key_node.column)
        take_setting(reading, name, flag, value, into, expand)
    return into


def take_setting(
    reading: Reading,
    name: str,
    flag: Flag | None,
    value: Node,
    into: ParsedFlags,
    expand: Callable[[str], str] | None = None,
) -> None:
    """Read one entry; null is "not set", false stays false."""
    if value.is_null:
        into.flags.pop(name, None)
        into.ignored[name] = None
        return
    if value.kind != "scalar":
        try:
            plain = value.plain()
        except YamlError as error:
            into.invalid[name] = str(error)
        else:
            into.flags[name] = plain
        return
    text = expand(value.text) if expand else value.text
    plain_text = reading.taint.split(text)
    into.defaulted.update(dict.fromkeys(plain_text.defaulted))
    into.assumed.update(dict.fromkeys(plain_text.assumed))
    if is_unknown(text):
        into.unresolved.update(dict.fromkeys(plain_text.unknown))
        into.unresolved_flags[name] = plain_text.unknown
        into.flags.pop(name, None)
        return
    if name == "model":
        into.model = plain_text.text.removeprefix("hf://")
        into.model_place = (value.line, value.column)
        return
    typed = value.value if text == value.text else plain_text.text
    try:
        into.flags[name] = typed_value(flag, typed, plain_text.text)
    except UnsetError:
        into.flags.pop(name, None)
    except BadValueError as error:
        into.invalid[name] = str(error)


def typed_value(flag: Flag | None, typed: Any, text: str) -> Any:
    """The value as vLLM types it; a number may stand in quotes.

    Raises:
        BadValueError: vLLM would refuse it.
        UnsetError: it means "not set".
    """
    if flag is None:
        return typed
    if flag.kind in {"bool", "store_true"}:
        if isinstance(typed, bool):
            return typed
        if text.lower() in {"true", "1", "yes", "on", ""}:
            return True
        if text.lower() in {"false", "0", "no", "off"}:
            return False
        raise BadValueError("not a boolean")
    if isinstance(typed, bool) and flag.kind != "str":
        raise BadValueError("a boolean where a value belongs")
    value = parse_value(flag, text)
    return [value] if flag.many else value
