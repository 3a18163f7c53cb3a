"""The guard: a small process between kvplan and vLLM that makes sure that nothing of vLLM outlives kvplan.

kvplan holds the write end of the guard's stdin. When it closes, on purpose or because kvplan was killed, the
guard ends every process that vLLM started and removes what they left: shared memory, temporary files, the
memory cgroup. It is a child subreaper, so a process whose parent died becomes its child and can't get lost.
SIGTERM to vLLM alone is not enough: 11 to 23 s into a start it was seen to leave all of vLLM's processes
alive (0.32.0).

One JSON line on stdin says what to start; then `stop SECONDS` asks for the end with so much grace, `ready`
says that the start is over. Events go to stdout, one JSON line each. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kvplan.engine.log_file import STOP_MARK, LogFile
from kvplan.engine.process_tree import (
    LAUNCH_ID_VARIABLE,
    SHM_DIR,
    Process,
    all_processes,
    descendants,
    kill_all,
    read_process,
    send,
    shared_memory_of,
    unlink_shared_memory,
)

PR_SET_CHILD_SUBREAPER: Final = 36
KILL_TIMEOUT_S: Final = 30.0
_WATCH_INTERVAL_S: Final = 0.5
_MAPS_INTERVAL_S: Final = 2.0
_MAPS_INTERVAL_READY_S: Final = 30.0
_NEW_SEGMENT_PAUSE_S: Final = 0.02
"""From the name of a segment to the mapping of it, on a busy machine."""
_IN_CREATE_OR_MOVED_TO: Final = 0x100 | 0x80


@dataclass
class LaunchState:
    """What a later run must know to clean up after a guard that was itself killed; kept in the state file."""

    launch_id: str
    boot_id: str
    owner: tuple[int, int]
    """kvplan: pid and start ticks."""
    guard: tuple[int, int]
    tmp_dir: str
    cgroup: str | None = None
    processes: list[tuple[int, int]] = field(default_factory=list)
    shared_memory: list[str] = field(default_factory=list)
    """Names under /dev/shm that the launch's processes had mapped."""
    shared_memory_before: list[str] = field(default_factory=list)
    """Names that were there before: never ours to remove."""

    def note_shared_memory(self, members: list[Process]) -> bool:
        """Remember what these processes have mapped now; whether anything is new."""
        names = shared_memory_of(process.pid for process in members)
        new = names.difference(self.shared_memory, self.shared_memory_before)
        self.shared_memory += sorted(new)
        return bool(new)

    def write(self, path: Path) -> None:
        """Replace the file at once, so that a reader sees the old state or the new one."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self.__dict__))
        temporary.chmod(0o600)
        temporary.replace(path)

    @classmethod
    def read(cls, path: Path) -> LaunchState | None:
        """The state, or None when there is none, or none that we wrote."""
        try:
            if path.stat().st_uid != os.getuid():
                return None
            record = json.loads(path.read_text())
            state = cls(**record)
        except (OSError, ValueError, TypeError):
            return None
        state.processes = [(int(pid), int(start)) for pid, start in state.processes]
        return state


def boot_id() -> str:
    """Changes with every boot: pids of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def remove_remains(state: LaunchState) -> list[str]:
    """What is left when all processes are gone: shared memory, the temporary folder, the cgroup.

    Returns:
        The names of the shared memory segments that were removed.
    """
    removed = unlink_shared_memory(state.shared_memory)
    shutil.rmtree(state.tmp_dir, ignore_errors=True)
    if state.cgroup is not None:
        remove_cgroup(Path(state.cgroup))
    return removed


def remove_cgroup(path: Path) -> None:
    """Remove a cgroup whose processes are gone; it is busy until their last pages are uncharged."""
    for _ in range(50):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
        else:
            return


