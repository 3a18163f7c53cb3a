"""Whole runs in a process of their own: real cgroup, kernel, guard, load and journal; vLLM is the fake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.engine.lock import device_lock
from kvplan.report.tune import TuneReport
from kvplan.tune.journal import FILE_NAME, JournalContents, read_journal
from tests.tiny_model import make_model

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]


class Tuner:
    """Starts runs; what it leaves behind is looked at afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.model = make_model(folder / "model")
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *resume: str, **env: str) -> subprocess.Popen[str]:
        """A run of its own process group, so that a test's signal reaches it alone."""
        command = [sys.executable, str(TESTS / "tune_with_fake.py"), str(self.model), str(self.runs), *resume]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "KVPLAN_LOCK_DIR": str(self.folder), **env}
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def finish(self, *resume: str, **env: str) -> tuple[JournalContents, str]:
        """A run to its end: its journal, and what it said."""
        process = self.start(*resume, **env)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        return read_journal(Path(out.strip())), err

    def journal(self) -> list[dict[str, Any]]:
        """The lines of the only run so far; a torn last one left out."""
        lines: list[dict[str, Any]] = []
        for path in self.runs.glob(f"*/{FILE_NAME}"):
            lines += [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return lines

    def wait_for(self, kind: str, count: int) -> None:
        """Until the journal has so many lines of a kind."""
        deadline = time.monotonic() + 120
        while sum(line["kind"] == kind for line in self.journal()) < count:
            assert time.monotonic() < deadline, f"no {count} lines of {kind}"
            time.sleep(0.02)

    def fakes(self) -> list[int]:
        """Live fakes of this test, by the work folder in their environment or command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"vllm.py" in command and str(self.folder).encode() in environment:
                found.append(int(entry.name))
        return found


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Tuner]:
    tuner = Tuner(tmp_path)
    yield tuner
    for process in tuner.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    deadline = time.monotonic() + 10
    while tuner.fakes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert tuner.fakes() == []


def test_a_run_brackets_the_kernels_own_boundary_and_confirms_a_setting_below_it(tuner: Tuner) -> None:
    contents, said = tuner.finish()
    answer = TuneReport.of(contents).recommendation
    assert answer.met
    assert answer.is_confirmed
    assert answer.boundary_survived is not None
    assert answer.boundary_failed is not None
    assert answer.boundary_failed.failure == "killed"
    low, high = (end.gpu_memory_utilization for end in (answer.boundary_survived, answer.boundary_failed))
    assert low is not None
    assert high is not None
    assert 0 < high - low <= 0.1
    assert answer.settings is not None
    assert answer.settings["gpu_memory_utilization"] == pytest.approx(low - 0.02)
    # Evidence beside the journal: the log, memory over time, every request.
    trial = contents.path.parent / "trials" / f"{answer.trial}"
    assert {path.name for path in trial.iterdir()} >= {
        "command.txt",
        "memory.jsonl",
        "requests.jsonl",
        "vllm.log",
    }
    requests = [json.loads(line) for line in (trial / "requests.jsonl").read_text().splitlines()]
    # Soak: 2 waves of 8 users, at least 12; the target six times: 4 waves of 4 users.
    assert len(requests) == 16 + 6 * 16
    assert "best so far" in said

    journal = contents.path.read_bytes()
    again, said = tuner.finish(contents.run_id)
    assert again.path.read_bytes() == journal
    assert said == f"run {contents.run_id} is finished; nothing is left to launch\n"


@pytest.mark.parametrize("moment", ["during a start", "under load"])
def test_kill_9_in_the_middle_of_a_trial_leaves_nothing_and_resume_repeats_nothing(
    tuner: Tuner, moment: str
) -> None:
    process = tuner.start()
    tuner.wait_for("trial", 1)
    tuner.wait_for("trial_started", 2)
    if moment == "under load":
        run = next(tuner.runs.iterdir())
        deadline = time.monotonic() + 60
        while not (run / "trials" / "2" / "requests.jsonl").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 10
    while tuner.fakes():
        assert time.monotonic() < deadline, "processes are left after 10 s"
        time.sleep(0.1)

    before = [line for line in tuner.journal() if line["kind"] == "trial"]
    run = next(tuner.runs.iterdir())
    contents, _ = tuner.finish(run.name)
    after = [line for line in contents.lines if line["kind"] == "trial"]
    assert after[: len(before)] == before
    # A trial that failed for no known reason (another process took its port, say) is rightly asked again.
    finished = [line["key"] for line in after if line["trial"]["status"] != "failed"]
    assert len(set(finished)) == len(finished)
    assert [line["trial"]["number"] for line in after] == list(range(1, len(after) + 1))
    report = TuneReport.of(contents)
    assert report.is_finished
    assert report.recommendation.met


def test_sigterm_stops_the_engine_keeps_what_finished_and_writes_the_outcome_so_far(tuner: Tuner) -> None:
    process = tuner.start()
    tuner.wait_for("trial", 1)
    tuner.wait_for("trial_started", 2)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert tuner.fakes() == []
    run = next(tuner.runs.iterdir())
    report = TuneReport.of(read_journal(run))
    assert not report.is_finished
    assert report.recommendation.reasons[0].startswith(
        "not confirmed from a cold start: the run was interrupted"
    )


def test_time_in_which_another_engine_had_the_device_is_told_beside_the_runs_own(
    tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPLAN_LOCK_DIR", str(tuner.folder))
    began = time.monotonic()
    with device_lock((None,), wait_s=0):
        process = tuner.start()
        assert process.stderr is not None
        for line in process.stderr:
            if f"waiting for the engine of pid {os.getpid()}" in line:
                break
        time.sleep(3)
    tuner.wait_for("trial", 1)
    first_trial_s = time.monotonic() - began
    tuner.wait_for("trial", 2)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)

    report = TuneReport.of(read_journal(next(tuner.runs.iterdir())))
    first, *others = report.trials
    assert first.waited_s is not None
    assert first.waited_s >= 3
    assert first.waited_s + first.wall_s < first_trial_s
    assert [trial.waited_s for trial in others] == [0.0] * len(others)
    record = json.loads(report.render("json"))
    assert record["waited_s"] == first.waited_s
    assert record["wall_s"] == sum(trial.wall_s for trial in report.trials)


def test_faults_end_their_own_trial_and_are_asked_again(tuner: Tuner) -> None:
    moods = ["fine", "answers_500", "hangs_at_start", "fine"]
    contents, _ = tuner.finish(FAKE_MOODS=json.dumps(moods), FAKE_READY_TIMEOUT_S="6")
    trials = contents.trials
    assert [(t.status, t.failure) for t in trials[:3]] == [
        ("ok", None),
        ("failed", "unknown"),
        ("failed", "timeout"),
    ]
    assert [t.spec.attempt for t in trials[1:4]] == [1, 2, 3]
    assert trials[1].spec.settings == trials[3].spec.settings
    assert "500" in (trials[1].evidence or "")
    assert TuneReport.of(contents).recommendation.met


def test_three_unexplained_failures_in_a_row_stop_the_run_with_what_was_learnt(tuner: Tuner) -> None:
    moods = ["fine", "answers_500", "dies_on_request", "answers_500"]
    contents, _ = tuner.finish(FAKE_MOODS=json.dumps(moods))
    report = TuneReport.of(contents)
    assert len(contents.trials) == 4
    assert report.is_finished
    assert not report.recommendation.met
    assert (report.recommendation.stopped or "").startswith("3 unexplained failures in a row")
    assert report.recommendation.curve
    # Nothing explained them, so a run that goes on asks again; what was explained is not asked again.
    again, _ = tuner.finish(contents.run_id)
    assert again.trials[:4] == contents.trials
    assert again.trials[4].spec == contents.trials[1].spec
    assert TuneReport.of(again).recommendation.met
