"""One real run (vLLM 0.32.0 on CPU, `kvplan tune --demo`), and ways to change its journal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.report.html import render_html
from kvplan.report.tune import TuneReport
from kvplan.tune.journal import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = Path(__file__).parents[2] / "golden/html/run"

Lines = list[dict[str, Any]]


@pytest.fixture(scope="session")
def run() -> Path:
    """The run's folder, as committed."""
    return RUN


@pytest.fixture(scope="session")
def report() -> TuneReport:
    """The run, told."""
    return TuneReport.of(read_journal(RUN))


@pytest.fixture(scope="session")
def page(report: TuneReport) -> str:
    """The run's page."""
    return render_html(report, RUN)


@pytest.fixture
def lines() -> Lines:
    """The journal's lines, to be changed."""
    return [json.loads(line) for line in (RUN / "journal.jsonl").read_text().splitlines()]


@pytest.fixture
def told(tmp_path: Path) -> Callable[[Lines], TuneReport]:
    """A report of changed lines; the journal is in tmp_path."""

    def tell(lines: Lines) -> TuneReport:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "journal.jsonl").write_text(text)
        return TuneReport.of(read_journal(tmp_path))

    return tell


@dataclass
class Parsed(HTMLParser):
    """A page as a browser would have it: elements with their attributes, and the text outside scripts."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    _inside: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        self.elements.append((tag, dict(attrs)))
        # The words in a drawing depend on the drawing library's ticks; its title and description are ours.
        if tag in {"script", "style", "text"}:
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        """Text."""
        if self._inside == "script":
            self.scripts.append(data)
        elif not self._inside:
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All text, with single blanks."""
        return " ".join(" ".join(self.texts).split())


def parsed(page: str) -> Parsed:
    """The page, parsed."""
    parser = Parsed()
    parser.feed(page)
    parser.close()
    return parser


@pytest.fixture(scope="session")
def parse() -> Callable[[str], Parsed]:
    """Parses a page."""
    return parsed
