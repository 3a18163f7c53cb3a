"""kvplan's side of the guard: start it, hear it, have it end everything."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from kvplan.engine.guard import KILL_TIMEOUT_S
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
        spec = {
            "owner": os.getpid(),
            "launch_id": secrets.token_hex(16),
            "argv": list(command),
            "env": dict(environment),
            "cwd": str(Path.cwd()),
            "log_path": str(log_path.resolve()),
            "state_path": str(lock.state_path),
            "tmp_parent": tempfile.gettempdir(),
            "cgroup": None if cgroup is None else str(cgroup.path),
            "cgroup_procs": None if cgroup is None else str(cgroup.procs_file),
        }
        root = str(Path(__file__).parents[2])
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=lock.fds,
        )
        self._stdin, self._stdout = (
            cast("IO[bytes]", self._guard.stdin),
            cast("IO[bytes]", self._guard.stdout),
        )
        os.set_blocking(self._stdout.fileno(), False)
        self._say(json.dumps(spec))

    @property
    def guard_pid(self) -> int:
        """The guard itself; vLLM's processes are its descendants."""
        return self._guard.pid

    def poll(self) -> None:
        """Hear what the guard has told; without a guard, end what it left."""
        with contextlib.suppress(BlockingIOError, ValueError):
            while data := os.read(self._stdout.fileno(), 1 << 16):
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

    def ask_to_stop(self, grace_s: float = 0.0) -> None:
        """Have all of it ended, without waiting."""
        self._say(f"stop {grace_s}")

    def stop(self, grace_s: float) -> None:
        """End all of it, and return when it is gone. May be called again.

        Raises:
            KeyboardInterrupt: an impatient user's, after everything is gone: the wait is bounded and short.
        """
        deadline = time.monotonic() + grace_s + KILL_TIMEOUT_S + 5
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                self._end(grace_s, deadline)
            except KeyboardInterrupt as error:
                interrupt = error
            else:
                break
        if interrupt is not None:
            raise interrupt

    def _end(self, grace_s: float, deadline: float) -> None:
        self.ask_to_stop(grace_s)
        with contextlib.suppress(OSError, ValueError):
            self._stdin.close()
        while not self.gone and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.02)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(timeout=5)
        self._stdout.close()

    def _say(self, line: str) -> None:
        with contextlib.suppress(
            OSError, ValueError
        ):  # the guard, or the pipe to it, is gone: `poll` will tell
            self._stdin.write(line.encode() + b"\n")
            self._stdin.flush()

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
