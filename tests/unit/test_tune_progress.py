"""How a run is shown while it goes: a live view on a terminal, lines elsewhere."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from kvplan.config.serving import ServingConfig
from kvplan.report.tune_progress import LineWatcher, LiveWatcher, Standing, sparkline
from kvplan.tune.trial import LoadLevel, LoadResult, Trial, TrialSpec

if TYPE_CHECKING:
    import pytest

SETTINGS = ServingConfig(gpu_memory_utilization=0.645, max_num_seqs=16, kv_cache_dtype="auto", block_size=128)
SPEC = TrialSpec("boundary", SETTINGS, (), "does utilisation 0.645 start and survive the worst case")
LOAD = LoadResult(LoadLevel("target", 8), 0, 32, 0, output_throughput=1234.5)
DONE = Trial(3, SPEC, "ok", None, (LOAD,), wall_s=40.0)


def test_lines_say_what_is_tried_what_came_of_it_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = LineWatcher(Standing(expected_launches=7, expected_trial_s=50.0))
    watcher.trial_begins(3, SPEC)
    watcher.phase("phase weights")
    watcher.phase("waiting for the engine of pid 7 to end")
    watcher.load_ends(LOAD)
    watcher.trial_ends(DONE)
    # Six launches are still expected, at the 40 s of the one that finished.
    assert capsys.readouterr().err.splitlines() == [
        "[3/7] boundary: util 0.645, seqs 16, KV auto, block 128",
        "    waiting for the engine of pid 7 to end",
        "    target of 8 users: 1,234 output tokens/s",
        (
            "    ok in 40 s; best so far 1,234 output tokens/s, utilisation 0.645 survives; "
            "about 4 min 00 s left"
        ),
    ]


def test_the_live_view_shows_trial_phase_best_speed_and_time_left() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with LiveWatcher(Standing(expected_launches=7, expected_trial_s=50.0), console) as watcher:
        watcher.trial_begins(3, SPEC)
        watcher.phase("soak: 16 users")
        watcher.load_ends(LOAD)
    shown = screen.getvalue()
    for text in (
        "3 of about 7",
        "util 0.645, seqs 16, KV auto, block 128",
        "does utilisation 0.645 start and survive the worst case",
        "soak: 16 users",
        "1,234 output tokens/s",
        "█",
        "time left",
    ):
        assert text in shown


def test_a_sparkline_is_as_high_as_its_values() -> None:
    assert sparkline([0, 50, 100]) == "▁▄█"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
