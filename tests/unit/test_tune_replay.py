"""A run's outcome from its journal alone: of an older kvplan, and of a run that is at its end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.report.tune import TuneReport
from kvplan.tune.journal import FILE_NAME, JournalContents, read_journal
from kvplan.tune.problem import Budget
from kvplan.tune.recommend import Recommendation
from kvplan.tune.replay import nothing_left

RUN = Path(__file__).parents[1] / "data" / "runs" / "demo-cpu"
LINES = [json.loads(line) for line in (RUN / FILE_NAME).read_text().splitlines()]
OUTCOME = LINES[-1]
NEEDED = {"met", "is_confirmed", "launch_noise"}
"""Without these there is no answer; every other key may be younger than the journal."""


def rewritten(folder: Path, *lines: dict[str, Any]) -> JournalContents:
    (folder / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_journal(folder)


def without(key: str) -> dict[str, Any]:
    kept = {name: value for name, value in OUTCOME["recommendation"].items() if name != key}
    return {**OUTCOME, "recommendation": kept}


@pytest.mark.parametrize("key", [field.name for field in dataclasses.fields(Recommendation)])
def test_a_journal_from_before_a_key_was_added_still_renders(key: str, tmp_path: Path) -> None:
    contents = rewritten(tmp_path, *LINES[:-1], without(key))
    if key in NEEDED:
        with pytest.raises(InputError, match=f"{key}: field required"):
            TuneReport.of(contents)
        return
    report = TuneReport.of(contents)
    assert not getattr(report.recommendation, key)
    for output_format in ("text", "markdown", "json"):
        assert report.render(output_format)


@pytest.mark.parametrize("part", ["measured", "boundary_survived", "boundary_failed", "low_end"])
def test_so_it_does_where_the_key_is_of_a_part_of_the_answer(part: str, tmp_path: Path) -> None:
    whole = OUTCOME["recommendation"][part]
    for key in (name for name, value in whole.items() if value is None or isinstance(value, (list, str))):
        fewer = {name: value for name, value in whole.items() if name != key}
        outcome = {**OUTCOME, "recommendation": OUTCOME["recommendation"] | {part: fewer}}
        if key == "kind":
            continue
        assert TuneReport.of(rewritten(tmp_path, *LINES[:-1], outcome)).render("text")


def test_a_key_of_a_newer_kvplan_is_ignored(tmp_path: Path) -> None:
    newer = {**OUTCOME, "recommendation": OUTCOME["recommendation"] | {"added_later": {"a": 1}}}
    there, here = (TuneReport.of(read_journal(RUN)), TuneReport.of(rewritten(tmp_path, *LINES[:-1], newer)))
    assert here.recommendation == there.recommendation


def stopped_after(trials: int, why: str, folder: Path) -> JournalContents:
    """The journal as if the run had ended, for a reason, after so many trials."""
    last = next(n for n, line in enumerate(LINES) if line.get("trial", {}).get("number") == trials)
    ended = OUTCOME["recommendation"] | {"stopped": why, "met": False}
    outcome = {**OUTCOME, "seq": last + 1, "recommendation": ended}
    return rewritten(folder, *LINES[: last + 1], outcome)


def test_a_finished_run_has_nothing_left_whatever_the_budget() -> None:
    contents = read_journal(RUN)
    said = f"run {contents.run_id} is finished; nothing is left to launch"
    assert nothing_left(contents, Budget(14, 60)) == said
    assert nothing_left(contents, Budget(100, 600)) == said


def test_a_run_that_used_up_its_launches_goes_on_with_more_only(tmp_path: Path) -> None:
    contents = stopped_after(1, "the budget of 1 launches is used up", tmp_path)
    assert nothing_left(contents, Budget(1, 60)) == (
        f"run {contents.run_id} is finished: the budget of 1 launches is used up"
    )
    assert nothing_left(contents, Budget(14, 60)) is None


def test_a_run_that_used_up_its_minutes_goes_on_with_more_only(tmp_path: Path) -> None:
    # The first four trials took 69.7 + 67.0 + 88.4 + 66.1 = 291 s.
    contents = stopped_after(4, "the budget of minutes is used up", tmp_path)
    assert nothing_left(contents, Budget(14, 4)) is not None
    assert nothing_left(contents, Budget(14, 5)) is None


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    interrupted = {**OUTCOME, "finished": False}
    assert nothing_left(rewritten(tmp_path, *LINES[:-1], interrupted), Budget(14, 60)) is None
    assert nothing_left(rewritten(tmp_path, *LINES[:-1]), Budget(14, 60)) is None
