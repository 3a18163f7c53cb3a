"""The HTML report in headless Chromium: quiet, offline, legible in both themes, usable without a mouse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.report.html import render_html
from kvplan.report.tune import TuneReport
from kvplan.tune.journal import read_journal
from tests.browser.chromium import RUN, THEMES, Theme, axe_violations, log_of, requested, show

if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver.chrome.webdriver import WebDriver

CONTRAST_OF_TEXT = 4.5
"""WCAG 2.2, 1.4.3."""
CONTRAST_OF_GRAPHICS = 3.0
"""WCAG 2.2, 1.4.11."""
FIGURES = 11
"""Ledger, boundary, curve, Pareto front, effects, and memory of the six trials that left samples."""
FORMS = ("command", "form-serve", "form-yaml", "form-compose", "form-kubernetes", "form-helm", "tune-command")


def pressed(driver: WebDriver, key: str) -> None:
    """One key, to whatever has the focus."""
    from selenium.webdriver.common.keys import Keys

    driver.switch_to.active_element.send_keys(getattr(Keys, key))


def tab_to(driver: WebDriver, script: str, most: int = 120) -> None:
    """Press Tab until the script is true of the focused element `e`."""
    for _ in range(most):
        pressed(driver, "TAB")
        if driver.execute_script(f"const e = document.activeElement; return {script}"):
            return
    pytest.fail(f"not reached with {most} times Tab: {script}")


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `rgb(r, g, b)`."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_nothing_is_complained_of_and_nothing_is_asked_for(
    driver: WebDriver, page: Path, theme: Theme
) -> None:
    show(driver, page, theme=theme)
    driver.execute_script("for (const b of document.querySelectorAll('button')) b.click()")
    driver.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    assert log_of(driver, "browser") == []
    asked = requested(driver)
    assert page.as_uri() in asked
    assert [url for url in asked if url != page.as_uri() and not url.startswith("data:")] == []


@pytest.mark.parametrize("theme", THEMES)
def test_every_figure_is_visible_and_legible(driver: WebDriver, page: Path, theme: Theme) -> None:
    show(driver, page, theme=theme)
    boxes = driver.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == FIGURES
    assert all(box["width"] >= 250 and box["height"] >= 90 for box in boxes)
    paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    texts = driver.execute_script(
        "return [...document.querySelectorAll('figure svg text')].map(t => [t.textContent,"
        " getComputedStyle(t).fill, t.getBoundingClientRect().height])"
    )
    assert len(texts) > 100
    assert not [t for t in texts if contrast(t[1], paper) < CONTRAST_OF_TEXT]
    assert not [t for t in texts if t[2] < 9], "letters too small to read"
    marks = driver.execute_script(
        "return [...document.querySelectorAll('figure svg use')].map(u => getComputedStyle(u).fill)"
        ".filter(f => f.startsWith('rgb('))"
    )
    drawn = {fill for fill in marks if fill != paper}
    ticks = driver.execute_script(
        "const p = document.createElement('p'); p.style.color = 'var(--rule)'; document.body.append(p);"
        "const c = getComputedStyle(p).color; p.remove(); return c"
    )
    assert len(drawn - {ticks}) >= 4
    assert not [fill for fill in drawn - {ticks} if contrast(fill, paper) < CONTRAST_OF_GRAPHICS]


def test_no_two_texts_of_a_figure_lie_on_one_another(driver: WebDriver, page: Path) -> None:
    show(driver, page)
    overlaps = driver.execute_script("""
        const found = [];
        for (const svg of document.querySelectorAll('figure svg')) {
          const all = [...svg.querySelectorAll('text')];
          const texts = all.map(t => [t.textContent, t.getBoundingClientRect()]);
          texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
            const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
            const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
            if (wide > 2 && high > 3) found.push([a, b]);
          }));
        }
        return found""")
    assert overlaps == []


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_serious(driver: WebDriver, page: Path, theme: Theme) -> None:
    show(driver, page, theme=theme)
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    found = axe_violations(driver)
    assert [v for v in found if v["impact"] in {"serious", "critical"}] == []
    assert found == [], "nothing lesser either"


def test_axe_is_really_asked(driver: WebDriver, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<!DOCTYPE html><title>x</title><img src='data:,'><button></button>")
    show(driver, bad)
    assert {"image-alt", "button-name"} <= {v["rule"] for v in axe_violations(driver)}


@pytest.mark.parametrize("theme", THEMES)
def test_the_theme_follows_the_system_and_the_toggle_turns_it_by_keyboard(
    driver: WebDriver, page: Path, theme: Theme
) -> None:
    def state() -> tuple[str, str]:
        background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        toggle = driver.find_element("id", "theme")
        return ("dark" if luminance(background) < 0.1 else "light", str(toggle.get_attribute("aria-pressed")))

    other = "dark" if theme == "light" else "light"
    show(driver, page, theme=theme)
    assert state() == (theme, str(theme == "dark").lower())
    tab_to(driver, "e.id === 'theme'", most=5)
    pressed(driver, "ENTER")
    assert state() == (other, str(other == "dark").lower())
    pressed(driver, "SPACE")
    assert state() == (theme, str(theme == "dark").lower())


def test_every_copy_button_copies_its_form_by_keyboard(driver: WebDriver, page: Path) -> None:
    show(driver, page)
    driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    for name in FORMS:
        tab_to(driver, f"e.dataset.copies === '{name}'")
        pressed(driver, "ENTER")
        copied = driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "setTimeout(() => navigator.clipboard.readText().then(done, e => done('refused: ' + e)), 50)"
        )
        text = driver.execute_script("return document.getElementById(arguments[0]).textContent", name)
        assert len(text) > 30
        assert copied == text
        assert driver.find_element("id", "told").text.endswith("copied")


def test_where_the_clipboard_is_not_allowed_the_text_is_selected(driver: WebDriver, page: Path) -> None:
    show(driver, page)
    driver.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    tab_to(driver, "e.dataset.copies === 'form-yaml'")
    pressed(driver, "SPACE")
    selected = driver.execute_script("return String(getSelection())")
    assert selected.strip() == driver.find_element("id", "form-yaml").text.strip()


def test_focus_is_seen_everywhere(driver: WebDriver, page: Path) -> None:
    show(driver, page)
    seen: list[str] = []
    for _ in range(120):
        pressed(driver, "TAB")
        style = driver.execute_script(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return [e.tagName, s.outlineStyle, parseFloat(s.outlineWidth)]"
        )
        if style[0] == "BODY":
            break  # once around
        assert style[1] != "none", style
        assert style[2] >= 2, style
        seen.append(style[0])
    # The link over the header, the theme, 13 parts, 9 copy buttons and the texts they copy, tables, figures.
    assert len(seen) > 45
    assert {"A", "BUTTON", "PRE", "DIV", "SUMMARY"} <= set(seen)


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_the_page_never_scrolls_sideways(driver: WebDriver, page: Path, width: int) -> None:
    show(driver, page, width=width)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_the_page_prints_without_its_buttons(driver: WebDriver, page: Path) -> None:
    show(driver, page, theme="dark", media="print")
    assert driver.execute_script(
        "return [...document.querySelectorAll('button, nav')]"
        ".every(e => getComputedStyle(e).display === 'none')"
    )
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert luminance(background) > 0.9, "paper is white, whatever the screen's theme"
    assert len(driver.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 50_000


def test_without_script_the_page_is_whole_and_has_no_dead_button(driver: WebDriver, page: Path) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(driver, page)
        assert not [b for b in driver.find_elements("tag name", "button") if b.is_displayed()]
        assert driver.find_element("class name", "verdict").is_displayed()
        assert len(driver.find_elements("tag name", "svg")) == FIGURES
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_what_a_log_says_is_never_run(driver: WebDriver, tmp_path: Path) -> None:
    text = "</script><script>window.hit = 1</script>"
    text += "<img src=x onerror='window.hit = 1'><svg onload='window.hit = 1'>"
    journal = (RUN / "journal.jsonl").read_text()
    lines: list[dict[str, Any]] = [json.loads(line) for line in journal.splitlines()]
    answer = lines[-1]["recommendation"]
    answer |= {"notes": [text], "reasons": [text], "met": False, "stopped": text}
    for end in answer["failures"]:
        end |= {"evidence": text, "log_path": text}
    for effect in answer["effects"]:
        effect |= {"knob": text, "to_value": text}
    lines[0]["problem"]["model"] = text
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = tmp_path / "report.html"
    target.write_text(render_html(TuneReport.of(read_journal(tmp_path)), tmp_path), encoding="utf-8")
    show(driver, target)
    assert driver.execute_script("return window.hit") is None
    assert log_of(driver, "browser") == []
    assert [url for url in requested(driver) if url != target.as_uri() and not url.startswith("data:")] == []
