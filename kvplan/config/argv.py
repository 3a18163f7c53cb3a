"""ServingConfig to the flags of `vllm serve`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvplan.config.serving import ServingConfig

_WITHOUT_NEGATION: Final = frozenset(
    {
        "aggregate_engine_logging",
        "data_parallel_multi_port_external_lb",
        "disable_log_stats",
        "grpc",
        "headless",
    }
)
"""Flags that vLLM declares as plain `store_true`: they have no `--no-` form, and false is not giving them."""


def to_argv(config: ServingConfig) -> list[str]:
    """The given flags as `vllm serve` takes them, in a stable order; the model is the caller's to place.

    `True` becomes `--flag`, `False` `--no-flag`, a list `--flag a b`, a mapping one JSON argument: what vLLM
    does itself with the values of a YAML file.

    Source: vLLM 0.32.0 utils/argparse_utils.py::FlexibleArgumentParser.load_config_file.
    """
    argv: list[str] = []
    for name, value in config.given().items():
        if name != "model":
            argv += _flag(name, value)
    return argv


def _flag(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if value is True:
        return [f"--{option}"]
    if value is False:
        return [] if name in _WITHOUT_NEGATION else [f"--no-{option}"]
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [f"--{option}", json.dumps(dict(value), separators=(",", ":"))]
    if isinstance(value, (list, tuple)):
        return [f"--{option}", *(_text(item) for item in value)] if value else []
    text = _text(value)
    # argparse takes a value that begins with a dash for another option, unless it is tied on with "=".
    return [f"--{option}={text}"] if text.startswith("-") else [f"--{option}", text]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(dict(value), separators=(",", ":"))
    return str(value)
