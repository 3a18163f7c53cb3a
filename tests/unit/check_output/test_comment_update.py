"""One comment a gate: found, updated in place, never overwritten by an older run."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.report.check.marker import Marker, new_marker, read_marker
from kvplan.report.check.post import BOT, decide

BODY = "<!-- kvplan-check tag=default run=1001 -->\n### kvplan check fails: 1 of 1 launch changed\n"
MARKER = Marker("default", 1001)


def comment(body: str, number: int = 7, author: str = BOT) -> dict[str, Any]:
    return {"id": number, "body": body, "user": {"login": author}}


def test_the_first_comment_is_created() -> None:
    step = decide([comment("Nice work!")], BODY, MARKER, BOT)
    assert (step.kind, step.body) == ("create", BODY)


def test_the_gate_s_own_comment_is_updated_in_place() -> None:
    older = BODY.replace("run=1001", "run=900").replace("fails", "passes")
    step = decide([comment("Nice work!", 1), comment(older, 2)], BODY, MARKER, BOT)
    assert (step.kind, step.comment, step.body) == ("update", 2, BODY)


def test_the_same_text_is_not_written_again_whatever_the_run_and_the_line_ends() -> None:
    there = BODY.replace("run=1001", "run=900").replace("\n", "\r\n")
    assert decide([comment(there)], BODY, MARKER, BOT).kind == "nothing"


def test_a_late_run_does_not_overwrite_a_newer_one() -> None:
    newer = BODY.replace("run=1001", "run=1002").replace("fails", "passes")
    step = decide([comment(newer)], BODY, MARKER, BOT)
    assert (step.kind, step.reason) == ("nothing", "run 1002 is newer")
    assert decide([comment(newer)], "", MARKER, BOT).kind == "nothing"


def test_another_attempt_of_the_same_run_may_overwrite() -> None:
    there = BODY.replace("fails", "passes")
    assert decide([comment(there)], BODY, MARKER, BOT).kind == "update"


def test_several_gates_keep_their_own_comments() -> None:
    other = BODY.replace("tag=default", "tag=staging")
    assert decide([comment(other)], BODY, MARKER, BOT).kind == "create"


def test_a_marker_in_somebody_else_s_comment_means_nothing() -> None:
    forged = BODY.replace("run=1001", "run=99999999")
    assert decide([comment(forged, author="mallory")], BODY, MARKER, BOT).kind == "create"


def test_nothing_to_say_posts_nothing() -> None:
    assert decide([], "", MARKER, BOT).kind == "nothing"


def test_an_alarm_that_is_over_is_taken_back() -> None:
    step = decide([comment(BODY.replace("run=1001", "run=900"))], "", MARKER, BOT)
    assert step.kind == "update"
    assert step.body == f"{MARKER}\n### kvplan check passes: no launch changed any more\n"
    again = decide([comment(step.body)], "", MARKER, BOT)
    assert again.kind == "nothing"


def test_the_number_of_the_run_is_the_host_s() -> None:
    assert new_marker("a", {"GITHUB_RUN_ID": "16253449277"}) == Marker("a", 16253449277)
    assert new_marker("a", {"CI_PIPELINE_ID": "77"}) == Marker("a", 77)
    # 2026-01-01, in seconds since 1970.
    assert new_marker("a", {"GITHUB_RUN_ID": "no"}).run > 1_767_225_600


def test_a_marker_is_read_back_and_only_from_the_first_line() -> None:
    assert read_marker(str(MARKER) + "\r\ntext") == MARKER
    assert read_marker(f"text\n{MARKER}") is None
    assert read_marker("") is None


@pytest.mark.parametrize("tag", ["", "a b", "x" * 65, "a-->", "é\n"])
def test_a_tag_that_a_marker_cannot_hold_is_refused(tag: str) -> None:
    with pytest.raises(InputError, match="--tag"):
        new_marker(tag, {})
