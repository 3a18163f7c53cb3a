"""kill -9 of each process of real vLLM's tree at each phase: rows of docs/faults.md.

The short test is part of CI; the whole matrix and the soak are run by hand, and their output is committed.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final

import pytest

from kvplan.tune.journal import read_journal
from tests.bench.soak import PROBLEM, soak
from tests.faults import Phase, Role, Row, Tuner, came_of, kept, trial_lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHORT: Final[Mapping[int, tuple[Role, Phase]]] = {
    1: ("Worker", "loads"),
    2: ("API server", "start"),
    3: ("EngineCore", "stop"),
}
"""Two that are asked again and one that costs nothing."""
WHOLE: Final[Mapping[int, tuple[Role, Phase]]] = {
    1: ("guard", "stop"),
    2: ("guard", "start"),
    3: ("API server", "start"),
    4: ("API server", "stop"),
    5: ("EngineCore", "start"),
    6: ("Worker", "start"),
    7: ("EngineCore", "stop"),
    8: ("guard", "loads"),
    9: ("API server", "loads"),
    10: ("Worker", "stop"),
    11: ("EngineCore", "loads"),
    12: ("Worker", "loads"),
}


def run_with(folder: Path, kills: Mapping[int, tuple[Role, Phase]], utilizations: tuple[float, ...]) -> None:
    """One run of kvplan in which these are killed; each is a row."""
    tuner = Tuner(folder, [sys.executable, "-m", "kvplan"])
    points = [word for value in utilizations for word in ("--gpu-memory-utilization", f"{value:g}")]
    process = tuner.start(
        *("tune", *PROBLEM, *points, "--max-launches", f"{len(kills)}", "--runs-dir", str(tuner.runs))
    )
    errors: list[str] = []
    killer = threading.Thread(target=lambda: errors.extend(tuner.kill_as_planned(process.pid, kills)))
    killer.start()
    status = tuner.end(process, 1800)
    killer.join(60)
    run = next(tuner.runs.iterdir())
    lines, left = trial_lines(run), tuner.remains()
    assert errors == []
    assert len(lines) == len(kills)
    assert status == 1, tuner.said(process)  # the budget ends it before a confirmation
    for number, (role, phase) in kills.items():
        seen, evidence = came_of(run, number)
        again = ", asked again" if number < len(kills) else ""
        Row(
            f"kill -9 of {role}",
            phase,
            "real vLLM",
            expected="ok" if phase == "stop" else f"failed: unknown{again}",
            seen=seen,
            exit_code=str(status),
            left=len(left),
            kept=kept(lines[: number - 1], lines),
            evidence=evidence,
        ).check()
    assert read_journal(run).last("outcome") is not None


@pytest.mark.vllm_full
def test_killing_a_process_of_vllm_ends_its_own_trial_and_leaves_nothing(tmp_path: Path) -> None:
    run_with(tmp_path, SHORT, (0.6,))


@pytest.mark.vllm_full
def test_killing_each_process_at_each_phase_ends_its_own_trial_and_leaves_nothing(tmp_path: Path) -> None:
    run_with(tmp_path, WHOLE, (0.5, 0.55, 0.6, 0.65))


@pytest.mark.vllm_full
def test_ten_trials_with_random_kills_leave_nothing_and_kvplan_does_not_grow(tmp_path: Path) -> None:
    report = soak(tmp_path, seed=None)
    print(report.text)
    assert report.problems == []
