"""`kvplan tune` on real vLLM: a short run, kill -9 in the middle of a start, and (by hand) the whole demo."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvplan.engine.process_tree import SHM_DIR, all_processes, shared_memory_of
from kvplan.tune.journal import read_journal

SHORT = ("--kv-cache-dtype", "auto", "--block-size", "128", "--tolerance", "0.1")
"""No other knobs and a wide bracket: the probe, two launches of the boundary, the confirmation."""


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "kvplan", "tune", *argv]


def tuned(folder: Path, *argv: str) -> dict[str, Any]:
    done = subprocess.run(
        command(*argv, "--runs-dir", str(folder), "--format", "json"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def of_run(folder: Path) -> list[int]:
    """Processes of launches whose log lies in this folder: they carry it in an open file."""
    found = []
    for pid in all_processes():
        try:
            targets = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        if any(target.startswith(str(folder)) for target in targets):
            found.append(pid)
    return found


@pytest.mark.vllm
def test_a_short_run_finds_the_kernels_boundary_and_recommends_below_it(tmp_path: Path) -> None:
    report = tuned(tmp_path, "--demo", *SHORT, "--max-launches", "4")
    answer = report["recommendation"]
    assert report["memory_limit"] == "cgroup"
    assert [trial["spec"]["phase"] for trial in report["trials"]] == [
        "probe",
        "boundary",
        "boundary",
        "confirm",
    ]
    assert answer["met"]
    assert answer["is_confirmed"]
    assert answer["boundary_failed"]["failure"] == "killed"
    assert answer["boundary_failed"]["oom_kill_count"] >= 1
    low = answer["boundary_survived"]["gpu_memory_utilization"]
    # 0.1 is the tolerance; 0.685 - 0.585 is a hair more in floating point
    assert 0 < answer["boundary_failed"]["gpu_memory_utilization"] - low <= 0.1 + 1e-9
    # KV tokens are vLLM's own to the last one, from the arithmetic.
    kv = next(p for p in answer["predictions"] if p["name"] == "KV cache")
    assert kv["predicted"] == kv["measured"]
    assert answer["measured"]["failed"] == 0
    assert answer["measured"]["output_throughput"] > 0


@pytest.mark.vllm_full  # kills of kvplan on real vLLM are in test_engine_real.py too
def test_kill_9_within_a_start_leaves_nothing_and_resume_finishes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    process = subprocess.Popen(
        command("--demo", *SHORT, "--max-launches", "1", "--runs-dir", str(runs)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 900
        # The log appears when vLLM is started: before that it waits for the device.
        while not list(runs.glob("*/trials/1/vllm.log")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        moment_s = random.uniform(3, 14)
        time.sleep(moment_s)
        segments = shared_memory_of(of_run(runs))
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 10
    while (left := of_run(runs)) or any((SHM_DIR / name).exists() for name in segments):
        assert time.monotonic() < deadline, f"killed after {moment_s:.1f} s: {left}, {segments}"
        time.sleep(0.2)

    done = subprocess.run(
        command("--resume", "last", "--runs-dir", str(runs)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr  # one launch confirms nothing
    contents = read_journal(next(runs.iterdir()))
    assert [trial.status for trial in contents.trials] == ["ok"]


@pytest.mark.vllm_full
def test_the_demo_ends_in_time_with_both_ends_of_the_boundary(tmp_path: Path) -> None:
    began = time.monotonic()
    report = tuned(tmp_path, "--demo")
    answer = report["recommendation"]
    assert answer["met"]
    assert answer["boundary_failed"]["failure"] == "killed"
    assert answer["boundary_failed"]["oom_kill_count"] >= 1
    assert answer["boundary_survived"] is not None
    assert answer["low_end"]["failure"] == "kv_too_small"
    assert {effect["knob"] for effect in answer["effects"]} >= {"kv_cache_dtype", "block_size"}
    # Alone on two cores; time spent waiting for another engine on the device is not the demo's.
    assert time.monotonic() - began < 12 * 60


@pytest.mark.vllm_full
def test_three_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    """Once within the first 15 s of a start, twice anywhere; each time nothing is left within 10 s."""
    argv: tuple[str, ...] = ("--demo", *SHORT, "--max-launches", "4")
    finished_before, runs = 0, tmp_path / "runs"
    for moment_s in (random.uniform(3, 14), random.uniform(10, 40), random.uniform(10, 40)):
        process = subprocess.Popen(
            command(*argv, "--runs-dir", str(runs)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        logs = len(list(runs.glob("*/trials/*/vllm.log")))
        while len(list(runs.glob("*/trials/*/vllm.log"))) == logs and process.poll() is None:
            time.sleep(0.1)
        time.sleep(moment_s)
        segments = shared_memory_of(of_run(runs))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        began = time.monotonic()
        while (left := of_run(runs)) or any((SHM_DIR / name).exists() for name in segments):
            assert time.monotonic() < began + 10, f"killed after {moment_s:.1f} s: {left}, {segments}"
            time.sleep(0.2)
        trials = read_journal(next(runs.iterdir())).trials
        finished = [trial.number for trial in trials if trial.status != "failed"]
        assert len(finished) >= finished_before
        gone_s = time.monotonic() - began
        print(f"killed {moment_s:.1f} s into a launch; gone {gone_s:.1f} s later; kept trials {finished}")
        argv, finished_before = ("--resume", "last"), len(finished)
    report = tuned(runs, "--resume", "last")
    numbers = [trial["number"] for trial in report["trials"]]
    print(f"resumed and finished: trials {numbers}, {report['recommendation']['met']=}")
    assert set(finished) <= set(numbers)
    assert report["recommendation"]["is_confirmed"]
