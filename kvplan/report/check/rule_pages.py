"""The rules' pages in docs/rules, which are shipped with the package: what a host shows beside a finding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

_PACKAGE: Final = Path(__file__).parents[2]
_TITLE: Final = re.compile(r"# (KVP\d+): (\S+)")
_LONGEST: Final = 1000

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class RulePage:
    """One rule as its page describes it."""

    id: str
    name: str
    level: Level
    """The gravest severity that it has without a policy."""
    short: str
    """The first sentence."""
    full: str
    """The first paragraph."""
    markdown: str


def rule_pages() -> list[RulePage]:
    """Every rule, by id."""
    # An installed wheel carries the pages beside the code; a checkout has them where they are written.
    shipped = _PACKAGE / "_rules"
    folder = shipped if shipped.is_dir() else _PACKAGE.parent / "docs" / "rules"
    return [_page(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("KVP*.md"))]


def _page(text: str) -> RulePage:
    title, *paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    match = _TITLE.fullmatch(title)
    if match is None:
        raise ValueError(f"not a rule's page: {title!r}")
    severity = next((part for part in paragraphs if part.startswith("Severity:")), "")
    told = next(part for part in paragraphs if not part.startswith("Severity:"))
    full = " ".join(told.split())
    level: Level = "error" if "error" in severity else "warning" if "warning" in severity else "note"
    return RulePage(
        id=match[1],
        name=match[2],
        level=level,
        short=re.split(r"(?<=[.:])\s", full)[0].rstrip(":")[:_LONGEST],
        full=full[:_LONGEST],
        markdown=text,
    )
