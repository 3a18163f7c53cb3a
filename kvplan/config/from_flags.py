"""Command-line flags and a vLLM YAML file -> ServingConfig, with vLLM's precedence: the command line wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.config.serving import ServingConfig
from kvplan.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Mapping

_COUNTS: Final = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes")
"""Flags that take vLLM's human-readable numbers (8k, 32K, 2G)."""


def serving_config(flags: Mapping[str, Any], config_file: str | None) -> ServingConfig:
    """The settings that vLLM would see.

    Args:
        flags: flag name with underscores -> value, None where it was not given; counts may be text.
        config_file: path of a vLLM YAML config, or None.

    Raises:
        InputError: a malformed number, or a malformed file (with its line).
    """
    base = ServingConfig()
    if config_file is not None:
        from kvplan.config.yaml_file import from_vllm_yaml

        base = from_vllm_yaml(config_file)
    given = {name: _value(name, value) for name, value in flags.items() if value is not None}
    return base.with_flags(**given)


def _value(name: str, value: Any) -> Any:
    if name not in _COUNTS or not isinstance(value, str):
        return value
    if name == "max_model_len" and value.strip().lower() in {"auto", "-1"}:
        return -1
    return parse_count(value, f"--{name.replace('_', '-')}")
