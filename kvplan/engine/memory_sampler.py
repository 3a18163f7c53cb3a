"""Memory of a running vLLM, sampled in a thread: NVML on a GPU; the cgroup, or the process tree, on CPU."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.engine import gpu
from kvplan.engine.process_tree import all_processes, descendants
from kvplan.units import KIB, format_gib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvplan.engine.cgroup import MemoryCgroup
    from kvplan.engine.plan import LaunchPlan

_INTERVAL_S: Final = 0.25
_MAX_SAMPLES: Final = 20_000
_MAX_SHARE: Final = 0.05
"""Of one core, for sampling."""
_SHARED_WORTH_DIVIDING_KIB: Final = 32 * 1024
_LOST_AFTER: Final = 3
"""Failed questions to NVML in a row after which the card counts as gone."""


class MemorySampler:
    """Samples until stopped; without a kernel limit it also ends a vLLM that grows over its card."""

    def __init__(
        self,
        plan: LaunchPlan,
        guard_pid: int,
        cgroup: MemoryCgroup | None,
        on_over_limit: Callable[[], None] = lambda: None,
    ) -> None:
        self.peak_bytes: int | None = None
        self.over_limit: str | None = None
        """What happened, when the process tree outgrew a card that has no cgroup."""
        self.gpu_lost: str | None = None
        """What NVML said, when a card stopped answering."""
        self._plan = plan
        self._guard_pid = guard_pid
        self._cgroup = cgroup
        self._on_over_limit = on_over_limit
        self._samples: list[tuple[float, int]] = []
        self._every = 1
        self._start = time.monotonic()
        self._stop = threading.Event()
        self._baseline = self._gpu_used()
        self._thread = threading.Thread(target=self._run, name="kvplan-memory", daemon=True)
        self._thread.start()

    def pids(self) -> list[int]:
        """Live processes behind the guard."""
        return [process.pid for process in descendants(self._guard_pid, all_processes())]

    def sample_now(self) -> int | None:
        """Bytes in use at this moment; None where nothing can tell."""
        if self._plan.device == "cuda":
            with contextlib.suppress(gpu.GpuLostError):
                return self._gpu_bytes()
            return None
        if self._cgroup is not None:
            return self._cgroup.used_bytes()
        return tree_bytes(self.pids())

    def samples(self) -> list[tuple[float, int]]:
        """(seconds since the start, bytes), oldest first; thinned out on a long run."""
        return list(self._samples)

    def stop(self) -> None:
        """Take no more samples."""
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        failures = count = 0
        pause_s = _INTERVAL_S
        while not self._stop.wait(pause_s):
            begin = time.thread_time()
            try:
                used = self._gpu_bytes() if self._plan.device == "cuda" else self.sample_now()
                failures = 0
            except gpu.GpuLostError as error:
                used = None
                failures += 1
                # Only a card that did answer can be lost.
                if failures >= _LOST_AFTER and self.peak_bytes is not None:
                    self.gpu_lost = f"the GPU does not answer any more: {error}"
            pause_s = max(_INTERVAL_S, (time.thread_time() - begin) / _MAX_SHARE)
            if used is None:
                continue
            self.peak_bytes = max(used, self.peak_bytes or 0)
            if count % self._every == 0:
                self._keep(used)
            count += 1
            self._enforce(used)

    def _keep(self, used: int) -> None:
        self._samples.append((time.monotonic() - self._start, used))
        if len(self._samples) > _MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._every *= 2

    def _enforce(self, used: int) -> None:
        limit = self._plan.card_bytes
        if self._plan.device == "cuda" or self._cgroup is not None or limit is None or used <= limit:
            return
        if self.over_limit is None:
            self.over_limit = f"vLLM's processes used {format_gib(used)} of a card of {format_gib(limit)}"
            self._on_over_limit()

    def _gpu_bytes(self) -> int:
        held = gpu.bytes_held_by(self.pids(), self._plan.gpu_uuids)
        if held is not None:
            return held
        # NVML sees other pids than ours (a container): all that came onto the cards since the start.
        return max(0, self._gpu_used() - self._baseline)

    def _gpu_used(self) -> int:
        if self._plan.device != "cuda":
            return 0
        with contextlib.suppress(gpu.GpuLostError):
            return sum(card.used_bytes for card in gpu.gpus(self._plan.gpu_uuids))
        return 0


def tree_bytes(pids: Iterable[int]) -> int:
    """Memory of a process tree: each shared page once, file pages (which can be dropped) not at all."""
    anonymous = shared = 0
    sharers: list[int] = []
    for pid in pids:
        status = _kib_fields(Path(f"/proc/{pid}/status"))
        anonymous += status.get("RssAnon:", 0)
        shared += status.get("RssShmem:", 0)
        sharers += [pid] if status.get("RssShmem:") else []
    if shared > _SHARED_WORTH_DIVIDING_KIB:
        # Among n processes each bears an nth. The kernel walks all pages for that: 20 ms a GiB.
        shared = sum(_kib_fields(Path(f"/proc/{pid}/smaps_rollup")).get("Pss_Shmem:", 0) for pid in sharers)
    return (anonymous + shared) * KIB


def _kib_fields(path: Path) -> dict[str, int]:
    """`Name:  123 kB` lines; none of a process that is gone."""
    with contextlib.suppress(OSError):
        words = (line.split() for line in path.read_text().splitlines())
        return {word[0]: int(word[1]) for word in words if len(word) == 3 and word[2] == "kB"}
    return {}
