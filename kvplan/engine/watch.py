"""Whether a vLLM is still well: its process, its log, its memory limit; and if not, why."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.engine.log import Failure, LogReader, LogWatch
from kvplan.errors import FailureClass

if TYPE_CHECKING:
    from kvplan.engine.cgroup import MemoryCgroup
    from kvplan.engine.guarded import GuardedProcess
    from kvplan.engine.memory_sampler import MemorySampler
    from kvplan.launch import StartupFacts

_POLL_S: Final = 0.05
_SETTLE_DEAD_S: Final = 0.3
_SETTLE_FATAL_S: Final = 2.0
_SIGKILL: Final = -9


class EngineWatch:
    """Looks when asked; the first failure it sees is the one it keeps."""

    def __init__(
        self, log_path: Path, process: GuardedProcess, sampler: MemorySampler, cgroup: MemoryCgroup | None
    ) -> None:
        self.ready = False
        self._log = LogReader(log_path)
        self._lines = LogWatch()
        self._process = process
        self._sampler = sampler
        self._cgroup = cgroup
        self._kernel_kills: int | None = None
        self._machine_kills = _machine_oom_kills()

    @property
    def facts(self) -> StartupFacts:
        """What the log has told so far."""
        return self._lines.facts()

    @property
    def phase(self) -> str | None:
        """How far the start has come; `serving` once it is ready."""
        return "serving" if self.ready else self._lines.phase

    def look(self) -> Failure | None:
        """What has gone wrong by now.

        When something has, this takes up to 2 s, because the lines that tell why may come after the one that
        tells that it is over.
        """
        self._hear()
        if (failure := self._memory_failure()) is not None:
            return failure
        dead = self._is_dead()
        if not dead and self._lines.fatal_line is None:
            return None
        deadline = time.monotonic() + (_SETTLE_DEAD_S if dead else _SETTLE_FATAL_S)
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self._hear()
            if not dead and self._is_dead():
                dead = True
                deadline = min(deadline, time.monotonic() + _SETTLE_DEAD_S)
        for line in self._log.last_lines():
            self._lines.feed(line)
        return self._memory_failure() or self._cause()

    def timed_out(self) -> Failure:
        """The failure of a start that neither succeeded nor failed; the log may still hold a hint."""
        told = self._lines.failure()
        return Failure(FailureClass.TIMEOUT, self.phase, None if told is None else told.decisive_line)

    def kernel_kills(self) -> int | None:
        """OOM kills in the launch's cgroup; the last count once it is gone, None without one."""
        count = None if self._cgroup is None else self._cgroup.oom_kill_count()
        self._kernel_kills = self._kernel_kills if count is None else count
        return self._kernel_kills

    def _hear(self) -> None:
        self._process.poll()
        for line in self._log.new_lines():
            self._lines.feed(line)

    def _is_dead(self) -> bool:
        return self._process.exit_status is not None or self._process.error is not None

    def _memory_failure(self) -> Failure | None:
        if self.kernel_kills():
            return Failure(
                FailureClass.KILLED,
                self.phase,
                "the kernel killed a process of vLLM: out of memory in its cgroup",
            )
        if self._sampler.over_limit is not None:
            return Failure(FailureClass.KILLED, self.phase, self._sampler.over_limit)
        if self._sampler.gpu_lost is not None:
            return Failure(FailureClass.UNKNOWN, self.phase, self._sampler.gpu_lost)
        return None

    def _cause(self) -> Failure:
        told = self._lines.failure()
        if told is not None and told.failure is not FailureClass.UNKNOWN:
            return told
        # A process that the kernel killed says nothing; the others only notice that it is gone.
        if self._cgroup is None and _rose(self._machine_kills, _machine_oom_kills()):
            text = "the kernel killed processes on this machine for memory while vLLM ran"
            return Failure(FailureClass.KILLED, self.phase, text)
        status = self._process.exit_status
        if status == _SIGKILL:
            return self._ended_by_sigkill()
        if told is not None:
            return told
        text = self._process.error or f"vLLM exited with status {status} and no word in its log"
        return Failure(FailureClass.UNKNOWN, self.phase, text)

    def _ended_by_sigkill(self) -> Failure:
        """By the kernel, for memory, or by somebody: only the first says anything about the settings."""
        if self.kernel_kills() is None and self._machine_kills is None:
            text = "vLLM was ended by SIGKILL; no counter of the kernel tells whether for memory"
            return Failure(FailureClass.KILLED, self.phase, text)
        text = "vLLM was ended by SIGKILL, and the kernel counted no kill for memory: somebody else did it"
        return Failure(FailureClass.UNKNOWN, self.phase, text)


def _rose(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before


def _machine_oom_kills() -> int | None:
    """The kernel's own count since boot; None where it has none (before Linux 4.13, or a sandbox)."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
