"""What goes wrong around a tuning run, and what comes of it: each test is a row of docs/faults.md.

`kvplan tune` is the real command line in a process of its own. vLLM is a scripted fake (three processes, real
memory, real HTTP); the kernel, the cgroup, the guard, the disk, the signals, and the Python side of NVML are
real. `python -m tests.bench.fault_table` runs this and writes the table.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from kvplan.engine.cgroup import MemoryCgroup
from kvplan.engine.log_file import MAX_BYTES
from kvplan.errors import KvplanError
from kvplan.tune.execute import wait_for_memory
from kvplan.tune.journal import FILE_NAME, read_journal
from kvplan.units import GIB, MIB
from tests.fault_runs import (
    NUMBERED,
    PROBLEM,
    TESTS,
    Copied,
    LongRun,
    grid,
    tuner_in,
)
from tests.faults import (
    Phase,
    Row,
    came_of,
    kept,
    numbers_of,
    trial_lines,
    wait_for,
)
from tests.tiny_model import make_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module", autouse=True)
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LongRun]:
    run = LongRun(tmp_path_factory.mktemp("long"))
    yield run
    for process in run.tuner.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


# Faults that end kvplan itself, each on a copy of a run with two finished trials.


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two finished trials of four, stopped by its budget."""
    tuner = tuner_in(tmp_path_factory.mktemp("begun"))
    model = make_model(tuner.folder / "model")
    process = tuner.start(
        "tune",
        *("--model", str(model), *PROBLEM, *grid(0.3, 0.4), "--max-launches", "2"),
        *("--runs-dir", str(tuner.runs)),
    )
    assert tuner.end(process) == 1, tuner.said(process)
    run = next(tuner.runs.iterdir())
    assert numbers_of(trial_lines(run)) == [1, 2]
    return run


@pytest.fixture
def copied(begun: Path, tmp_path: Path) -> Iterator[Copied]:
    tuner = tuner_in(tmp_path)
    shutil.copytree(begun, tuner.runs / begun.name)
    yield Copied(tuner, tuner.runs / begun.name)
    for process in tuner.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_kill_9_of_kvplan_at_any_phase_leaves_nothing_and_resuming_repeats_nothing(copied: Copied) -> None:
    tuner = copied.tuner
    scripts: dict[Phase, dict[str, Any]] = {
        "start": {"start_s": 3},
        "loads": {"itl_ms": 30},
        "stop": {"mood": "ignores_sigterm"},
    }
    rows = []
    for phase, script in scripts.items():
        finished = trial_lines(copied.run)
        number = len(finished) + 1
        process = copied.resume(plan={number: script})
        copied.at(number, phase)
        status = tuner.kill(process)
        left = tuner.gone()
        rows.append((phase, status, left, kept(finished, trial_lines(copied.run)), len(finished)))
        if phase == "loads":  # the next kill is of another trial
            assert len(trial_lines(copied.run)) == number - 1
    status = copied.resumed_to_the_end()
    kept(copied.before, trial_lines(copied.run))
    for phase, killed, left, kept_text, _ in rows:
        Row(
            "kill -9 of kvplan",
            phase,
            "scripted",
            expected="gone within 10 s; resume repeats nothing and finishes",
            seen="gone within 10 s; resume repeats nothing and finishes" if not left else "; ".join(left),
            exit_code=f"{killed}, then {status}",
            left=len(left),
            kept=kept_text,
        ).check()


