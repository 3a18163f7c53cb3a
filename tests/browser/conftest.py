"""Browser tests skip, with what to install, where there is no Chromium; with --require-browser they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvplan.report.html import render_html
from kvplan.report.tune import TuneReport
from kvplan.tune.journal import read_journal
from tests.browser.chromium import RUN, missing_parts, open_browser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver.chrome.webdriver import WebDriver


@pytest.fixture(scope="session")
def driver(pytestconfig: pytest.Config) -> Iterator[WebDriver]:
    """One browser for all tests."""
    missing = missing_parts()
    if missing:
        if pytestconfig.getoption("--require-browser"):
            pytest.fail(f"not installed: {', '.join(missing)}")
        pytest.skip(f"not installed: {', '.join(missing)}")
    with open_browser() as driver:
        yield driver


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the committed run, in a file."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_html(TuneReport.of(read_journal(RUN)), RUN), encoding="utf-8")
    return path
