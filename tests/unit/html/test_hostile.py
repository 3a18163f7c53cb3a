"""What logs, models and machines may hold stays text, and short."""

from __future__ import annotations

import copy
import unicodedata
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from kvplan.report.html import render_html
from kvplan.report.html.safe import SHOWN_CHARACTERS, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvplan.report.tune import TuneReport

Lines = list[dict[str, Any]]
HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<svg onload=alert(1)>",
    "{{ 7 * 7 }}{% for x in y %}",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m",
    "safe\u202egnp.exe\u2066",
    "half a pair \ud800",
    "nul \x00 and bell \x07",
    "$\\frac{1}{2}$ & < > ' \"",
    "]]></style><style>*{display:none}</style>",
    "javascript:alert(1)",
)
ALL = " ".join(HOSTILE)


def poisoned(lines: Lines, text: str) -> Lines:
    """The journal with the text wherever something outside kvplan could have put it."""
    lines = with_evidence(lines, text)
    header, answer = lines[0], lines[-1]["recommendation"]
    header["problem"]["model"] = f"/models/{text}"
    header["context"]["machine"]["cpu"] = text
    header["context"]["workload"]["name"] = text
    header["context"]["workload"]["source"] = text
    header["assumptions"] = [text]
    header["kvplan_version"] = text
    for end in answer["failures"]:
        end["log_path"] = text
    for effect in answer["effects"]:
        effect |= {"to_value": text, "from_value": text, "knob": text}
    for prediction in answer["predictions"]:
        prediction |= {"name": text, "source": text}
    answer["settings"] |= {"chat_template": text}
    for line in lines:
        if line["kind"] == "trial":
            line["trial"]["spec"]["decides"] = text
            line["trial"]["launch"] |= {"model": text, "log_path": text}
    return lines


def with_evidence(lines: Lines, text: str) -> Lines:
    """The journal with the text wherever a log's line gets to."""
    lines = copy.deepcopy(lines)
    answer = lines[-1]["recommendation"]
    for end in (*answer["failures"], answer["boundary_failed"], answer["low_end"]):
        end["evidence"] = text
    for effect in answer["effects"]:
        effect["why"] = text
    answer |= {"notes": [text], "reasons": [text], "stopped": text, "met": False}
    for line in lines:
        if line["kind"] == "trial":
            line["trial"]["evidence"] = text
            line["trial"]["launch"]["decisive_line"] = text
    return lines


def test_hostile_text_stays_text(
    lines: Lines,
    told: Callable[[Lines], TuneReport],
    tmp_path: Path,
    page: str,
    parse: Callable[[str], Any],
) -> None:
    hostile = parse(render_html(told(poisoned(lines, ALL)), tmp_path))
    tags = [tag for tag, _ in hostile.elements]
    assert tags.count("script") == 1
    assert tags.count("style") == 1
    assert "img" not in tags
    assert not [a for _, a in hostile.elements for name in a if name.startswith("on")]
    assert hostile.scripts == parse(page).scripts
    assert "{{ 7 * 7 }}{% for x in y %}" in hostile.text
    assert "</script><script>alert(1)</script>" in hostile.text


def test_no_character_that_hides_or_reorders_is_left(
    lines: Lines, told: Callable[[Lines], TuneReport], tmp_path: Path
) -> None:
    page = render_html(told(poisoned(lines, ALL)), tmp_path)
    page.encode()
    left = {c for c in page if unicodedata.category(c) in {"Cc", "Cf", "Cs"}} - {"\n", "\t"}
    assert left == set()
    assert "safe\\u202egnp.exe" in page


def test_a_line_of_5_mb_is_cut_and_its_length_said(
    lines: Lines, told: Callable[[Lines], TuneReport], tmp_path: Path, page: str
) -> None:
    line = "<b>x\x1b[31m" * 500_000
    assert len(line) == 4_500_000
    told_page = render_html(told(with_evidence(lines, line)), tmp_path)
    assert len(told_page) < len(page) + 100_000
    assert "… (4,500,000 characters in all)" in told_page


def test_samples_that_are_none_are_passed_over(
    report: TuneReport, tmp_path: Path, parse: Callable[[str], Any]
) -> None:
    folder = tmp_path / "trials/5"
    folder.mkdir(parents=True)
    (folder / "memory.jsonl").write_bytes(
        b'{"at_s": 1, "bytes": 1073741824}\n<script>\n{"at_s": NaN, "bytes": 5}\n[]\n{"at_s": 2}\n'
        b'{"at_s": 3, "bytes": 2147483648}\n{"at_s": 4, "by'
    )
    text = parse(render_html(report, tmp_path)).text
    assert "#5 boundary, survived: at most 2.00 GiB" in text
    assert "No samples were kept of #1, #2, #3, #4, #6, #7." in text


@given(st.text())
def test_what_is_shown_holds_no_control_character_and_is_short(text: str) -> None:
    result = shown(text)
    assert not {c for c in result if unicodedata.category(c) in {"Cc", "Cs"}} - {"\n", "\t"}
    assert len(result) <= SHOWN_CHARACTERS + len(" … (1,000,000 characters in all)")


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=SHOWN_CHARACTERS))
def test_plain_text_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == text
