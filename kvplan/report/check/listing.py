"""`kvplan check --list`: what was read, as text and as `kvplan.launches/1`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.redact import redact, redact_text
from kvplan.report.check.safe import LONGEST_PATH, place_of, safe_json, shown_line

if TYPE_CHECKING:
    from kvplan.gate.found import Found, LaunchFound

SCHEMA: Final = "kvplan.launches/1"
_OPTIONAL: Final = (
    "defaulted",
    "assumed",
    "ignored",
    "unknown_flags",
    "invalid",
    "name",
    "stage",
    "profile",
    "mig",
    "vllm_version",
    "rendered",
)


def as_dict(found: Found) -> dict[str, Any]:
    """The launches as JSON types, with nothing secret in them."""
    return {
        "schema": SCHEMA,
        "launches": [_launch(launch) for launch in found.launches],
        "not_read": [
            {
                "path": _path(miss.path),
                "line": miss.line,
                "reason": redact_text(miss.reason),
            }
            for miss in found.not_read
        ],
        "files_read": found.files_read,
    }


def as_json(found: Found) -> str:
    """The document of `--list --format json`."""
    return safe_json(as_dict(found))


def as_text(found: Found) -> str:
    """One launch a paragraph, then what was not read, then a count."""
    lines: list[str] = []
    for launch in as_dict(found)["launches"]:
        place = place_of(launch["path"], launch["line"])
        lines.append(f"{place}: {launch['model'] or 'model unknown'} ({launch['format']})")
        cards = launch["gpu"]
        gpu = " or ".join(cards) if isinstance(cards, list) else cards or "GPU unknown"
        lines.append(f"    on {launch['num_gpus'] if launch['num_gpus'] is not None else '?'} x {gpu}")
        for name, value in launch["flags"].items():
            lines.append(
                f"    {name} = {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            )
        for name, label in (
            ("unresolved", "unknown here"),
            ("defaulted", "defaults used"),
            ("unknown_flags", "no such flag"),
        ):
            if launch.get(name):
                lines.append(f"    {label}: {', '.join(launch[name])}")
        for name, why in launch.get("invalid", {}).items():
            lines.append(f"    refused by vLLM: {name}: {why}")
    lines += [
        f"{place_of(miss['path'], miss['line'])}: not read: {miss['reason']}"
        for miss in as_dict(found)["not_read"]
    ]
    count, missed, files = len(found.launches), len(found.not_read), found.files_read
    lines.append(
        f"{count} launch{'' if count == 1 else 'es'} in {files} file{'' if files == 1 else 's'}"
        + (f", {missed} not read" if missed else "")
    )
    return "\n".join(map(shown_line, lines))


def _path(path: str) -> str:
    return redact_text(path, LONGEST_PATH)


def _launch(launch: LaunchFound) -> dict[str, Any]:
    out: dict[str, Any] = {
        "path": _path(launch.path),
        "line": launch.line,
        "column": launch.column,
        "format": launch.format,
        "model": None if launch.model is None else redact_text(launch.model),
        "gpu": redact(launch.gpu),
        "num_gpus": launch.num_gpus,
        "flags": {name: _finite(redact(value, name)) for name, value in launch.flags.items()},
        "unresolved": [redact_text(name) for name in launch.unresolved],
    }
    for name in _OPTIONAL:
        value = getattr(launch, name)
        if value:
            out[name] = redact(dict(value) if name == "invalid" else value)
    return out


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
