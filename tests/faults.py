"""kvplan under faults: `kvplan tune`, who is who below it, what it leaves, and the rows of the fault table.

Shared by the tests with the scripted engine, those with real vLLM, and the soak.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.engine.log_file import STOP_MARK
from kvplan.engine.process_tree import (
    SHM_DIR,
    Process,
    all_processes,
    descendants,
    send,
    shared_memory_of,
)
from kvplan.tune.journal import FILE_NAME, read_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvplan.tune.trial import Trial

RECORDS_VARIABLE: Final = "KVPLAN_FAULT_RECORDS"
"""A file that every test of a fault adds its row to; `tests/bench/fault_table.py` makes the table of it."""

Role = Literal["kvplan", "guard", "API server", "EngineCore", "Worker"]
Phase = Literal["start", "loads", "stop"]
Engine = Literal["scripted", "real vLLM"]

KILL_AFTER_S: Final = 0.2
"""From seeing a process to killing it: it is to have done something."""
CGROUPS: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Row:
    """One injected fault: what should come of it, and what came."""

    fault: str
    phase: str
    engine: Engine
    expected: str
    seen: str
    exit_code: str
    """kvplan's own; of several processes, in their order."""
    left: int
    """Processes, shared memory, temporary folders, notes and cgroups that were still there."""
    kept: str
    """Finished trials that the journal held before, and after."""
    evidence: str = ""
    """What kvplan said about it."""

    def check(self) -> None:
        """Keep the row for the table, and hold it against what was expected."""
        if (path := os.environ.get(RECORDS_VARIABLE)) is not None:
            with Path(path).open("a") as file:
                file.write(json.dumps(asdict(self)) + "\n")
        assert self.seen == self.expected, self.evidence
        assert self.left == 0, self.evidence


