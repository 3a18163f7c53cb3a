"""The examples in docs are what the committed journals of real runs say, to the letter.

`--update-golden` rewrites them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.report.runs import special_report_of
from kvplan.tune.journal import read_journal
from kvplan.tune.running_server import points_of

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "data" / "runs"
EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.parametrize(
    ("run", "example"), [("server-cpu", "tune-url.txt"), ("ladder-cpu", "ladder-demo.txt")]
)
def test_the_example_is_what_the_journal_says(run: str, example: str, pytestconfig: pytest.Config) -> None:
    report = special_report_of(read_journal(RUNS / run))
    assert report is not None
    path = EXAMPLES / example
    command, _, printed = path.read_text().partition("\n")
    rendered = report.render("text") + "\n"
    if pytestconfig.getoption("--update-golden"):
        path.write_text(f"{command}\n{rendered}")
        printed = rendered
    assert command.startswith("$ kvplan tune ")
    assert printed == rendered
    assert all(
        len(line) <= 100
        for line in rendered.splitlines()
        if "vllm serve" not in line and "vllm.entrypoints" not in line
    )


def test_real_vllm_kept_as_many_as_its_blocks_hold() -> None:
    # 65 blocks of 128 tokens, one of them the null block; 320 tokens need 3: 64 // 3 = 21.
    waited = {point.users: point.waited_for_memory for point in points_of(read_journal(RUNS / "server-cpu"))}

    assert waited[21] is False
    assert waited[23] is True
