"""kvplan's side of the guard: start it, hear it, have it end everything."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.engine.guard import KILL_TIMEOUT_S, boot_id  # noqa: F401
from kvplan.engine.lock import clean_up_after

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.engine.cgroup import MemoryCgroup
    from kvplan.engine.lock import HeldLock

_BOOT: Final = "import sys; sys.path.append(sys.argv[1]); from kvplan.engine.guard import main; main()"
"""Isolated and without site-packages the guard starts in 30 ms, whatever is installed."""


class GuardedProcess:
    """One vLLM behind a guard."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        *,
        lock: HeldLock,
        cgroup: MemoryCgroup | None,
    ) -> None:
        self.leader: int | None = None
        self.exit_status: int | None = None
        """vLLM's own exit status, minus the signal if one ended it; None while it runs."""
        self.error: str | None = None
        """Why vLLM could not even be executed."""
        self.gone = False
        self._state_path = lock.state_path
        self._rest = b""
        tmp_dir = tempfile.mkdtemp(prefix="kvplan-")
        spec = {
            "launch_id": secrets.token_hex(16),
            "argv": list(command),
            "env": {**environment, "TMPDIR": tmp_dir},
            "cwd": tmp_dir,
            "log_path": str(log_path.resolve()),
            "state_path": str(lock.state_path),
            "tmp_dir": tmp_dir,
            "cgroup": None if cgroup is None else str(cgroup.path),
            "cgroup_procs": None if cgroup is None else str(cgroup.procs_file),
        }
        root = str(Path(__file__).parents[2])
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                pass_fds=lock.fds,
            )
            self._say(json.dumps(spec))
        except BaseException:
            shutil.rmtree(tmp_dir, ignore_errors=True)
            raise
        assert self._guard.stdout is not None  # noqa: S101  a pipe was asked for
        os.set_blocking(self._guard.stdout.fileno(), False)

    @property
    def guard_pid(self) -> int:
        """The guard itself; vLLM's processes are its descendants."""
        return self._guard.pid

    def poll(self) -> None:
        """Hear what the guard has told; without a guard, end what it left."""
        assert self._guard.stdout is not None  # noqa: S101
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._guard.stdout.fileno(), 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
        if self._guard.poll() is not None and not self.gone:
            clean_up_after(self._state_path)
            self.error = self.error or "the guard of this launch was killed"
            self.gone = True

    def tell_ready(self) -> None:
        """The start is over: the guard may look less often."""
        self._say("ready")

    def stop(self, grace_s: float) -> None:
        """End all of it, and return when it is gone. May be called again."""
        with contextlib.suppress(OSError):
            self._say(f"stop {grace_s}")
            if self._guard.stdin is not None:
                self._guard.stdin.close()
        deadline = time.monotonic() + grace_s + KILL_TIMEOUT_S + 5
        while not self.gone and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(timeout=5)
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _say(self, line: str) -> None:
        assert self._guard.stdin is not None  # noqa: S101
        self._guard.stdin.write(line.encode() + b"\n")
        self._guard.stdin.flush()

    def _take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.leader = event["pid"]
            case "exit":
                self.exit_status = event["status"]
            case "error":
                self.error = event["message"]
            case "gone":
                self.gone = True