@pytest.mark.parametrize("phase", ["start", "loads"])
def test_ctrl_c_twice_stops_all_before_kvplan_ends(copied: Copied, phase: Phase) -> None:
    tuner = copied.tuner
    process = copied.resume(plan={3: {"mood": "ignores_sigterm", "itl_ms": 30, "start_s": 1.5}})
    copied.at(3, phase)
    wait_for(lambda: tuner.role(process.pid, "Worker") is not None, "vLLM")
    process.send_signal(signal.SIGINT)
    # The second one comes while vLLM is being ended (a start is ended at once, without grace).
    wait_for(lambda: tuner.has_come_to(copied.run, 3, "stop") or process.poll() is not None, "the stop")
    process.send_signal(signal.SIGINT)
    status = tuner.end(process)
    left = tuner.remains()
    outcome = read_journal(copied.run).last("outcome")
    said = tuner.said(process)
    seen = "interrupted; all gone when kvplan ends"
    if outcome is None or outcome["finished"] or "Traceback" in said:
        seen = said
    Row(
        "SIGINT twice",
        phase,
        "scripted",
        expected="interrupted; all gone when kvplan ends",
        seen=seen,
        exit_code=str(status),
        left=len(left),
        kept=kept(copied.before, trial_lines(copied.run)),
        evidence=next((line for line in said.splitlines() if "interrupted" in line), said),
    ).check()
    assert status == 130
    assert f"kvplan tune --resume {copied.run}" in said or "interrupted" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_stops_all_and_writes_the_outcome_so_far(copied: Copied, number: signal.Signals) -> None:
    tuner = copied.tuner
    process = copied.resume(plan={3: {"itl_ms": 30}})
    copied.at(3, "loads")
    process.send_signal(number)
    status = tuner.end(process)
    left = tuner.remains()
    outcome = read_journal(copied.run).last("outcome")
    said = tuner.said(process)
    stopped = "" if outcome is None else outcome["recommendation"]["stopped"] or ""
    Row(
        f"{number.name} to kvplan",
        "loads",
        "scripted",
        expected="interrupted; the outcome so far is written",
        seen="interrupted; the outcome so far is written" if "interrupted" in stopped else said,
        exit_code=str(status),
        left=len(left),
        kept=kept(copied.before, trial_lines(copied.run)),
        evidence=stopped,
    ).check()
    assert status == 130
    assert f"kvplan tune --resume {copied.run}" in said


def test_a_second_tuner_is_refused_on_the_run_and_waits_for_the_device_until_its_owner_is_dead(
    copied: Copied, begun: Path
) -> None:
    tuner = copied.tuner
    first = copied.resume(plan={3: {"itl_ms": 60, "mood": "ignores_sigterm"}})
    copied.at(3, "loads")
    second = copied.resume()
    second_status = tuner.end(second)
    Row(
        "second tuner on the same run",
        "loads",
        "scripted",
        expected="refused, with the owner's pid",
        seen=(
            "refused, with the owner's pid"
            if f"is being tuned by process {first.pid}" in tuner.said(second)
            else tuner.said(second)
        ),
        exit_code=str(second_status),
        left=0,
        kept=kept(copied.before, trial_lines(copied.run)),
        evidence=tuner.said(second).strip(),
    ).check()
    assert second_status == 2
    assert first.poll() is None

    other = Copied(tuner, shutil.copytree(begun, tuner.runs / "other"))
    third = other.resume()
    wait_for(lambda: "waiting for the engine of pid" in tuner.said(third), "the third to wait")
    assert len(trial_lines(other.run)) == 2
    guard = tuner.role(first.pid, "guard")
    assert guard is not None
    # The guard notes new processes twice a second; with both dead only its notes are left.
    os.kill(guard.pid, signal.SIGKILL)
    killed = tuner.kill(first)
    third_status = tuner.end(third)
    left = tuner.remains()
    said = tuner.said(third)
    seen = "waits; ends what the dead owner left, then goes on"
    Row(
        "second tuner on the device; kvplan and guard of the first killed",
        "loads",
        "scripted",
        expected=seen,
        seen=seen if "that a killed launch had left" in said else said,
        exit_code=f"{killed}; {third_status}",
        left=len(left),
        kept=kept(other.before, trial_lines(other.run)),
        evidence=next(line.strip() for line in said.splitlines() if "waiting for" in line),
    ).check()
    assert third_status == 0


