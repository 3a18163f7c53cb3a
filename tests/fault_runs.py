"""Runs of `kvplan tune` on the scripted engine with faults, for test_tune_faults.py."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.units import MIB
from tests.faults import Phase, Role, Tuner, trial_lines, wait_for
from tests.tiny_model import make_model

if TYPE_CHECKING:
    import subprocess

TESTS: Final = Path(__file__).parent
PROBLEM: Final = (
    *("--device", "cpu", "--gpu-memory-gib", "0.25", "--target-concurrency", "4"),
    *("--input-len", "32", "--output-len", "4", "--enforce-eager", "--kv-cache-dtype", "auto"),
    *("--block-size", "128", "--max-num-seqs", "4", "--strategy", "grid", "--format", "json"),
)
"""A card of 256 MiB, four users, and a grid over the utilisation alone."""


def tuner_in(folder: Path) -> Tuner:
    program = [sys.executable, str(TESTS / "tune_faulty.py")]
    env = {
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
        "KVPLAN_LOCK_DIR": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "HF_HUB_OFFLINE": "1",
    }
    return Tuner(folder, program, env)


def grid(*utilizations: float) -> list[str]:
    return [word for value in utilizations for word in ("--gpu-memory-utilization", f"{value:g}")]


# One run with a fault in nearly every launch.


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the long run."""

    name: str
    phase: str
    script: dict[str, Any]
    expected: str
    kill: tuple[Role, Phase] | None = None


UNKNOWN: Final = "failed: unknown, asked again"
TIMEOUT: Final = "failed: timeout, asked again"
ROLES: Final[tuple[Role, ...]] = ("guard", "API server", "EngineCore", "Worker")
FAILING: Final = [
    *(Fault(f"kill -9 of {r}", "start", {"start_s": 1.5}, UNKNOWN, (r, "start")) for r in ROLES),
    *(Fault(f"kill -9 of {r}", "loads", {"itl_ms": 30}, UNKNOWN, (r, "loads")) for r in ROLES),
    Fault("answers 500s", "loads", {"mood": "answers_500"}, UNKNOWN),
    Fault("dies in the middle of a stream", "loads", {"mood": "dies_on_request"}, UNKNOWN),
    Fault("hangs without a word", "start", {"mood": "hangs_at_start", "ready_timeout_s": 2}, TIMEOUT),
    Fault("never ready", "start", {"mood": "never_ready", "ready_timeout_s": 2}, TIMEOUT),
    Fault("hangs: nothing is answered", "loads", {"mood": "hangs_under_load"}, TIMEOUT),
    Fault("stops in the middle of every stream", "loads", {"mood": "stalls"}, TIMEOUT),
    Fault(
        "somebody else's server on the port", "start", {"mood": "other_name", "ready_timeout_s": 2}, TIMEOUT
    ),
    Fault("the port is taken after it was chosen", "start", {"port_taken": True}, UNKNOWN),
]
"""Unexplained: the same is asked again."""
HARMLESS: Final = [
    *(Fault(f"kill -9 of {r}", "stop", {"mood": "ignores_sigterm"}, "ok", (r, "stop")) for r in ROLES),
    Fault("garbage on /metrics", "loads", {"mood": "garbage_metrics"}, "ok"),
    Fault("log flood", "loads", {"mood": "floods_log", "itl_ms": 8}, "ok"),
    Fault("ignores SIGTERM and SIGINT", "stop", {"mood": "ignores_sigterm"}, "ok"),
    Fault(
        "kernel OOM kill in the cgroup",
        "start",
        {"mood": "eats_memory", "memory_bytes": 512 * MIB},
        "infeasible: killed",
    ),
    Fault("prints why, then hangs", "start", {"mood": "traceback_then_hangs"}, "infeasible: kv_too_small"),
    Fault("CUDA OOM printed, lives on", "loads", {"mood": "fatal_on_request"}, "infeasible: oom_serving"),
]
"""What is measured stands, or the failure is an answer: nothing is asked again."""


def numbered() -> dict[int, Fault]:
    """Trial number -> fault: never three unexplained failures in a row."""
    failing, harmless = list(FAILING), list(HARMLESS)
    ordered: list[Fault] = []
    while failing or harmless:
        ordered += failing[:2] + harmless[:1]
        failing, harmless = failing[2:], harmless[1:]
    return dict(enumerate(ordered, start=1))


NUMBERED: Final = numbered()


class LongRun:
    """Runs beside the other tests of this file: nearly all of its time is waiting."""

    def __init__(self, folder: Path) -> None:
        self.tuner = tuner_in(folder)
        self.errors: list[str] = []
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        model = make_model(folder / "model")
        # As many points as there are launches that are not asked again; the first of them is the probe.
        points = [0.3 + 0.01 * index for index in range(len(HARMLESS) - 1)]
        plan = {str(number): fault.script for number, fault in NUMBERED.items()}
        self._process = self.tuner.start(
            "tune",
            *("--model", str(model), *PROBLEM, *grid(*points), "--max-launches", "60"),
            *("--runs-dir", str(self.tuner.runs)),
            FAKE_PLAN=json.dumps(plan),
        )
        self._thread.start()

    @property
    def run(self) -> Path:
        """Its folder."""
        return next(self.tuner.runs.iterdir())

    def _run(self) -> None:
        kills = {number: fault.kill for number, fault in NUMBERED.items() if fault.kill is not None}
        self.errors = self.tuner.kill_as_planned(self._process.pid, kills)

    def ended(self) -> LongRun:
        """After the end; once."""
        if self.exit_code is None:
            self.exit_code = self.tuner.end(self._process, 300)
            self._thread.join(10)
        return self


@dataclass
class Copied:
    """A copy of `begun`, to be gone on with."""

    tuner: Tuner
    run: Path
    before: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.before = trial_lines(self.run)

    def resume(
        self, *argv: str, plan: dict[int, dict[str, Any]] | None = None, **env: str
    ) -> subprocess.Popen[str]:
        """Goes on, with these faults in its next trials."""
        return self.tuner.start(
            *("tune", "--resume", str(self.run), "--max-launches", "12", "--format", "json", *argv),
            FAKE_PLAN=json.dumps({str(number): script for number, script in (plan or {}).items()}),
            **env,
        )

    def at(self, number: int, phase: Phase) -> None:
        """Wait until a trial has come to a phase."""
        wait_for(lambda: self.tuner.has_come_to(self.run, number, phase), f"trial {number} to {phase}")

    def resumed_to_the_end(self, *argv: str) -> int:
        """Goes on without faults; its exit status."""
        process = self.resume(*argv)
        status = self.tuner.end(process)
        assert status == 0, self.tuner.said(process)
        return status
