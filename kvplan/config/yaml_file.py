"""vLLM's YAML file (`vllm serve --config FILE`), read as vLLM reads it and written as it takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.serving import FIELD_NAMES, ServingConfig
from kvplan.errors import InputError
from kvplan.foreign import read_text

if TYPE_CHECKING:
    import yaml

    from kvplan.config.flag_table import Flag, Option
    from kvplan.config.version import VllmVersion

_BOOLEAN_KINDS: Final = frozenset({"bool", "store_true"})
_JSON_KINDS: Final = frozenset({"json", "json_or_str"})


def to_vllm_yaml(config: ServingConfig) -> str:
    """The given flags as the text of a vLLM YAML file, keys as vLLM's options are spelt."""
    import yaml

    values = {name.replace("_", "-"): _plain(value) for name, value in config.given().items()}
    return yaml.safe_dump(values, sort_keys=False, default_flow_style=None)


def from_vllm_yaml(path: Path | str, version: VllmVersion | None = None) -> ServingConfig:
    """The settings in a vLLM YAML file.

    Keys may be written with dashes or underscores, sizes as 8192, 8k (8000), 25.6k or 8K (8192), as in vLLM.

    Args:
        path: The file.
        version: Keys that this vLLM does not have are refused; None takes those of any release from 0.8.5 on.

    Raises:
        InputError: no such file, not YAML, an unknown key (with the nearest one), or a value that vLLM
            refuses; the message says in which line.

    Source: vLLM 0.32.0 utils/argparse_utils.py::FlexibleArgumentParser.load_config_file.
    """
    import yaml

    path = Path(path)
    root = _compose(path)
    if root is None:
        return ServingConfig()
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}:1: not a mapping of vLLM's flags", "write lines like max-model-len: 8192")
    return ServingConfig().with_flags(**_values(root, path, version))


def _values(root: yaml.MappingNode, path: Path, version: VllmVersion | None) -> dict[str, Any]:
    import yaml

    values: dict[str, Any] = {}
    for key_node, value_node in root.value:
        place = f"{path}:{key_node.start_mark.line + 1}"
        key = str(key_node.value)
        option, rest = _option(key, place, version)
        name = option.flag.name
        if name in values and not rest:
            raise InputError(f"{place}: {key!r} is given twice", "vLLM would take the last one; keep one")
        try:
            value = yaml.SafeLoader("").construct_object(value_node, deep=True)
        except yaml.YAMLError as error:
            raise InputError(
                f"{place}: {key}: not a plain value", "write text, numbers, lists, maps"
            ) from error
        if value is None:
            continue
        if rest:
            _merge_part(values, name, rest, value)
        elif (read := _read(option, value, f"{place}: {key}")) is not None:
            values[name] = read
    return values


def _compose(path: Path) -> yaml.Node | None:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node: yaml.Node | None = yaml.compose(read_text(path), Loader=loader)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "name a vLLM YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        problem = getattr(error, "problem", None) or "not UTF-8, or nested too deep"
        raise InputError(
            f"{path}:{line}: not YAML: {problem}", "see docs of `vllm serve --config`"
        ) from error
    return node


def _option(key: str, place: str, version: VllmVersion | None) -> tuple[Option, list[str]]:
    """The option that a key stands for, and the path behind a dotted one: `compilation-config.mode`."""
    from kvplan.config.flag_table import flag_table

    head, *rest = key.split(".")
    table = flag_table()
    option = table.find("--" + head.replace("_", "-"), version)
    if option is None:
        import difflib

        names = [text.removeprefix("--") for text in table.options if text.startswith("--")]
        near = difflib.get_close_matches(head.replace("_", "-"), names, n=1)
        hint = f"did you mean {near[0]}?" if near else "keys are vLLM's long options without the dashes"
        raise InputError(f"{place}: unknown key {key!r}", hint)
    if version is not None and not option.is_in(version):
        from kvplan.config.version import format_vllm_version

        raise InputError(
            f"{place}: vLLM {format_vllm_version(version)} has no {key!r}",
            f"it is there {_span(option)}",
        )
    return option, rest


def _span(option: Option) -> str:
    from kvplan.config.version import format_vllm_version

    since = None if option.since is None else f"from {format_vllm_version(option.since)} on"
    until = None if option.until is None else f"up to {format_vllm_version(option.until)}"
    return " ".join(part for part in (since, until) if part)


def _read(option: Option, value: Any, place: str) -> Any:
    """The value as vLLM's parser would have it; None for one that it leaves out."""
    flag = option.flag
    if flag.kind in _BOOLEAN_KINDS:
        if not isinstance(value, bool):
            raise InputError(f"{place}: {value!r} is neither true nor false", "write true or false, unquoted")
        if option.negates:
            return False if value else None
        # Without a --no- form, vLLM drops a false.
        return None if flag.kind == "store_true" and not value else value
    if isinstance(value, bool):
        raise InputError(
            f"{place}: needs a value, not {str(value).lower()}", "vLLM would read the bare option"
        )
    if isinstance(value, dict):
        if flag.kind not in _JSON_KINDS:
            raise InputError(f"{place}: takes no mapping", "give one value")
        return value
    if isinstance(value, list):
        if not flag.many:
            raise InputError(f"{place}: takes one value, not a list", "give one value")
        words = [_word(flag, item, place) for item in value]
        return (tuple(words) if flag.name in FIELD_NAMES else words) or None
    word = _word(flag, value, place)
    if word is None or not flag.many:
        return word
    return (word,) if flag.name in FIELD_NAMES else [word]


def _word(flag: Flag, value: Any, place: str) -> Any:
    from kvplan.config.flag_values import BadValueError, UnsetError, parse_value

    text = json.dumps(value) if isinstance(value, dict) else str(value)
    try:
        parsed = parse_value(flag, text)
    except UnsetError:
        return None
    except BadValueError as error:
        raise InputError(
            f"{place}: {text!r}: {error}", f"vLLM takes {_KINDS.get(flag.kind, 'text')}"
        ) from error
    if flag.choices and isinstance(parsed, str) and parsed not in flag.choices:
        import difflib

        near = difflib.get_close_matches(parsed, flag.choices, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(flag.choices)}"
        raise InputError(f"{place}: {text!r} is not a value that vLLM takes", hint)
    return parsed


_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "human_int": "a whole number, or one like 8k (8000) or 8K (8192)",
    "human_int_or_auto": "a whole number, one like 8k (8000) or 8K (8192), or auto",
    "json": "JSON",
    "json_or_str": "JSON or a name",
}


def _merge_part(values: dict[str, Any], name: str, rest: list[str], value: Any) -> None:
    from kvplan.config.flag_values import merge

    nested: Any = value
    for part in reversed(rest):
        nested = {part: nested}
    whole = values.setdefault(name, {})
    if isinstance(whole, dict):
        merge(whole, nested)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
