"""Who is waited for: a kvplan that lives, or nobody by name; told again when another took over."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvplan.engine.lock import EngineBusyError, device_lock, lock_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVPLAN_LOCK_DIR", str(tmp_path))
    return lock_path()


@pytest.fixture
def foreign(lock: Path) -> Iterator[int]:
    """The lock as `flock FILE command` would hold it: nothing is written into the file."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield fd
    os.close(fd)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_foreign_holder_does_not_go_by_the_name_of_the_kvplan_before_it(lock: Path) -> None:
    with device_lock([None], wait_s=0):
        assert lock.read_text() == f"pid {os.getpid()}\n"
    told: list[str] = []
    with lock.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (
            pytest.raises(EngineBusyError, match="another process holds"),
            device_lock([None], wait_s=0.1, on_wait=told.append),
        ):
            pytest.fail("two engines on one device")

    assert told == [f"waiting for the engine of another process to end ({lock})"]


def test_a_pid_that_no_longer_lives_is_not_named(foreign: int) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    os.pwrite(foreign, f"pid {gone.pid}\n".encode(), 0)

    with pytest.raises(EngineBusyError, match="another process holds"), device_lock([None], wait_s=0):
        pytest.fail("two engines on one device")


def test_the_next_holder_is_told_when_it_took_over(
    lock: Path, foreign: int, sleeper: subprocess.Popen[bytes]
) -> None:
    os.pwrite(foreign, f"pid {sleeper.pid}\n".encode(), 0)
    told: list[str] = []

    def on_wait(text: str) -> None:
        if not told:
            os.ftruncate(foreign, 0)
            os.pwrite(foreign, f"pid {os.getpid()}\n".encode(), 0)
        told.append(text)

    with pytest.raises(EngineBusyError), device_lock([None], wait_s=0.3, on_wait=on_wait):
        pytest.fail("two engines on one device")

    assert told == [
        f"waiting for the engine of pid {pid} to end ({lock})" for pid in (sleeper.pid, os.getpid())
    ]
