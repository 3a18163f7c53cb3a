"""Puts the index of the built-in profiles into the wheel, so that an installed kvplan parses no YAML.

hatchling runs it (`[tool.hatch.build.targets.wheel.hooks.custom]` in pyproject.toml), kvplan never does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProfileIndexHook(BuildHookInterface[Any]):
    """Compiles profiles/ and adds the result to the wheel beside the YAML."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the index; an editable install makes its own on first use, in the user's cache."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from kvplan.catalog.compile import compile_folder
        from kvplan.catalog.index import INDEX_FILE

        self._folder = tempfile.TemporaryDirectory(prefix="kvplan-index-")
        index = Path(self._folder.name) / INDEX_FILE
        index.write_bytes(compile_folder(Path(self.root) / "profiles"))
        build_data["force_include"][str(index)] = f"kvplan/_profiles/{INDEX_FILE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  the interface
        """Remove the temporary file once it is in the wheel."""
        if version != "editable":
            self._folder.cleanup()