def test_a_full_disk_ends_the_run_with_the_way_on_and_loses_nothing(begun: Path, tmp_path: Path) -> None:
    tuner = tuner_in(tmp_path)
    mount, umount = shutil.which("mount") or "mount", shutil.which("umount") or "umount"
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tuner.runs)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a file system can only be mounted by root")
    try:
        copied = Copied(tuner, shutil.copytree(begun, tuner.runs / begun.name))
        process = copied.resume(plan={3: {"mood": "floods_log", "itl_ms": 8}})
        status = tuner.end(process)
        left = tuner.remains()
        said = tuner.said(process).strip().splitlines()[-1]
        for number in (3, 4):
            shutil.rmtree(copied.run / "trials" / f"{number}", ignore_errors=True)
        again = copied.resumed_to_the_end()
        says_it = "No space left on device" in said and f"kvplan tune --resume {copied.run}" in said
        Row(
            "disk full (a real file system of 2 MiB)",
            "loads",
            "scripted",
            expected="ends with one line that says how to go on; resume finishes",
            seen="ends with one line that says how to go on; resume finishes" if says_it else said,
            exit_code=f"{status}, then {again}",
            left=len(left),
            kept=kept(copied.before, trial_lines(copied.run)),
            evidence=said,
        ).check()
        assert status == 2
    finally:
        subprocess.run([umount, "--lazy", str(tuner.runs)], check=True)


def test_a_torn_journal_on_another_machine_goes_on_where_its_model_lies_and_mixes_nothing(
    copied: Copied, tmp_path: Path
) -> None:
    tuner, run = copied.tuner, copied.run
    lines = (run / FILE_NAME).read_bytes().splitlines(keepends=True)
    last = next(index for index in reversed(range(len(lines))) if b'"kind":"trial"' in lines[index])
    (run / FILE_NAME).write_bytes(b"".join(lines[:last]) + lines[last][:77])
    elsewhere = make_model(tmp_path / "elsewhere" / "model")
    refused = copied.resume("--model", str(elsewhere), "--target-concurrency", "8")
    refused_status = tuner.end(refused)
    assert refused_status == 2
    Row(
        "a run is resumed with other settings",
        "resume",
        "scripted",
        expected="refused, with the difference",
        seen=(
            "refused, with the difference"
            if "problem.target_concurrency: 4 in the run, 8 now" in tuner.said(refused)
            else tuner.said(refused)
        ),
        exit_code=str(refused_status),
        left=0,
        kept=kept(copied.before[:1], trial_lines(run)),
        evidence=tuner.said(refused).strip(),
    ).check()

    process = copied.resume("--model", str(elsewhere))
    status = tuner.end(process)
    after = trial_lines(run)
    commands = [(run / "trials" / f"{n}" / "command.txt").read_text() for n in numbers_of(after)[1:]]
    seen = "the torn trial is repeated, no other; vLLM gets the model from where it is now"
    repeated = numbers_of(after) == [1, 2, 3, 4] and after[1]["key"] == copied.before[1]["key"]
    Row(
        "torn journal, copied to another machine (model in another folder)",
        "resume",
        "scripted",
        expected=seen,
        seen=seen if repeated and all(str(elsewhere) in text for text in commands) else tuner.said(process),
        exit_code=str(status),
        left=len(tuner.remains()),
        kept=kept(copied.before[:1], after),
    ).check()
    assert status == 0


def test_three_unexplained_failures_in_a_row_end_the_run_with_what_was_learnt(copied: Copied) -> None:
    plan = {3: {"mood": "answers_500"}, 4: {"mood": "dies_on_request"}, 5: {"mood": "answers_500"}}
    process = copied.resume(plan=plan)
    out, _ = process.communicate(timeout=60)
    report = json.loads(out)
    stopped = report["recommendation"]["stopped"] or ""
    seen = "stops after the third, with what was learnt"
    learnt = stopped.startswith("3 unexplained failures in a row") and report["recommendation"]["settings"]
    Row(
        "three unexplained failures in a row",
        "loads",
        "scripted",
        expected=seen,
        seen=seen if learnt and len(report["trials"]) == 5 else stopped,
        exit_code=str(process.returncode),
        left=len(copied.tuner.remains()),
        kept=kept(copied.before, trial_lines(copied.run)),
        evidence=stopped,
    ).check()