@dataclass
class Tuner:
    """Processes of `kvplan tune` that share a folder for their runs, locks, and temporary files."""

    folder: Path
    program: Sequence[str]
    """What stands before `tune`."""
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    segments: set[str] = field(default_factory=set)
    """Shared memory that was seen mapped by anything below these processes."""

    def __post_init__(self) -> None:
        for name in ("tmp", "runs"):
            (self.folder / name).mkdir(exist_ok=True, parents=True)

    @property
    def runs(self) -> Path:
        """Where the runs lie."""
        return self.folder / "runs"

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        """`kvplan ARGV` in a session of its own, so that a signal of ours reaches it alone."""
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # A shell starts its background jobs so, and their children inherit it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with (self.folder / f"stderr-{len(self.started)}").open("w") as stderr:
            process = subprocess.Popen(
                [*self.program, *argv],
                env={**os.environ, "TMPDIR": str(self.folder / "tmp"), **self.env, **env},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def said(self, process: subprocess.Popen[str]) -> str:
        """What it has written to stderr."""
        return (self.folder / f"stderr-{self.started.index(process)}").read_text()

    def end(self, process: subprocess.Popen[str], timeout_s: float = 120) -> int:
        """Its exit status, when it ends."""
        process.communicate(timeout=timeout_s)
        return process.returncode

    def kill(self, process: subprocess.Popen[str]) -> int:
        """kill -9 of kvplan."""
        process.kill()
        return self.end(process)

    def role(self, kvplan: int, role: Role) -> Process | None:
        """The process of that role below this kvplan, if there is one now."""
        processes = all_processes()
        if role == "kvplan":
            return processes.get(kvplan)
        below = descendants(kvplan, processes)
        self.segments |= shared_memory_of(process.pid for process in below)
        guards = [p for p in below if p.parent == kvplan and "kvplan.engine.guard" in command_of(p.pid)]
        if not guards:
            return None
        if role == "guard":
            return guards[0]
        for process in below:
            command = command_of(process.pid)
            if "resource_tracker" in command:
                continue
            if role == "API server" and process.parent == guards[0].pid and process.pid == process.session:
                return process
            marks = {"EngineCore": ("--child", "VLLM::EngineCor"), "Worker": ("--worker", "VLLM::Worker")}
            if any(mark in command for mark in marks.get(role, ())):
                return process
        return None

    def has_come_to(self, run: Path, number: int, phase: Phase) -> bool:
        """Whether that trial has begun this phase."""
        trial = run / "trials" / str(number)
        if phase == "start":
            return (trial / "vllm.log").exists()
        if phase == "loads":
            return (trial / "requests.jsonl").exists() and (trial / "requests.jsonl").stat().st_size > 0
        with_log = (trial / "vllm.log").exists()
        return with_log and STOP_MARK.encode() in (trial / "vllm.log").read_bytes()[-4096:]

    def kill_role(self, kvplan: int, run: Path, number: int, role: Role, phase: Phase) -> bool:
        """kill -9 of one process when a trial has come to a phase; waits for both.

        Returns:
            False if the trial ended before there was such a process (a stop is short).
        """

        def ended() -> bool:
            return number in numbers_of(trial_lines(run))

        found: list[Process] = []

        def find() -> bool:
            if (process := self.role(kvplan, role)) is not None:
                found.append(process)
            return bool(found) or ended()

        def reach(wanted: Phase) -> None:
            wait_for(
                lambda: self.has_come_to(run, number, wanted) or ended(), f"trial {number} to {wanted}", 600
            )

        # A stop is short: who is to die in it is looked for before.
        reach("loads" if phase == "stop" else phase)
        wait_for(find, f"{role} of trial {number}", 600)
        if not found:
            return False
        if phase == "stop":
            reach("stop")
        else:
            time.sleep(KILL_AFTER_S)
        send(found[-1], signal.SIGKILL)
        return True

    def kill_as_planned(self, kvplan: int, kills: Mapping[int, tuple[Role, Phase]]) -> list[str]:
        """Trial number -> whom to kill and when, in the first run of these; gives what went wrong."""
        wait_for(lambda: any(self.runs.glob(f"*/{FILE_NAME}")), "the run")
        run = next(self.runs.iterdir())
        errors = []
        for number, (role, phase) in kills.items():
            try:
                if not self.kill_role(kvplan, run, number, role, phase):
                    errors.append(f"trial {number}: no {role} to kill at {phase}")
            except (AssertionError, OSError) as error:
                return [*errors, f"trial {number}, {role} at {phase}: {error}"]
        return errors

    def remains(self) -> list[str]:
        """What is left of all that these processes started; empty is what it should be."""
        marks = (str(self.folder).encode(), str(self.folder))
        ours = {process.pid for process in self.started if process.poll() is None} | {os.getpid()}
        left = [
            f"process {pid} {command_of(pid)}"
            for pid in all_processes()
            if pid not in ours and belongs_to(pid, *marks)
        ]
        left += [f"temporary {path.name}" for path in (self.folder / "tmp").glob("kvplan-*")]
        left += [f"note {path.name}" for path in self.folder.glob("*.state.json")]
        left += [f"shared memory {name}" for name in self._segments() if (SHM_DIR / name).exists()]
        for process in self.started:
            left += [f"cgroup {path}" for path in CGROUPS.glob(f"**/kvplan-{process.pid}-*")]
        return left

    def gone(self, timeout_s: float = 10) -> list[str]:
        """What is left after at most so long."""
        deadline = time.monotonic() + timeout_s
        while (left := self.remains()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _segments(self) -> set[str]:
        """Seen mapped, and those that the scripted engine says it holds."""
        said: set[str] = set()
        for log in self.runs.glob("*/trials/*/vllm.log"):
            said |= set(
                re.findall(
                    r"holds ((?:psm_|sem\.)[\w-]+)", log.read_bytes()[:4096].decode("utf-8", "replace")
                )
            )
        return self.segments | said


def command_of(pid: int) -> str:
    """Its command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def belongs_to(pid: int, mark: bytes, folder: str) -> bool:
    """Whether a process names the folder in its environment, or has a file of it open.

    vLLM renames its processes, which overwrites the environment that /proc shows; its log is open in each.
    """
    try:
        if mark in Path(f"/proc/{pid}/environ").read_bytes():
            return True
        return any(str(link.readlink()).startswith(folder) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def wait_for(happened: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    """Look 50 times a second until it has happened."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.02)


def trial_lines(run: Path) -> list[dict[str, Any]]:
    """The journal's lines of finished trials; a torn last line is not looked at."""
    text = (run / FILE_NAME).read_text() if (run / FILE_NAME).exists() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    return [line for line in lines if line["kind"] == "trial"]


def came_of(run: Path, number: int) -> tuple[str, str]:
    """How a trial ended, as the table says it, and its evidence."""
    trials = {trial.number: trial for trial in read_journal(run).trials}
    return outcome(trials[number], trials.get(number + 1)), trials[number].evidence or ""


def outcome(trial: Trial, following: Trial | None) -> str:
    """`ok`, or status and class, and whether the same was asked again."""
    if trial.status == "ok":
        return "ok"
    text = f"{trial.status}: {trial.failure}"
    if following is not None and following.spec.settings == trial.spec.settings:
        text += ", asked again"
    return text


def numbers_of(lines: Iterable[dict[str, Any]]) -> list[int]:
    """The numbers of journal lines of trials."""
    return [line["trial"]["number"] for line in lines]


def kept(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """Says that the finished trials of before are all still there, unchanged and made once."""
    assert after[: len(before)] == before
    keys = [line["key"] for line in after if line["trial"]["status"] != "failed"]
    assert len(set(keys)) == len(keys), "a finished trial was made twice"
    return f"{len(before)} of {len(before)}"
