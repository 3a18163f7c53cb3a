"""Processes that we started: which they are, what shared memory they hold, and how to end all of them.

Standard library only and cheap to import: the guard process uses it. A process is named by its pid *and* its
start time, because pids are reused.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LAUNCH_ID_VARIABLE: Final = "KVPLAN_LAUNCH_ID"
"""Set for every process of a launch, so that it can be known again when its parent is gone."""

SHM_DIR: Final = Path("/dev/shm")  # noqa: S108  the place itself, no temporary file of ours
_MAPPED: Final = re.compile(rb" (\d+) +/dev/shm/")
"""A line of /proc/PID/maps: the inode of a file under /dev/shm."""
_OURS: Final = ("psm_", "sem.", "nccl-", "torch_", "vllm")
"""How the segments are called that vLLM and its libraries make."""
_TRACKER_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    """Clock ticks after boot: with the pid, the identity of the process."""
    zombie: bool

    @property
    def identity(self) -> tuple[int, int]:
        """What tells this process from a later one of the same pid."""
        return self.pid, self.start_ticks


def read_process(pid: int) -> Process | None:
    """The process, or None when there is none (any more)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command, in parentheses, may itself contain spaces and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        zombie=fields[0] in {b"Z", b"X"},
    )


def all_processes() -> dict[int, Process]:
    """Every process that /proc shows."""
    found = (read_process(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(root: int, processes: dict[int, Process]) -> list[Process]:
    """Children, grandchildren and so on of a pid, zombies left out.

    With a subreaper as root that is everything it ever started that still runs, whoever died in between.
    """
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            queue.append(child.pid)
            if not child.zombie:
                found.append(child)
    return found


def left_of_launch(
    launch_id: str, remembered: Iterable[tuple[int, int]], processes: dict[int, Process] | None = None
) -> list[Process]:
    """Live processes of a launch whose guard is gone.

    A process belongs to it if its pid and start time were remembered, if it shares a session with such a
    process, if it descends from one, or if its environment carries the launch's id. (vLLM renames its
    processes, which overwrites the environment that /proc shows: the last test alone would miss them.)
    """
    processes = all_processes() if processes is None else processes
    known = set(remembered)
    alive = [process for process in processes.values() if process.identity in known]
    sessions = {process.session for process in alive} - {os.getsid(0)}
    found = {process.pid: process for process in alive}
    for process in processes.values():
        if process.session in sessions or _carries_id(process.pid, launch_id):
            found[process.pid] = process
    for process in list(found.values()):
        found |= {child.pid: child for child in descendants(process.pid, processes)}
    found.pop(os.getpid(), None)
    return [process for process in found.values() if not process.zombie]


def _carries_id(pid: int, launch_id: str) -> bool:
    try:
        return f"{LAUNCH_ID_VARIABLE}={launch_id}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def shared_memory_of(pids: Iterable[int]) -> set[str]:
    """Names under /dev/shm that these processes hold (message queues, semaphores, NCCL segments).

    Mapped, or open and not mapped yet: a process can be stopped in between. Found by inode: glibc makes a
    semaphore under another name and renames it, and maps show the first one.
    """
    inodes: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            inodes.update(map(int, _MAPPED.findall(Path(f"/proc/{pid}/maps").read_bytes())))
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as handles:
            inodes.update(inode for handle in handles if (inode := _segment_of(handle)) is not None)
    if not inodes:
        return set()
    with os.scandir(SHM_DIR) as entries:
        return {entry.name for entry in entries if entry.inode() in inodes and entry.name.startswith(_OURS)}


def _segment_of(handle: os.DirEntry[str]) -> int | None:
    """The inode of an open file under /dev/shm."""
    with contextlib.suppress(OSError):
        if Path(handle.path).readlink().is_relative_to(SHM_DIR):
            return handle.stat().st_ino
    return None


def unlink_shared_memory(names: Iterable[str]) -> list[str]:
    """Remove the segments that are still there.

    Returns:
        The names that were removed.
    """
    removed = []
    for name in names:
        with contextlib.suppress(OSError):
            (SHM_DIR / name).unlink()
            removed.append(name)
    return removed


def send(process: Process, signal_number: int) -> None:
    """Signal a process, if it still is the one that we know."""
    current = read_process(process.pid)
    if current is not None and current.identity == process.identity:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal_number)


def is_resource_tracker(process: Process) -> bool:
    """Python's helper that unlinks the shared memory of dead processes, and goes when all are gone."""
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill_all(
    members: Callable[[], list[Process]],
    *,
    timeout_s: float,
    before_kill: Callable[[list[Process]], object] = lambda _: None,
    reap: Callable[[], None] = lambda: None,
) -> list[Process]:
    """SIGKILL until `members()` is empty.

    They are stopped first, so that none can fork or unmap in between. Python's resource trackers get a moment
    to do their work when the others are dead.

    Args:
        members: Who is to go, asked again and again.
        timeout_s: When to give up (a process in a driver call can't die).
        before_kill: Called with the stopped processes, to read what dies with them.
        reap: Collects our dead children.

    Returns:
        Who is still there.
    """
    deadline = time.monotonic() + timeout_s

    def others() -> list[Process]:
        return [process for process in members() if not is_resource_tracker(process)]

    _kill(others, deadline, before_kill, reap)
    _wait(members, min(deadline, time.monotonic() + _TRACKER_GRACE_S), reap)
    return _kill(members, deadline, before_kill, reap)


def _kill(
    members: Callable[[], list[Process]],
    deadline: float,
    before_kill: Callable[[list[Process]], object],
    reap: Callable[[], None],
) -> list[Process]:
    while True:
        frozen: dict[tuple[int, int], Process] = {}
        while fresh := [process for process in members() if process.identity not in frozen]:
            for process in fresh:
                send(process, signal.SIGSTOP)
                frozen[process.identity] = process
        if not frozen:
            return []
        before_kill(list(frozen.values()))
        for process in frozen.values():
            send(process, signal.SIGKILL)
        left = _wait(members, min(deadline, time.monotonic() + 1), reap)
        if not left or time.monotonic() >= deadline:
            return left


def _wait(members: Callable[[], list[Process]], deadline: float, reap: Callable[[], None]) -> list[Process]:
    while True:
        reap()
        left = members()
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.02)