def compiled(source: str, library: Path) -> str:
    """A shared library of a C file beside the fake."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is here")
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(TESTS / source), "-ldl"]
    subprocess.run(command, check=True)
    return str(library)


def test_a_clock_that_jumps_changes_no_duration_and_ends_no_budget(copied: Copied, tmp_path: Path) -> None:
    library = compiled("fake_clock.c", tmp_path / "libclock.so")
    offset = tmp_path / "offset"
    offset.write_text("0")
    process = copied.resume(plan={}, LD_PRELOAD=library, FAKE_CLOCK=str(offset))
    copied.at(3, "loads")
    offset.write_text("-86400")
    copied.at(4, "loads")
    offset.write_text("172800")
    status = copied.tuner.end(process)
    lines = trial_lines(copied.run)
    seen = "durations and budget unmoved"
    sane = all(0 < line["trial"]["wall_s"] < 60 for line in lines) and all(
        0 < load["duration_s"] < 60 for line in lines for load in line["trial"]["loads"]
    )
    days = {line["at"][:10] for line in lines}
    assert len(days) > 1, "the clock did not jump"
    Row(
        "the clock jumps a day back, then three days ahead",
        "loads",
        "scripted",
        expected=seen,
        seen=seen if sane else str([line["trial"]["wall_s"] for line in lines]),
        exit_code=str(status),
        left=len(copied.tuner.remains()),
        kept=kept(copied.before, lines),
        evidence=f"trials dated {', '.join(sorted(days))}",
    ).check()
    assert status == 0


GPU_LOG: Final = """\
(EngineCore pid=2) INFO 11-29 15:05:46 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x
(Worker pid=3) INFO 11-29 15:06:01 [gpu_worker.py:462] Available KV cache memory: 18.50 GiB
(EngineCore pid=2) INFO 11-29 15:06:01 [kv_cache_utils.py:2327] GPU KV cache size: 9,699,328 tokens
INFO:     Application startup complete.
"""


def test_memory_is_waited_for_and_a_gpu_that_disappears_is_named_and_ends_the_run(tmp_path: Path) -> None:
    compiled("fake_nvml.c", tmp_path / "libnvidia-ml.so.1")
    card, log = tmp_path / "card", tmp_path / "gpu.log"
    card.write_text("500")
    log.write_text(GPU_LOG)
    tuner = tuner_in(tmp_path)
    slow = {"log": str(log), "itl_ms": 60}
    process = tuner.start(
        *(
            "tune",
            "--model",
            str(make_model(tmp_path / "model")),
            "--device",
            "cuda",
            "--target-concurrency",
            "4",
        ),
        *("--input-len", "32", "--output-len", "4", "--kv-cache-dtype", "auto", "--block-size", "16"),
        *("--max-num-seqs", "4", "--strategy", "grid", *grid(0.5, 0.6), "--runs-dir", str(tuner.runs)),
        LD_LIBRARY_PATH=str(tmp_path),
        FAKE_NVML=str(card),
        FAKE_PLAN=json.dumps({"1": {"log": str(log)}, "2": slow, "3": slow}),
    )
    wait_for(lambda: any(tuner.runs.iterdir()) or process.poll() is not None, "the run")
    assert process.poll() is None, tuner.said(process)
    run = next(tuner.runs.iterdir())

    def at(number: int, phase: Phase) -> None:
        wait_for(lambda: tuner.has_come_to(run, number, phase), f"trial {number} to {phase}")

    at(1, "loads")
    card.write_text("12000")
    at(1, "stop")
    wait_for(lambda: tuner.role(process.pid, "guard") is None, "vLLM's end")
    held_s = 0.7
    with pytest.raises(AssertionError):
        wait_for((run / "trials" / "2").exists, "the next launch", held_s)
    card.write_text("510")
    at(2, "loads")
    before = trial_lines(run)
    Row(
        "the driver gives memory back late",
        "stop",
        "scripted",
        expected="the next launch waits",
        seen="the next launch waits" if numbers_of(before) == [1] else str(numbers_of(before)),
        exit_code="-",
        left=0,
        kept=kept(before[:1], before),
    ).check()
    card.write_text("lost")
    status = tuner.end(process)
    said = tuner.said(process).strip().splitlines()[-1]
    lost = read_journal(run).trials[1]
    evidence = lost.evidence or ""
    seen = "the trial fails, the run ends and says so"
    named = "the GPU does not answer any more" in evidence and "the GPU does not answer any more" in said
    Row(
        "the GPU disappears (NVML: GPU is lost)",
        "loads",
        "scripted",
        expected=seen,
        seen=seen
        if named and (lost.status, lost.failure) == ("failed", "unknown")
        else f"{said} / {evidence}",
        exit_code=str(status),
        left=len(tuner.gone()),
        kept=kept(before, trial_lines(run)),
        evidence=said,
    ).check()
    assert status == 2


# The rows of the long run, which has gone on meanwhile.


@pytest.mark.parametrize("number", NUMBERED, ids=[f"{f.name} ({f.phase})" for f in NUMBERED.values()])
def test_a_fault_ends_no_more_than_its_own_trial(long_run: LongRun, number: int) -> None:
    run, fault = long_run.ended(), NUMBERED[number]
    assert run.errors == []
    # A setting is confirmed, and is not called met: the faults' own memory failures lie below it.
    assert run.exit_code == 1, run.tuner.said(run.tuner.started[0])
    if fault.expected.startswith("infeasible: killed"):
        if (cgroup := MemoryCgroup.create(256 * MIB)) is None:
            pytest.skip("no memory cgroup can be made here")
        cgroup.remove()
    seen, evidence = came_of(run.run, number)
    lines = trial_lines(run.run)
    if fault.name == "log flood":
        evidence = size_of_flood(run.run / "trials" / str(number) / "vllm.log")
    Row(
        fault.name,
        fault.phase,
        "scripted",
        expected=fault.expected,
        seen=seen,
        exit_code=str(run.exit_code),
        left=len(run.tuner.remains()),
        kept=kept(lines[: number - 1], lines),
        evidence=evidence,
    ).check()


def test_the_long_run_ends_with_a_confirmed_setting_and_nothing_left(long_run: LongRun) -> None:
    run = long_run.ended()
    contents = read_journal(run.run)
    outcome = contents.last("outcome")
    assert outcome is not None
    assert outcome["finished"]
    assert outcome["recommendation"]["is_confirmed"]
    # 0.3 is where the kernel's OOM kill was made; which of the points above it is fastest differs.
    (reason,) = outcome["recommendation"]["reasons"]
    assert reason.startswith("the same settings ran out of memory at utilisation 0.3, not above 0.3")
    assert len(contents.trials) == len(NUMBERED) + 1  # every fault, and the confirmation
    assert run.tuner.remains() == []


def size_of_flood(log: Path) -> str:
    """How much was written, and how much of it takes room."""
    dropped = re.search(rb"(\d+) bytes of the log were dropped here", log.read_bytes())
    kept_bytes = log.stat().st_size
    assert dropped is not None
    assert kept_bytes < MAX_BYTES
    written = int(dropped[1]) + kept_bytes
    assert written > MAX_BYTES
    return f"{written / GIB:.2f} GiB were written, {kept_bytes / MIB:.0f} MiB are kept"


def test_the_page_has_every_fault_of_the_long_run() -> None:
    page = (TESTS.parent / "docs" / "faults.md").read_text()
    missing = [
        f for f in NUMBERED.values() if f"| {f.name} | {f.phase} | scripted | {f.expected} |" not in page
    ]
    assert missing == []


def test_on_cpu_the_machines_memory_is_waited_for_before_a_launch() -> None:
    wait_for_memory(MIB, 0.0)
    with pytest.raises(KvplanError, match="of memory available, the card is to be"):
        wait_for_memory(1 << 50, 0.6)
