"""Ten real trials in a row with random kills: `python -m tests.bench.soak > docs/examples/soak.md`.

First one kvplan that makes ten trials while processes of its vLLM are killed at random moments, then a run
whose kvplan is killed three times and resumed. After each it is looked for what is left:
processes, ports, shared memory, temporary folders, cgroups, notes; and how much memory kvplan itself holds.
`--scripted` tries the script itself on the scripted engine; `--rows FILE` keeps the kills for docs/faults.md.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.engine.lock import lock_path
from kvplan.engine.process_tree import all_processes, descendants, read_process
from tests.faults import (
    Phase,
    Role,
    Row,
    Tuner,
    came_of,
    command_of,
    kept,
    numbers_of,
    trial_lines,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TRIALS: Final = 10
KILLS_OF_KVPLAN: Final = 3
MOST_GROWTH: Final = 0.10
ROLES: Final[tuple[Role, ...]] = ("guard", "API server", "EngineCore", "Worker")
PHASES: Final[tuple[Phase, ...]] = ("start", "loads", "stop")
SHARE_KILLED: Final = 0.85
"""Of the trials; never three in a row, because three unexplained failures end a run."""
PROBLEM: Final = (
    *("--demo", "--kv-cache-dtype", "auto", "--block-size", "128", "--max-num-seqs", "8"),
    *("--strategy", "grid", "--format", "json", "--input-len", "64", "--output-len", "16"),
)
LONGEST_S: Final[Mapping[Phase, float]] = {"start": 12.0, "loads": 6.0, "stop": 0.3}
GONE: Final = "gone within 10 s; resume repeats nothing and finishes"
UTILIZATIONS: Final = (0.4, 0.42, 0.44, 0.46, 0.48, 0.5, 0.52, 0.54, 0.56, 0.9)


@dataclass(slots=True)
class Report:
    """What was seen, as Markdown, and what should not have been seen."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines) + "\n"

    def say(self, line: str) -> None:
        """One line more, also to whoever waits."""
        self.lines.append(line)
        print(line, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Soak:
    """One soak, with real vLLM or with the scripted engine."""

    tuner: Tuner
    problem: tuple[str, ...]
    rng: random.Random
    longest_s: Mapping[Phase, float]
    """Kills come within so many seconds of a phase's begin."""
    report: Report = field(default_factory=Report)
    ports: set[int] = field(default_factory=set)

    def left(self) -> list[str]:
        """What is left of everything so far; ports too."""
        found = self.tuner.gone()
        return found + [f"port {port}" for port in sorted(self.ports) if is_open(port)]

    def watch(self, kvplan: int) -> None:
        """Note the port of the running launch and its shared memory."""
        server = self.tuner.role(kvplan, "API server")
        if server is not None:
            words = command_of(server.pid).split()
            if "--port" in words:
                self.ports.add(int(words[words.index("--port") + 1]))

    def of_children(self) -> None:
        """Ten trials of one kvplan; processes of its vLLM are killed, kvplan lives."""
        tuner, report = self.tuner, self.report
        points = [word for value in UTILIZATIONS for word in ("--gpu-memory-utilization", f"{value:g}")]
        argv = ("tune", *self.problem, *points, "--max-launches", str(TRIALS), "--runs-dir", str(tuner.runs))
        process = tuner.start(*argv)
        wait_for(lambda: any(tuner.runs.glob("*/journal.jsonl")) or process.poll() is not None, "the run")
        run = next(tuner.runs.iterdir())
        report.say("| trial | killed | after | outcome | kvplan's memory | left of it |")
        report.say("| --: | :-- | --: | :-- | --: | :-- |")
        unexplained, first_kib, last_kib = 0, None, 0
        # Every process at every phase, in a random order: no kind of kill twice.
        victims = self.rng.sample([(role, phase) for role in ROLES for phase in PHASES], 12)
        hits: dict[int, tuple[Role, Phase]] = {}
        for number in range(1, TRIALS + 1):
            victim = victims[-1] if unexplained < 2 and self.rng.random() < SHARE_KILLED else None
            killed = self._one_trial(process.pid, run, number, victim)
            if victim is not None and killed is not None:
                hits[number] = victims.pop()
            lines = trial_lines(run)
            if number not in numbers_of(lines):
                break
            last_kib = resident_kib(process.pid) or last_kib
            first_kib = first_kib or last_kib
            trial = lines[number - 1]["trial"]
            unexplained = unexplained + 1 if trial["status"] == "failed" else 0
            left = left_of_trial(self, process.pid, run, number)
            report.problems += [f"after trial {number}: {what}" for what in left]
            outcome = trial["status"] + (f": {trial['failure']}" if trial["failure"] else "")
            what_is_left = ", ".join(left) or "-"
            report.say(
                f"| {number} | {killed or '- | '} | {outcome} | {last_kib / 1024:.1f} MiB | {what_is_left} |"
            )
        status = tuner.end(process)
        made = numbers_of(trial_lines(run))
        growth = last_kib / first_kib - 1 if first_kib else 0.0
        left = self.left()
        self._keep_rows(run, hits, status, left)
        report.problems += left
        report.problems += [] if status in {0, 1} else [f"exit code {status}: {tuner.said(process)}"]
        report.problems += [] if made == list(range(1, TRIALS + 1)) else [f"trials {made}"]
        report.problems += (
            [] if abs(growth) <= MOST_GROWTH or growth < 0 else [f"kvplan grew by {growth:.1%}"]
        )
        report.say("")
        report.say(
            f"kvplan's memory after the last trial against after the first: {growth:+.1%}; exit code "
            f"{status}; left when it had ended: {', '.join(left) or 'nothing'}."
        )

    def _one_trial(
        self, kvplan: int, run: Path, number: int, victim: tuple[Role, Phase] | None
    ) -> str | None:
        """Wait for a trial's end; perhaps kill something of it. What was killed, and when."""
        log = run / "trials" / str(number) / "vllm.log"
        wait_for(lambda: log.exists() or read_process(kvplan) is None, f"trial {number}", 3600)
        began = time.monotonic()
        killed: str | None = None
        kill_at: float | None = None
        while number not in numbers_of(trial_lines(run)) and is_alive(kvplan):
            self.watch(kvplan)
            now = time.monotonic()
            if victim is not None and killed is None and self.tuner.has_come_to(run, number, victim[1]):
                process = self.tuner.role(kvplan, victim[0])
                if process is not None and kill_at is None:
                    kill_at = now + self.rng.uniform(0, self.longest_s[victim[1]])
                if process is not None and kill_at is not None and now >= kill_at:
                    os.kill(process.pid, signal.SIGKILL)
                    killed = f"{victim[0]}, {victim[1]} | {now - began:.1f} s"
            time.sleep(0.05)
        return killed

    def _keep_rows(
        self, run: Path, hits: dict[int, tuple[Role, Phase]], status: int, left: list[str]
    ) -> None:
        """The kills as rows of the fault table, and what is wrong with them."""
        lines = trial_lines(run)
        for number, (role, phase) in hits.items():
            seen, evidence = came_of(run, number)
            again = ", asked again" if number < TRIALS else ""
            expected = "ok" if phase == "stop" else f"failed: unknown{again}"
            if (lines[number - 1]["trial"]["launch"] or {}).get("oom_kill_count"):
                expected = "infeasible: killed"  # the kernel's own kill came first, and is the answer
            finished = kept(lines[: number - 1], lines)
            row = Row(
                f"kill -9 of {role}",
                *(phase, "real vLLM", expected, seen, str(status), len(left), finished, evidence),
            )
            self.report.rows.append(row)
            self.report.problems += [] if seen == expected else [f"trial {number}: {seen}, not {expected}"]

    def of_kvplan(self) -> None:
        """A run whose kvplan is killed three times, each time resumed, and then ends."""
        tuner, report = self.tuner, self.report
        runs = tuner.folder / "killed"
        points = ("--gpu-memory-utilization", "0.6")
        argv: tuple[str, ...] = ("tune", *self.problem, *points)
        report.say("")
        report.say("| kvplan killed | gone after | finished trials kept | left of it |")
        report.say("| --: | --: | :-- | :-- |")
        finished: list[dict[str, Any]] = []
        for _ in range(KILLS_OF_KVPLAN):
            process = tuner.start(*argv, "--runs-dir", str(runs))
            logs = {log: log.stat().st_mtime_ns for log in runs.glob("*/trials/*/vllm.log")}

            def has_begun(before: dict[Path, int] = logs) -> bool:
                now = runs.glob("*/trials/*/vllm.log")
                return any(before.get(log) != log.stat().st_mtime_ns for log in now)

            wait_for(has_begun, "a launch", 900)
            longest_s = sum(self.longest_s.values())
            began, moment_s = time.monotonic(), self.rng.uniform(1, longest_s)
            while time.monotonic() - began < moment_s and process.poll() is None:
                self.watch(process.pid)
                time.sleep(0.1)
            run = next(runs.iterdir())
            number = len(trial_lines(run)) + 1
            phase = next(phase for phase in reversed(PHASES) if tuner.has_come_to(run, number, phase))
            tuner.kill(process)
            began = time.monotonic()
            left = self.left()
            gone_s = time.monotonic() - began
            now = trial_lines(run)
            report.rows.append(
                Row(
                    "kill -9 of kvplan",
                    phase,
                    "real vLLM",
                    GONE,
                    GONE,
                    "-9, then 0",
                    len(left),
                    kept(finished, now),
                )
            )
            report.problems += left
            report.problems += [] if now[: len(finished)] == finished else ["a finished trial was lost"]
            finished = now
            report.say(
                f"| after {moment_s:.1f} s of a launch | {gone_s:.1f} s | {numbers_of(now) or 'none yet'} | "
                f"{', '.join(left) or '-'} |"
            )
            argv = ("tune", "--resume", "last")
        process = tuner.start("tune", "--resume", "last", "--runs-dir", str(runs), "--format", "json")
        status = tuner.end(process, 1800)
        lines, left = trial_lines(next(runs.iterdir())), self.left()
        keys = [line["key"] for line in lines if line["trial"]["status"] != "failed"]
        report.problems += left
        report.problems += [] if len(keys) == len(set(keys)) else ["a finished trial was made twice"]
        report.problems += [] if lines[: len(finished)] == finished else ["a finished trial was lost"]
        report.problems += [] if status == 0 else [f"exit code {status}: {tuner.said(process)}"]
        report.say("")
        report.say(
            f"Resumed to the end: trials {numbers_of(lines)}, none made twice; exit code {status}; "
            f"left: {', '.join(left) or 'nothing'}."
        )


def left_of_trial(soak: Soak, kvplan: int, run: Path, number: int) -> list[str]:
    """What a trial left that ended a moment ago, while kvplan may have begun the next one."""
    log = str(run / "trials" / str(number) / "vllm.log")
    found = []
    for process in descendants(kvplan, all_processes()):
        try:
            targets = {str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()}
        except OSError:
            continue
        if log in targets:
            found.append(f"process {process.pid}")
    found += [f"cgroup {path.name}" for path in Path("/sys/fs/cgroup").glob(f"**/kvplan-{kvplan}-*")][1:]
    folders = list((soak.tuner.folder / "tmp").glob("kvplan-*"))
    return found + [f"temporary {path.name}" for path in folders][1:]  # one may be the next trial's


def resident_kib(pid: int) -> int | None:
    """VmRSS of a process, KiB; None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), None)


def is_alive(pid: int) -> bool:
    """Whether it runs (a zombie does not)."""
    process = read_process(pid)
    return process is not None and not process.zombie


def is_open(port: int) -> bool:
    """Whether somebody listens on it."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def the_machine() -> Iterator[None]:
    """The device for the whole soak: other launches between ours would only make it longer."""
    fd = os.open(lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def soak(folder: Path, seed: int | None, *, scripted: bool = False) -> Report:
    """All of it; a seed of None is a new one, which is said."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    program, longest_s = [sys.executable, "-m", "kvplan"], LONGEST_S
    # The lock of the whole machine is held by the soak: its kvplans have one of their own below it.
    env = {"KVPLAN_LOCK_DIR": str(folder)}
    if scripted:
        tests = Path(__file__).parents[1]
        program = [sys.executable, str(tests / "tune_faulty.py")]
        longest_s = {"start": 0.3, "loads": 1.0, "stop": 0.1}
        env["PYTHONPATH"] = f"{tests}{os.pathsep}{tests.parent}"
    made = Soak(Tuner(folder, program, env), PROBLEM, random.Random(seed), longest_s)
    made.report.say("# Ten trials in a row with random kills, and a kvplan that is killed three times\n")
    command = f"python -m tests.bench.soak --seed {seed}" + (" --scripted" if scripted else "")
    made.report.say(f"    {command} > docs/examples/soak.md\n")
    made.report.say("A seed fixes who is killed and when, not how fast vLLM is meanwhile.\n")
    with contextlib.nullcontext() if scripted else the_machine():
        began = time.monotonic()
        made.of_children()
        made.of_kvplan()
    made.report.say("")
    verdict = "; ".join(made.report.problems) or "none"
    made.report.say(f"{(time.monotonic() - began) / 60:.0f} minutes. Problems: {verdict}.")
    return made.report


def main() -> None:
    """Soak, print, and fail if anything was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--scripted", action="store_true")
    parser.add_argument("--rows", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        report = soak(Path(folder), given.seed, scripted=given.scripted)
    print(report.text, end="")
    if given.rows is not None:
        with given.rows.open("a") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in report.rows)
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
