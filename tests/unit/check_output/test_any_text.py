"""Whatever a pull request names things, every format stays what it is."""

from __future__ import annotations

import json
import unicodedata
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from kvplan.gate.result import LaunchResult
from kvplan.report.check.github import as_commands
from kvplan.report.check.gitlab import as_code_quality
from kvplan.report.check.json_document import as_json
from kvplan.report.check.junit import as_junit
from kvplan.report.check.markdown import as_comment
from kvplan.report.check.marker import Marker
from kvplan.report.check.safe import prose
from kvplan.report.check.sarif import as_sarif
from kvplan.report.check.text import as_text
from tests.unit.check_output.conftest import checked, finding, launch, numbers

# Lone surrogates too: git lists names that are no UTF-8.
ANYTHING = st.text(st.characters(exclude_categories=()), max_size=60)
MARKED = st.text(st.sampled_from("`*_[]()<>&|~$#@!\\/:.-+=\"'%,{}\n\r\t ax1"), max_size=40)


def acting(text: str) -> list[str]:
    """Controls, lone surrogates, line and paragraph separators."""
    return [char for char in text if unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"}]


@settings(deadline=None)
@given(st.one_of(ANYTHING, MARKED))
def test_every_format_stays_what_it_is(text: str) -> None:
    of = launch(text, model=text, name=text)
    item = LaunchResult(of, change="added", now=numbers(gpu=text), assumptions=(text,))
    answer = checked(
        item,
        findings=[finding(of, message=text, passes=text, seen=text, before=text, limit=text)],
        notes=[text],
    )
    assert len(as_commands(answer).splitlines()) == 1
    lines = as_text(answer).splitlines()
    assert len(lines) == 3  # the finding, the note, the count
    assert not [line for line in lines if line.strip().startswith("::")]
    assert not acting("".join(lines))
    document = as_json(answer)
    assert json.loads(document)["findings"][0]["rule"] == "KVP001"
    assert not acting(document.replace("\n", ""))
    json.loads(as_sarif(answer, tag="default", line_text=lambda _path, _line: text))
    (entry,) = json.loads(as_code_quality(answer))
    assert "\n" not in entry["description"]
    assert ET.fromstring(as_junit(answer)).get("failures") == "1"  # noqa: S314  our own output
    comment = as_comment(answer, Marker("default", 1))
    comment.encode()
    rows = [line for line in comment.splitlines() if line.startswith("| ")]
    assert len(rows) == 6
    assert all(line.replace("|  |", "| x |").count(" | ") == 4 for line in rows)


@settings(deadline=None)
@given(MARKED.filter(lambda text: bool(text.strip())))
def test_prose_is_shown_as_it_was_written(text: str) -> None:
    shown = (
        MarkdownIt("gfm-like", {"linkify": False, "html": True}).parseInline(f"x {prose(text)} x")[0].children
    )
    assert shown is not None
    assert {token.type for token in shown} == {"text"} | {
        token.type for token in shown if token.type == "text_special"
    }
    plain = "".join(token.content for token in shown).replace("\u200b", "")
    assert plain.split() == f"x {text} x".split()
