"""The pages of `tune --url` and `tune --ladder`: quiet, offline and without a finding of axe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvplan.report.runs import special_report_of
from kvplan.tune.journal import read_journal
from tests.browser.chromium import THEMES, Theme, axe_violations, log_of, requested, show

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

RUNS = Path(__file__).parents[1] / "data" / "runs"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("run", "figures"), [("server-cpu", 1), ("ladder-cpu", 0)])
def test_the_page_is_quiet_offline_and_accessible(
    driver: WebDriver, tmp_path: Path, run: str, figures: int, theme: Theme
) -> None:
    report = special_report_of(read_journal(RUNS / run))
    assert report is not None
    page = tmp_path / "page.html"
    page.write_text(report.render("html"), encoding="utf-8")
    show(driver, page, theme=theme)

    assert log_of(driver, "browser") == []
    assert [url for url in requested(driver) if url != page.as_uri() and not url.startswith("data:")] == []
    assert axe_violations(driver) == []
    shown = driver.execute_script("return document.querySelectorAll('figure svg').length")
    assert shown == figures
