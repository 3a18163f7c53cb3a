"""A headless Chromium that nothing of the user's is in, and that nothing outside the page reaches."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver.chrome.webdriver import WebDriver

Theme = Literal["light", "dark"]
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")

RUN: Final = Path(__file__).parents[1] / "golden/html/run"
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def chromium_path() -> str | None:
    """The browser, by the names that distributions give it."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def missing_parts() -> list[str]:
    """What is not installed, each with how to install it."""
    parts = [] if chromium_path() else ["Chromium (apt-get install chromium)"]
    parts += [] if shutil.which("chromedriver") else ["chromedriver (apt-get install chromium-driver)"]
    return parts


@contextlib.contextmanager
def open_browser() -> Iterator[WebDriver]:
    """A fresh browser, ended on every way out."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium_path() or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    with tempfile.TemporaryDirectory(prefix="kvplan-chromium-", ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def show(
    driver: WebDriver, page: Path, *, theme: Theme = "light", width: int = 1200, media: str = ""
) -> None:
    """Open a file in a window of that width, on a system of that theme."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [feature]})
    log_of(driver, "browser")
    log_of(driver, "performance")
    driver.get(page.as_uri())


def log_of(driver: WebDriver, kind: Literal["browser", "performance"]) -> list[dict[str, Any]]:
    """What came into a log of the browser since it was last asked for."""
    entries: list[dict[str, Any]] = driver.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def requested(driver: WebDriver) -> list[str]:
    """Addresses that the page asked for since `show`, its own among them."""
    messages = (json.loads(entry["message"])["message"] for entry in log_of(driver, "performance"))
    return [
        str(message["params"]["request"]["url"])
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


def axe_violations(driver: WebDriver) -> list[dict[str, Any]]:
    """What axe-core finds on the open page: rule, impact and the elements."""
    script = resources.files("axe_playwright_python") / "axe.min.js"
    driver.execute_script(script.read_text(encoding="utf-8"))
    driver.set_script_timeout(120)
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run().then(result => done(result.violations),"
        " error => done([{id: String(error), impact: 'critical'}]))"
    )
    return [
        {
            "rule": violation["id"],
            "impact": violation["impact"],
            "at": [node["html"][:160] for node in violation.get("nodes", [])],
        }
        for violation in found
    ]
