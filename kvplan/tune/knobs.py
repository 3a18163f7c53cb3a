"""The knobs that a user adds to the search: `--knob NAME=V1,V2` and `--space FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIXED: Final = frozenset({"model", "max_model_len", "kv_cache_memory_bytes", "num_gpu_blocks_override"})
"""Not for the search: they follow from the workload, or would replace what it searches for."""

_ALIKE: Final = 0.8
"""Least likeness (0 to 1, difflib's ratio) of a slip of the pen: a wrong offer costs more than none. `nosuch`
is 0.5 like `nnodes`; `max_num_seq` is 0.96 like `max_num_seqs`."""
_OFFERED: Final = 3

_COUNTS: Final = frozenset(
    {"block_size", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "pipeline_parallel_size"}
)


def read_knobs(given: Iterable[str], space_file: str | None) -> dict[str, tuple[Any, ...]]:
    """Knob name -> its values, the base first. Names are vLLM's, with dashes or underscores.

    Raises:
        InputError: malformed, unreadable, a knob with fewer than two values, or one that cannot be searched.
    """
    knobs = {} if space_file is None else _from_file(space_file)
    for text in given:
        name, equals, listed = text.partition("=")
        if not equals:
            raise InputError(
                f"--knob {text!r} has no values", "write --knob max_num_batched_tokens=2048,4096"
            )
        knobs[_name(name)] = tuple(_value(value) for value in listed.split(","))
    for name, values in knobs.items():
        _refuse_unknown(name)
        check_values(name, values)
        if len(values) < 2 or len({repr(value) for value in values}) < len(values):
            raise InputError(f"knob {name} needs two or more different values", "the first one is the base")
        if name in _FIXED:
            raise InputError(f"{name} is not for the search", "it follows from the workload and the others")
    return knobs


def check_values(name: str, values: Iterable[Any]) -> None:
    """Refuse values that no vLLM flag of that name takes, before anything computes with them.

    Raises:
        InputError: not a whole number from 1 up, not a share of the card, or not a name.
    """
    for value in values:
        flag = f"{name.replace('_', '-')} {value!r}"
        if name in _COUNTS and (type(value) is not int or value < 1):
            raise InputError(f"--{flag} is not a whole number from 1 up", "for example 32")
        if name == "gpu_memory_utilization" and not (type(value) in {int, float} and 0 < value <= 1):
            raise InputError(f"--{flag} is not above 0 and at most 1", "for example 0.9")
        if name == "kv_cache_dtype" and not (isinstance(value, str) and value):
            raise InputError(f"--{flag} is not the name of a type", "for example auto or fp8")


def _refuse_unknown(name: str) -> None:
    """A flag that no release of vLLM has would fail every launch it is tried in."""
    from kvplan.config.flag_table import flag_table

    table = flag_table()
    if name in table.flags or f"--{name.replace('_', '-')}" in table.options:
        return
    of_today = {option.flag.name for option in table.options.values() if option.is_in(table.newest)}
    near = _alike(name, of_today - _FIXED)
    raise InputError(
        f"knob {name!r} is no flag of vLLM",
        f"did you mean {', '.join(near)}?"
        if near
        else "names are vLLM's, for example max_num_batched_tokens",
    )


def _alike(name: str, flags: Iterable[str]) -> list[str]:
    """Flags that the name is nearly spelt like, else those that have all of its words; often none."""
    import difflib

    known = sorted(flags)
    words = set(name.split("_")) - {""}
    spelt = difflib.get_close_matches(name, known, n=_OFFERED, cutoff=_ALIKE)
    worded = [flag for flag in known if len(words) > 1 and words <= set(flag.split("_"))]
    return [*spelt, *(flag for flag in worded if flag not in spelt)][:_OFFERED]


def _from_file(path: str) -> dict[str, tuple[Any, ...]]:
    import yaml

    try:
        record = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--space {path} cannot be read: {error}", "name a YAML file that you may read"
        ) from error
    except yaml.YAMLError as error:
        raise InputError(
            f"--space {path} is not YAML: {error}", "write lines like `block_size: [16, 32]`"
        ) from error
    if not isinstance(record, dict) or not all(isinstance(values, list) for values in record.values()):
        raise InputError(
            f"--space {path} is not a mapping of knobs to lists",
            "write `block_size: [16, 32]`, the base first",
        )
    return {_name(str(name)): tuple(values) for name, values in record.items()}


def _name(text: str) -> str:
    return text.strip().removeprefix("--").replace("-", "_")


def _value(text: str) -> Any:
    """As vLLM's YAML file would read it: numbers, true and false, else text."""
    import yaml

    return yaml.safe_load(text.strip())
