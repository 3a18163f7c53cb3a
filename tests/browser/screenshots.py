"""The pictures of the HTML report in docs/img: `python -m tests.browser.screenshots`."""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.report.html import render_html
from kvplan.report.tune import TuneReport
from kvplan.tune.journal import read_journal
from tests.browser.chromium import RUN, Theme, missing_parts, open_browser, show

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

FOLDER: Final = Path(__file__).parents[2] / "docs/img"
WIDTH: Final = 1120
COLOURS: Final = 256
"""Of a picture: enough for flat colours and smooth letters, and a third of the bytes."""
PICTURES: Final[tuple[tuple[str, Theme, str, str], ...]] = (
    ("report-verdict", "light", "header.page", "#ledger"),
    ("report-verdict-dark", "dark", "header.page", "#ledger"),
    ("report-boundary", "light", "#boundary", "#curve"),
    ("report-speed", "light", "#pareto", "#effects"),
    ("report-memory-dark", "dark", "#memory", "#memory"),
    ("report-cheat-sheet", "light", "#cheat-sheet", "#cheat-sheet"),
)
"""File name, theme, and the first and last element that it shows."""


def main() -> None:
    """Take all pictures and print their sizes."""
    missing = missing_parts()
    if missing:
        sys.exit(f"not installed: {', '.join(missing)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open_browser() as driver:
        page = Path(folder) / "report.html"
        page.write_text(render_html(TuneReport.of(read_journal(RUN)), RUN), encoding="utf-8")
        for name, theme, first, last in PICTURES:
            show(driver, page, theme=theme, width=WIDTH)
            data = small_png(picture(driver, first, last))
            (FOLDER / f"{name}.png").write_bytes(data)
            print(f"docs/img/{name}.png {len(data) / 1024:.0f} KiB")


def picture(driver: WebDriver, first: str, last: str) -> bytes:
    """The page from the top of one element to the bottom of another."""
    top, bottom = driver.execute_script(
        "return [document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY,"
        " document.querySelector(arguments[1]).getBoundingClientRect().bottom + scrollY]",
        first,
        last,
    )
    clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top + 24, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    return base64.b64decode(shot["data"])


def small_png(data: bytes) -> bytes:
    """The picture with few colours, which flat drawings do not miss."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(
        small, "PNG", optimize=True
    )
    return small.getvalue()


if __name__ == "__main__":
    main()
