"""vLLM versions: their rules from profiles/engines, and the version that is installed here."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.catalog import index
from kvplan.config.version import parse_vllm_version
from kvplan.config.version_rules import VersionRules, version_rules

if TYPE_CHECKING:
    from kvplan.config.version import VllmVersion


_DIST_INFO: Final = r"vllm(?:_cpu)?-(.+)\.dist-info"


@cache
def _profiles() -> tuple[dict[str, Any], ...]:
    """Engine profiles; a user's folder may bring a newer version's rules."""
    return tuple(
        folder.record("engines", name)
        for folder in index.indexes()
        for name in folder.records.get("engines", {})
        if name.startswith("vllm-")
    )


def installed_vllm_version() -> VllmVersion | None:
    """The vLLM beside us, whichever distribution brought it; None when there is none.

    Read from the name of its folder of metadata: importlib.metadata would do the same in 15 ms, which is a
    tenth of what an estimate may take.
    """
    for folder in sys.path:
        if not Path(folder, "vllm").is_dir():
            continue
        for name in os.listdir(folder):  # noqa: PTH208  pathlib would cost the import
            match = re.fullmatch(_DIST_INFO, name)
            if match:
                return parse_vllm_version(match[1])
    return None


def newest_known_version() -> VllmVersion:
    """The newest version whose rules kvplan has."""
    return max(parse_vllm_version(p["version"]) for p in _profiles())


def rules_for(version: VllmVersion) -> VersionRules:
    """The accounting rules and defaults of that version (the newest known ones if it is newer)."""
    return version_rules(version, _profiles())
