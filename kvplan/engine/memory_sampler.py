"""Memory of a running vLLM, sampled in a thread: NVML on a GPU; the cgroup, or the process tree, on CPU."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.engine.process_tree import SHM_DIR, all_processes, descendants, shared_memory_of
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.engine.cgroup import MemoryCgroup
    from kvplan.engine.plan import LaunchPlan

INTERVAL_S: Final = 0.25
_MAX_SAMPLES: Final = 20_000


class MemorySampler:
    """Samples until stopped; where no kernel limit could be had, it is also what notices that a limit is passed."""

    def __init__(self, plan: LaunchPlan, guard_pid: int, cgroup: MemoryCgroup | None) -> None:
        self.peak_bytes: int | None = None
        self.over_limit: str | None = None
        """What happened, when the process tree grew over the card that has no cgroup."""
        self._plan = plan
        self._guard_pid = guard_pid
        self._cgroup = cgroup
        self._samples: list[tuple[float, int]] = []
        self._start = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvplan-memory", daemon=True)
        self._thread.start()

    def pids(self) -> list[int]:
        """Live processes behind the guard."""
        return [process.pid for process in descendants(self._guard_pid, all_processes())]

    def sample_now(self) -> int | None:
        """Bytes in use at this moment; None where nothing can tell."""
        if self._plan.device == "cuda":
            return gpu_bytes_of(self.pids())
        if self._cgroup is not None:
            return self._cgroup.used_bytes()
        return tree_bytes(self.pids())

    def samples(self) -> list[tuple[float, int]]:
        """(seconds since the start, bytes)."""
        return list(self._samples)

    def stop(self) -> None:
        """Take no more samples."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            used = self.sample_now()
            if used is None:
                continue
            self._samples.append((time.monotonic() - self._start, used))
            if len(self._samples) > _MAX_SAMPLES:
                self._samples = self._samples[::2]
            self.peak_bytes = max(used, self.peak_bytes or 0)
            limit = self._plan.card_bytes
            if self._plan.device == "cpu" and self._cgroup is None and limit is not None and used > limit:
                self.over_limit = f"vLLM's processes used {format_gib(used)} of a card of {format_gib(limit)}"


def tree_bytes(pids: Iterable[int]) -> int:
    """Memory of a process tree, each shared segment counted once, file pages (which can be dropped) not at all."""
    pids = list(pids)
    anonymous = sum(_anonymous_bytes(pid) for pid in pids)
    return anonymous + sum(_allocated_bytes(SHM_DIR / name) for name in shared_memory_of(pids))


def _anonymous_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def _allocated_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def gpu_bytes_of(pids: Iterable[int]) -> int | None:
    """GPU memory of these processes on all cards, as NVML tells it."""
    import pynvml  # noqa: PLC0415

    wanted = set(pids)
    total = 0
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid in wanted and process.usedGpuMemory is not None:
                total += process.usedGpuMemory
    return total
