"""The comment on a pull request."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from kvplan.gate.result import Checked, LaunchResult
from kvplan.report.check.fitted import Section, fit
from kvplan.report.check.markdown import HOST_LIMIT, as_comment, as_summary
from kvplan.report.check.marker import Marker
from tests.unit.check_output.conftest import checked, finding, launch, numbers

MARKER = Marker("default", 1001)


def test_verdict_and_sentence_come_first_below_the_hidden_marker(broken: Checked) -> None:
    lines = as_comment(broken, MARKER).splitlines()
    assert lines[0] == "<!-- kvplan-check tag=default run=1001 -->"
    assert lines[1] == (
        "### kvplan check fails: 3 of 4 launches changed, 1 no longer starts, 1 will not start, 1 finding, "
        "1 waived, 1 not judged, 1 not readable"
    )


def test_only_launches_that_changed_have_a_table(broken: Checked) -> None:
    told, _, folded = as_comment(broken, MARKER).partition("<details>")
    assert "deploy/embed.yaml" not in told + folded
    assert (
        "**<code>deploy/chat.yaml:12</code>** · <code>meta-llama/Llama-3.1-8B-Instruct</code> · 1 x NVIDIA L4"
        " · vLLM 0.20.2 · **no longer starts**"
    ) in told
    rows = [line for line in told.splitlines() if line.startswith("| ")]
    limit = "at least 90 %, passes with <code>--max-model-len 30000</code>"
    assert rows[:7] == [
        "| rule | before | now | change | limit |",
        "| :-- | --: | --: | --: | :-- |",
        f"| KVP001 will-not-start | 100 % | 0 % start probability | new | {limit} |",
        "| starts | yes (100 %) | no (0 %) |  |  |",
        "| KV cache, tokens | 40,000 | 40,000 |  |  |",
        "| requests of max_model_len at once | 4 | 0 | -100 % |  |",
        "| max_model_len | 8,192 | 65,536 | +700 % |  |",
    ]


def test_waivers_are_shown_with_their_day_and_what_was_not_judged_with_its_reason(broken: Checked) -> None:
    text = as_comment(broken, MARKER)
    assert "waived until 2027-02-28 by ml-platform: the machine is replaced" in text
    assert "<summary>Waived (1)</summary>" in text
    assert "- <code>deploy/draft.yaml:7</code>: unknown value of max_num_seqs" in text
    assert "- <code>deploy/odd.yaml:2</code>: cannot parse this YAML document" in text
    assert "- <code>deploy/chat.yaml:12</code>: vLLM 0.20.2: no image tag or pin names one" in text


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        ({}, {"kv_tokens": 30_000}, "1 of 1 launch changed, 1 holds fewer tokens (-25 %)"),
        ({}, {"kv_tokens": 80_000}, "1 of 1 launch changed, 1 holds more tokens (+100 %)"),
        ({"starts": "no"}, {}, "1 of 1 launch changed, 1 starts again"),
        ({}, {}, "1 of 1 launch changed"),
    ],
)
def test_the_sentence_says_in_which_direction(
    before: dict[str, object], now: dict[str, object], sentence: str
) -> None:
    item = LaunchResult(launch(), change="changed", now=numbers(**now), before=numbers(**before))
    assert as_comment(checked(item), MARKER).splitlines()[1] == f"### kvplan check passes: {sentence}"


def test_a_flag_that_is_to_go_passes_without_it() -> None:
    item = LaunchResult(launch(), change="changed", now=numbers(), before=numbers())
    text = as_comment(
        checked(item, findings=[finding(item.launch, passes="without --enforce-eager")]), MARKER
    )
    assert text.count("passes <code>without --enforce-eager</code>") == 2


def test_two_launches_are_told_in_the_plural() -> None:
    items = [
        LaunchResult(launch(line=line), change="changed", now=numbers(starts="no"), before=numbers())
        for line in (1, 2)
    ]
    assert "2 of 2 launches changed, 2 no longer start" in as_comment(checked(*items), MARKER)


def test_nothing_is_posted_when_no_launch_changed_and_the_job_says_so() -> None:
    item = LaunchResult(launch(), change="unchanged", now=numbers(), before=numbers())
    old = finding(item.launch, status="unchanged")
    quiet = checked(item, old=[old])
    assert as_comment(quiet, MARKER) == ""
    assert as_summary(quiet).startswith("### kvplan check passes: 0 of 1 launch changed\n")


def test_a_policy_that_is_not_met_is_posted_although_no_launch_changed() -> None:
    item = LaunchResult(launch(), change="unchanged", not_judged="model unknown", must_be_judged=True)
    text = as_comment(checked(item), MARKER)
    assert "kvplan check could not judge" in text
    assert (
        "The policy asks that these can be judged:\n\n- <code>deploy/chat.yaml:12</code>: model unknown"
        in text
    )


def test_a_probability_that_is_not_certain_is_not_rounded_to_certainty() -> None:
    item = LaunchResult(
        launch(),
        change="changed",
        now=numbers(start_probability=0.998),
        before=numbers(starts="no", start_probability=0.001),
    )
    assert "| starts | no (< 1 %) | yes (> 99 %) |" in as_comment(checked(item), MARKER)


def test_no_figure_of_the_base_is_invented() -> None:
    item = LaunchResult(launch(), change="added", now=numbers())
    text = as_comment(checked(item), MARKER)
    assert "| KV cache, tokens | n/a | 40,000 |  |  |" in text
    assert "**new: starts**" in text


# The host's limit


@pytest.mark.parametrize("count", [300, 3000])
def test_a_long_comment_is_cut_in_the_middle_of_the_details_first_and_says_so(count: int) -> None:
    items = [
        LaunchResult(launch(f"deploy/{n:04}.yaml"), change="changed", now=numbers(), before=numbers())
        for n in range(20)
    ]
    stayed = launch("deploy/stayed.yaml")
    many = [finding(stayed, line=n + 1, message=f"finding {n} " + "x" * 150) for n in range(count)]
    text = as_comment(dataclasses.replace(checked(*items), old=many), MARKER)
    assert len(text) <= HOST_LIMIT
    left_out = int(re.findall(r"\*(\d+) left out: the host takes no longer comment\*", text)[0])
    folded = text.partition("<summary>The base has it too")[2]
    shown = [int(number) for number in re.findall(r"finding (\d+) x", folded)]
    assert len(shown) + left_out == count
    assert (shown[0], shown[-1]) == (0, count - 1)
    assert all(f"deploy/{n:04}.yaml" in text for n in range(20))
    assert text.count("<details>") == text.count("</details>")


def test_with_thousands_of_changed_launches_the_tables_are_cut_too() -> None:
    items = [
        LaunchResult(launch(f"deploy/{n:05}.yaml"), change="changed", now=numbers(), before=numbers())
        for n in range(3000)
    ]
    text = as_comment(checked(*items, findings=[finding(item.launch) for item in items]), MARKER)
    assert len(text) <= HOST_LIMIT
    assert text.startswith(f"{MARKER}\n### kvplan check fails: 3000 of 3000 launches changed")
    assert "launches left out: the host takes no longer comment" in text
    assert "deploy/00000.yaml" in text
    assert "deploy/02999.yaml" in text


def test_the_most_expendable_section_is_cut_first_and_what_must_stay_is_never_cut() -> None:
    sections = [
        Section(["head"]),
        Section(["a" * 40] * 5, expendable=1),
        Section(["b" * 40] * 5, expendable=2),
    ]
    text = fit(sections, 330)
    assert text.count("a" * 40) == 5
    assert text.count("b" * 40) == 1
    with pytest.raises(ValueError, match="may not be cut"):
        fit([Section(["x" * 100])], 50)


# Hostile text


class Seen(HTMLParser):
    """The elements and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: D102, ARG002  the interface
        self.tags.add(tag)


def test_hostile_names_bring_no_markup_no_links_no_mentions_and_no_secret(hostile: Checked) -> None:
    text = as_comment(hostile, MARKER)
    page = Seen()
    html = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(text)
    page.feed(html)
    assert page.tags == {
        "h3", "p", "strong", "em", "code", "table", "thead", "tbody", "tr", "th", "td", "details", "summary",
        "ul", "li", "sub",
    } - {"em"}  # fmt: skip
    assert "hf_abc" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"@\w", text), "a mention would notify people"
    assert not re.search(r"https?://", text)
    # Every row of every table still has its five cells.
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.count(" | ") for line in rows} == {4}


def test_no_value_of_a_variable_is_printed() -> None:
    item = LaunchResult(
        launch(env={"VLLM_USE_V1": "value-of-a-variable"}, flags={"api_key": "value-of-a-flag"}),
        change="added",
        now=numbers(),
    )
    assert "value-of" not in as_comment(checked(item, findings=[finding(item.launch)]), MARKER)
