"""A vLLM log that a user hands over -> a launch record for the store."""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.serving import FIELD_NAMES
from kvplan.errors import FailureClass, InputError
from kvplan.foreign import read_text
from kvplan.launch import Launch, StartupFacts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NON_DEFAULT: Final = re.compile(r"non-default args: (\{.*\})")
_NAMESPACE: Final = re.compile(r"\bargs: Namespace\((.*)\)\s*$")
_CONFIG: Final = re.compile(r"Initializing an? (?:V\d )?LLM engine \(v[^)]+\) with config: (.*)")
_PAIR: Final = re.compile(
    r"\b(\w+)=('[^']*'|\"[^\"]*\"|None|True|False|-?\d+(?:\.\d+)?|torch\.\w+)(?=[,)\s]|$)"
)
_TOTAL: Final = re.compile(r"Free memory on device(?: \w+:\d+)? \([\d.]+/([\d.]+) GiB\)")
_V0_TOTAL: Final = re.compile(r"total_gpu_memory \(([\d.]+)GiB\)")
_ON_CPU: Final = re.compile(r"device_config=cpu|\bcpu_worker\.py|CPU KV cache size|for KV cache on node \d")
_FROM_CONFIG: Final = {
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "max_seq_len": "max_model_len",
}
_MODEL_KEYS: Final = ("model_tag", "model")


def launch_from_log(
    path: Path, *, model: str | None = None, gpu: str | None = None, vllm_version: str | None = None
) -> Launch:
    """The launch that a log describes.

    Args:
        path: vLLM's log, whole or from its first line to the KV cache size.
        model: the model's id, where the log names a local path or an alias.
        gpu: the card, which vLLM's log never names.
        vllm_version: the release, where the log was cut before it says so.

    Raises:
        InputError: unreadable, no vLLM log, or something needed is in neither the log nor the arguments.
    """
    from kvplan.engine.log import classify_failure, parse_startup

    try:
        lines = read_text(path, errors="replace").splitlines()
    except FileNotFoundError as error:
        raise InputError(
            f"{path} cannot be read: no such file", "give --log the file of a vLLM log"
        ) from error
    facts = parse_startup(lines)
    settings = settings_from_log(lines)
    named = next((str(settings[k]) for k in _MODEL_KEYS if settings.get(k)), None)
    settings = {k: v for k, v in settings.items() if k in FIELD_NAMES and k not in _MODEL_KEYS}
    model = model or named
    device: Any = "cpu" if any(_ON_CPU.search(line) for line in lines) else "cuda"
    version = vllm_version or facts.vllm_version
    _require(path, facts, model=model, gpu=gpu, device=device, version=version)
    failure = (
        classify_failure(lines) if facts.available_kv_bytes is None or facts.kv_cache_tokens is None else None
    )
    return Launch(
        outcome="started" if failure is None else "failed",
        settings=settings,
        device=device,
        model=model or "",
        gpu=gpu,
        gpu_total_bytes=_total_bytes(lines),
        failure=None if failure is None else failure.failure,
        decisive_line=None if failure is None else failure.decisive_line,
        facts=dataclasses.replace(facts, vllm_version=version),
        log_path=str(path.resolve()),
    )


def _require(
    path: Path, facts: StartupFacts, *, model: str | None, gpu: str | None, device: str, version: str | None
) -> None:
    if facts == StartupFacts():
        raise InputError(f"{path}: no line of a vLLM start in it", "give the log from vLLM's first line on")
    missing = {
        "--model": model is None,
        "--vllm-version": version is None,
        "--gpu": gpu is None and device == "cuda",
    }
    for flag, is_missing in missing.items():
        if is_missing:
            raise InputError(
                f"{path}: the log does not say it: give {flag}",
                "the whole log, from the first line, names version and model; never the card",
            )
    if facts.available_kv_bytes is None and facts.weights_bytes is None:
        raise InputError(
            f"{path}: neither the weights nor the available KV memory was printed", "nothing to learn from it"
        )


def settings_from_log(lines: Sequence[str]) -> dict[str, Any]:
    """The flags that were given, as far as vLLM printed them; its own config line fills in what it resolved.

    Source: vLLM 0.9 to 0.32 entrypoints/utils.py::log_non_default_args; before, the server printed its whole
    argparse namespace; v1/engine/core.py and engine/llm_engine.py print the config.
    """
    given: dict[str, Any] = {}
    for line in lines:
        if (match := _CONFIG.search(line)) is not None:
            pairs = _pairs(match[1])
            given = {
                flag: pairs[name]
                for name, flag in _FROM_CONFIG.items()
                if pairs.get(name) not in {None, "auto"}
            } | given
            given.setdefault("model", pairs.get("model"))
        elif (match := _NON_DEFAULT.search(line)) is not None:
            given |= _literal(match[1])
        elif (match := _NAMESPACE.search(line)) is not None:
            given |= {k: v for k, v in _pairs(match[1]).items() if v is not None}
    return given


def _literal(text: str) -> dict[str, Any]:
    """A printed dict; with values that are no literals (enums, objects) only its plain pairs."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = re.findall(r"'(\w+)': ('[^']*'|-?\d+(?:\.\d+)?|True|False)", text)
        return {name: ast.literal_eval(value) for name, value in found}
    return value if isinstance(value, dict) else {}


def _pairs(text: str) -> dict[str, Any]:
    return {
        name: None if value.startswith("torch.") else ast.literal_eval(value)
        for name, value in _PAIR.findall(text)
    }


def _total_bytes(lines: Sequence[str]) -> int | None:
    from kvplan.units import bytes_from_gib

    for line in lines:
        match = _TOTAL.search(line) or _V0_TOTAL.search(line)
        if match is not None:
            return bytes_from_gib(float(match[1]))
    return None


def failed_without_reason(launch: Launch) -> bool:
    """Whether the log shows neither a start nor why there was none."""
    return launch.outcome == "failed" and launch.failure is FailureClass.UNKNOWN
