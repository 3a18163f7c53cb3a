"""One engine at a time on a device: a file lock that dies with its owner, and clean-up after a killed one.

The guard of a launch inherits the lock, so the device is free only when the launch's last process is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.engine.guard import KILL_TIMEOUT_S, LaunchState, boot_id, remove_remains
from kvplan.engine.process_tree import kill_all, left_of_launch
from kvplan.errors import EngineError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvplan.engine.process_tree import Process

DIRECTORY_VARIABLE: Final = "KVPLAN_LOCK_DIR"
"""Where locks lie. /tmp, whatever TMPDIR says: everyone on this machine must mean the same file."""
_POLL_S: Final = 0.02
"""Short, so that one who waits gets the device between two launches of one who has many."""


class EngineBusyError(EngineError):
    """Another engine runs on the device, and waiting was not wanted (or not that long)."""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The locks of one launch's devices."""

    fds: tuple[int, ...]
    """To be inherited by the guard."""
    state_path: Path
    """Where the guard notes what a later run would have to clean up."""


def lock_path(device: str | None = None) -> Path:
    """The lock file of a device: a GPU's UUID, or None for the CPU (and GPUs that nobody can tell apart)."""
    directory = Path(os.environ.get(DIRECTORY_VARIABLE, "/tmp"))  # noqa: S108  shared on purpose
    return directory / (f"kvplan-engine-{device}.lock" if device else "kvplan-engine.lock")


@contextlib.contextmanager
def device_lock(
    devices: Sequence[str | None],
    *,
    wait_s: float,
    on_wait: Callable[[str], None] = lambda _: None,
    on_clean_up: Callable[[str], None] = lambda _: None,
) -> Iterator[HeldLock]:
    """Hold the devices; whatever a killed owner left on them is ended first.

    Args:
        devices: GPU UUIDs, or (None,) for the CPU. Taken in sorted order: two launches can't wait for each
            other.
        wait_s: How long to wait for another launch's end; 0 refuses at once.
        on_wait: Told who is being waited for, and again when another took the device over.
        on_clean_up: Told what was left by a killed launch and is gone now.

    Raises:
        EngineBusyError: still held after `wait_s`.
        InputError: the lock file can't be opened.
    """
    deadline = time.monotonic() + wait_s
    paths = [lock_path(device) for device in sorted(set(devices), key=lambda name: name or "")]
    with contextlib.ExitStack() as stack:
        fds = []
        for path in paths:
            fd = _open(path)
            stack.callback(os.close, fd)
            _acquire(fd, path, deadline, on_wait)
            # While it is still ours: who takes it without writing into it must not go by our name.
            stack.callback(_forget, fd)
            fds.append(fd)
        states = [_state_path(path) for path in paths]
        for state_path in states:
            _clean_up(state_path, on_clean_up)
        yield HeldLock(tuple(fds), states[0])


def clean_up_after(state_path: Path) -> list[int]:
    """End what a launch left whose guard is gone, by the guard's notes.

    Returns:
        The pids that were ended.
    """
    state = LaunchState.read(state_path)
    if state is None:
        return []
    ended: set[int] = set()
    if state.boot_id == boot_id():

        def note(frozen: list[Process]) -> None:
            ended.update(process.pid for process in frozen)
            state.note_shared_memory(frozen)

        kill_all(
            lambda: left_of_launch(state.launch_id, state.processes),
            timeout_s=KILL_TIMEOUT_S,
            before_kill=note,
        )
    remove_remains(state)
    state_path.unlink(missing_ok=True)
    return sorted(ended)


def _clean_up(state_path: Path, on_clean_up: Callable[[str], None]) -> None:
    existed = LaunchState.read(state_path) is not None
    ended = clean_up_after(state_path)
    if existed:
        what = f"ended {len(ended)} processes" if ended else "removed files"
        on_clean_up(f"{what} that a killed launch had left")


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        hint = f"{DIRECTORY_VARIABLE} names another folder for locks"
        raise InputError(f"{path}: {error.strerror}", hint) from error
    # Against the umask: another user of the machine must be able to wait for us.
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o666)
    return fd


def _acquire(fd: int, path: Path, deadline: float, on_wait: Callable[[str], None]) -> None:
    told = seen = None
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(fd)
            if time.monotonic() >= deadline:
                raise EngineBusyError(
                    f"another engine runs on this device ({holder} holds {path})",
                    "wait for its end, or stop it",
                ) from None
            # Seen twice: one that has just taken it has not written its name yet.
            if holder == seen and holder != told:
                on_wait(f"waiting for the engine of {holder} to end ({path})")
                told = holder
            seen = holder
            time.sleep(_POLL_S)
        else:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()}\n".encode(), 0)
            return


def _holder(fd: int) -> str:
    """`pid N` of the kvplan that wrote itself down, as long as it lives."""
    noted = os.pread(fd, 64, 0).decode(errors="replace").strip()
    word, _, pid = noted.partition(" ")
    is_alive = word == "pid" and pid.isascii() and pid.isdigit() and Path(f"/proc/{int(pid)}").exists()
    return noted if is_alive else "another process"


def _forget(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)


def _state_path(lock: Path) -> Path:
    return lock.with_name(f"{lock.stem}.{os.getuid()}.state.json")
