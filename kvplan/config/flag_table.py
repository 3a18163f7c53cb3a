"""vLLM's options, release by release, as profiles/engines/flags-0.32.json holds them.

The file was printed from the argument parsers of 30 releases themselves; a version that is not among them is
taken for the newest one before it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from kvplan.config.version import VllmVersion

_FILE: Final = "engines/flags-0.32.json"


class Flag(NamedTuple):
    """One setting of vLLM with the options that set it."""

    name: str
    """vLLM's own name (argparse's dest)."""
    kind: str
    """bool, store_true, str, int, float, human_int, human_int_or_auto, json, json_or_str, lower."""
    many: bool = False
    """Takes words until the next option (nargs "+")."""
    append: bool = False
    """Each use adds a value instead of replacing the last."""
    optional_value: bool = False
    """May stand without a value (nargs "?")."""
    nullable: bool = False
    """Takes an empty value or `None` for "not set"."""
    choices: tuple[str, ...] = ()
    deprecated_since: VllmVersion | None = None


class Option(NamedTuple):
    """One spelling of a flag and the releases that have it; None is open."""

    text: str
    flag: Flag
    negates: bool = False
    since: VllmVersion | None = None
    until: VllmVersion | None = None
    """The last release read that has it."""

    def is_in(self, version: VllmVersion) -> bool:
        """Whether that release has the option; patch releases in between were not read, so minors decide."""
        return (self.since is None or self.since[:2] <= version[:2]) and (
            self.until is None or version[:2] <= self.until[:2]
        )


class FlagTable(FrozenRecord):
    """All options that some release has."""

    options: dict[str, Option]
    newest: VllmVersion
    oldest: VllmVersion
    flags: dict[str, Flag] = field(default_factory=dict)

    def find(self, text: str, version: VllmVersion | None) -> Option | None:
        """The option that argparse takes the text for: the exact one, else the only one that begins with it.

        With a pinned version its own options come first, so that an abbreviation means what it meant there;
        an option of another release is still found, and the caller says that this release lacks it.
        """
        exact = self.options.get(text)
        if exact is not None:
            return exact
        if not text.startswith("--") or len(text) < 4:
            return None
        return self._abbreviated(text, version)

    def _abbreviated(self, text: str, version: VllmVersion | None) -> Option | None:
        matches = [option for name, option in self.options.items() if name.startswith(text)]
        for candidates in ([o for o in matches if o.is_in(version or self.newest)], matches):
            if len({o.flag.name for o in candidates}) == 1 and len({o.negates for o in candidates}) == 1:
                return candidates[0]
            if candidates:
                return None
        return None


@functools.cache
def flag_table() -> FlagTable:
    """The table, read once a process."""
    return _table(json.loads(_profiles().joinpath(_FILE).read_text(encoding="utf-8")))


def _profiles() -> Path:
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_profiles"
    return shipped if shipped.is_dir() else package.parent / "profiles"


@functools.cache  # thirty releases, seven hundred options
def _version(text: str | None) -> VllmVersion | None:
    if text is None:
        return None
    from kvplan.config.version import parse_vllm_version

    return parse_vllm_version(text)


def _table(data: dict[str, Any]) -> FlagTable:
    versions = [v for v in (_version(text) for text in data["releases_read"]) if v is not None]
    oldest = min(versions)
    options: dict[str, Option] = {}
    flags: dict[str, Flag] = {}
    for name, row in data["flags"].items():
        flag = Flag(
            name,
            row["kind"],
            many=row.get("many", False),
            append=row.get("append", False),
            optional_value=row.get("optional_value", False),
            nullable=row.get("nullable", False),
            choices=tuple(row.get("choices", ())),
            deprecated_since=_version(row.get("deprecated")),
        )
        flags[name] = flag
        for text, span in row["options"].items():
            since, until = _version(span[0]), _version(span[1])
            options[text] = Option(
                text,
                flag,
                negates=flag.kind == "bool" and text.startswith("--no-"),
                since=None if since == oldest else since,
                until=until,
            )
    return FlagTable(options, max(versions), oldest, flags)
