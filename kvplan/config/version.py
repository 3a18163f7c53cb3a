"""vLLM versions, comparable: `0.32.0` -> (0, 32, 0)."""

from __future__ import annotations

import re
from typing import Final

from kvplan.errors import InputError

VllmVersion = tuple[int, int, int]

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.\d+)?(?:[.+-]?(?:post|rc|dev|cu|cpu|\+).*)?")


def parse_vllm_version(text: str) -> VllmVersion:
    """`v0.20.2`, `0.9.0.post2`, `0.32`, `0.19.1+cu130` -> (major, minor, patch).

    Raises:
        InputError: not a release number (a branch name, `latest`).
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise InputError(f"vLLM version {text!r} is not a release number", "write it like 0.32.0")
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch or 0)


def format_vllm_version(version: VllmVersion) -> str:
    """(0, 32, 0) -> `0.32.0`."""
    return ".".join(map(str, version))