class Guard:
    """Starts one vLLM, watches its process tree, ends it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.state_path = Path(spec["state_path"])
        self.maps_interval_s = _MAPS_INTERVAL_S
        self.maps_read = 0.0
        self.leader: int | None = None
        self.leader_status: int | None = None
        self.spec = spec
        self.log = LogFile(Path(spec["log_path"]))
        owner = read_process(os.getppid())
        me = read_process(os.getpid())
        self.state = LaunchState(
            launch_id=spec["launch_id"],
            boot_id=boot_id(),
            owner=owner.identity if owner else (0, 0),
            guard=me.identity if me else (0, 0),
            # Made here, not by kvplan, which may be killed before there is a guard.
            tmp_dir=tempfile.mkdtemp(prefix="kvplan-", dir=spec["tmp_parent"]),
            cgroup=spec["cgroup"],
            shared_memory_before=[path.name for path in SHM_DIR.iterdir()] if SHM_DIR.is_dir() else [],
        )

    def start(self) -> None:
        """Start vLLM in a session of its own, inside the cgroup from its first instruction on."""
        self._save()
        cgroup_procs = self.spec["cgroup_procs"]

        def enter_cgroup() -> None:
            if cgroup_procs is not None:
                with open(cgroup_procs, "w") as file:  # noqa: PTH123  after fork: as little as can be
                    file.write(str(os.getpid()))

        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = os.open(self.spec["log_path"], flags, 0o644)
        try:
            leader = subprocess.Popen(
                self.spec["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.spec["env"]
                | {LAUNCH_ID_VARIABLE: self.state.launch_id, "TMPDIR": self.state.tmp_dir},
                cwd=self.spec["cwd"],
                start_new_session=True,
                preexec_fn=enter_cgroup,  # noqa: PLW1509  the guard has one thread
            )
        finally:
            os.close(log)
        self.leader = leader.pid
        leader.returncode = 0  # reaped by `reap`, with all the others; Popen is not to look for it
        self.watch()
        emit(event="started", pid=self.leader)

    def members(self) -> list[Process]:
        """All that vLLM started and that is alive."""
        return descendants(os.getpid(), all_processes())

    def watch(self) -> None:
        """Remember who is there, for the case that this guard dies."""
        members = self.members()
        identities = sorted(process.identity for process in members)
        changed = identities != self.state.processes
        if changed or time.monotonic() - self.maps_read > self.maps_interval_s:
            changed |= self._note_shared_memory(members)
        if changed:
            self.state.processes = identities
            self._save()
        self.log.keep_small()

    def hear_of_segments(self) -> None:
        """Somebody made a segment: see whose it is before its owner can be killed."""
        members = self.members()
        changed = self._note_shared_memory(members)
        time.sleep(_NEW_SEGMENT_PAUSE_S)
        if self._note_shared_memory(members) or changed:
            self._save()

    def reap(self) -> None:
        """Collect dead children, adopted ones too; the leader's end is told."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.leader and self.leader_status is None:
                self.leader_status = os.waitstatus_to_exitcode(status)
                emit(event="exit", status=self.leader_status)

    def end(self, grace_s: float) -> None:
        """End all: SIGTERM to vLLM's first process and `grace_s` for it, then SIGKILL to whoever is left."""
        deadline = time.monotonic() + grace_s
        self.log.append(f"{STOP_MARK} vLLM, with {grace_s:g} s to end by itself")
        members = self.members()
        self._note_shared_memory(members)
        if grace_s > 0:
            for process in members:
                if process.pid == self.leader:
                    send(process, signal.SIGTERM)
            while self.members() and self.leader_status is None and time.monotonic() < deadline:
                self.reap()
                time.sleep(0.05)
        left = kill_all(
            self.members,
            timeout_s=KILL_TIMEOUT_S,
            before_kill=self._note_shared_memory,
            reap=self.reap,
        )
        self.reap()
        self.log.close_gap()
        removed = remove_remains(self.state)
        if left:
            self.state.processes = [process.identity for process in left]
            self._save()
        else:
            self.state_path.unlink(missing_ok=True)
        emit(event="gone", left=[process.pid for process in left], shared_memory_removed=removed)

    def _note_shared_memory(self, members: list[Process]) -> bool:
        self.maps_read = time.monotonic()
        return self.state.note_shared_memory(members)

    def _save(self) -> None:
        # A full disk must not stop the guard: only the clean-up after its own violent death would know less.
        with contextlib.suppress(OSError):
            self.state.write(self.state_path)


def emit(**event: object) -> None:
    """Tell kvplan; it may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


class LineReader:
    """Whole lines from a pipe, without blocking on half of one."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.rest = b""
        self.at_end = False

    def lines(self) -> list[str]:
        """What has arrived; `at_end` is set when the other side is gone."""
        data = os.read(self.fd, 1 << 16)
        self.at_end = not data
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [line.decode() for line in whole]


def open_segment_watch() -> int | None:
    """An inotify handle that can be read when a name appears under /dev/shm; None where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if handle < 0:
        return None
    if libc.inotify_add_watch(handle, os.fsencode(SHM_DIR), _IN_CREATE_OR_MOVED_TO) < 0:
        os.close(handle)
        return None
    return handle


def main() -> None:
    """Read what to start, start it, watch until kvplan says so or is gone, end it."""
    reader = LineReader(0)
    first: list[str] = []
    while not first and not reader.at_end:
        first = reader.lines()
    if not first:
        return
    stop: list[int] = []
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    # Handlers, not SIG_IGN: an ignored signal would stay ignored in vLLM.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGHUP, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = json.loads(first[0])
    if os.getppid() != spec["owner"]:
        return  # kvplan was killed meanwhile: there is nobody to start anything for
    guard = Guard(spec)
    grace_s = 0.0
    try:
        guard.start()
        grace_s = supervise(guard, reader, wake_read, stop)
    except (OSError, subprocess.SubprocessError) as error:
        emit(event="error", message=str(error))
    finally:
        guard.end(grace_s)


def supervise(guard: Guard, reader: LineReader, wake_read: int, stop: list[int]) -> float:
    """Watch until the end is asked for.

    Returns:
        The grace for vLLM, in seconds: none if kvplan is gone.
    """
    owner = os.getppid()
    segments = open_segment_watch()
    watched = [reader.fd, wake_read, *([] if segments is None else [segments])]
    while not stop:
        readable, _, _ = select.select(watched, [], [], _WATCH_INTERVAL_S)
        if wake_read in readable:
            os.read(wake_read, 512)
        guard.reap()
        if segments is not None and segments in readable:
            os.read(segments, 1 << 16)
            guard.hear_of_segments()
        if reader.fd in readable:
            for line in reader.lines():
                if line == "ready":
                    guard.maps_interval_s = _MAPS_INTERVAL_READY_S
                elif line.startswith("stop "):
                    return float(line.removeprefix("stop "))
            if reader.at_end:
                return 0.0
        # A copy of the pipe's end may live on in a process that kvplan forked: then there is no end of file.
        if os.getppid() != owner:
            return 0.0
        guard.watch()
    return 0.0


if __name__ == "__main__":
    main()
