"""Memory cgroups: made, read and removed, of both versions; and memory counted without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvplan.engine.cgroup import MemoryCgroup
from kvplan.engine.memory_sampler import tree_bytes
from kvplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_BYTES = 64 * MIB


@pytest.fixture
def cgroup() -> Iterator[MemoryCgroup]:
    made = MemoryCgroup.create(LIMIT_BYTES + 17)
    if made is None:
        pytest.skip("no memory cgroup can be made here")
    yield made
    made.remove()
    assert not made.path.exists()


def run_in(cgroup: MemoryCgroup, code: str) -> int:
    """The exit status of a Python that is in the cgroup from its start."""
    enter = f"open({str(cgroup.procs_file)!r}, 'w').write(str(__import__('os').getpid()))\n"
    return subprocess.run([sys.executable, "-I", "-S", "-c", enter + code], check=False).returncode


def test_the_limit_is_whole_pages(cgroup: MemoryCgroup) -> None:
    assert cgroup.limit_bytes == LIMIT_BYTES
    assert (cgroup.used_bytes(), cgroup.oom_kill_count()) == (0, 0)


def test_more_memory_than_the_limit_is_a_counted_kill(cgroup: MemoryCgroup) -> None:
    assert run_in(cgroup, "x = bytearray(20 << 20)") == 0
    assert cgroup.oom_kill_count() == 0
    assert run_in(cgroup, "x = bytearray(b'1') * (128 << 20)") == -9
    assert cgroup.oom_kill_count() == 1


def test_page_cache_is_not_memory_in_use(cgroup: MemoryCgroup, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(os.urandom(40 * MIB))
    code = (
        f"open({str(cgroup.procs_file)!r}, 'w').write(str(__import__('os').getpid()))\n"
        "x = bytearray(b'1') * (30 << 20)\n"
        f"f = open({str(tmp_path / 'weights')!r}, 'rb')\nwhile f.read(1 << 20): pass\n"
        "print(flush=True); import time; time.sleep(9)"
    )
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = cgroup.used_bytes()
        process.kill()
    assert used is not None
    assert 30 * MIB < used < 45 * MIB


def test_a_cgroup_that_is_gone_tells_nothing(cgroup: MemoryCgroup) -> None:
    cgroup.remove()
    assert (cgroup.used_bytes(), cgroup.oom_kill_count()) == (None, None)


def test_abandoned_cgroups_of_dead_kvplans_are_swept(cgroup: MemoryCgroup) -> None:
    dead = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    dead.wait()
    abandoned = cgroup.path.with_name(f"kvplan-{dead.pid}-0000")
    abandoned.mkdir()
    another = MemoryCgroup.create(LIMIT_BYTES)
    assert another is not None
    another.remove()
    assert not abandoned.exists()
    assert cgroup.path.exists()  # its kvplan, this test, lives


def test_the_files_of_version_2(tmp_path: Path) -> None:
    # Names: Linux Documentation/admin-guide/cgroup-v2.rst.
    (tmp_path / "memory.stat").write_text("anon 1000\nfile 5000\nkernel 30\nshmem 200\ninactive_file 4000\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n")
    cgroup = MemoryCgroup(tmp_path, version=2, limit_bytes=LIMIT_BYTES)
    assert cgroup.used_bytes() == 1230
    assert cgroup.oom_kill_count() == 2


def test_shared_memory_of_a_tree_is_counted_once() -> None:
    segment = Path("/dev/shm") / f"kvplan-test-{os.getpid()}"  # noqa: S108  shared memory is what is tested
    code = (
        f"import mmap, time; f = open({str(segment)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0)\n"
        "for i in range(0, len(m), 4096): m[i] = 1\nprint(flush=True); time.sleep(30)"
    )
    try:
        segment.write_bytes(bytes(64 * MIB))
        command = [sys.executable, "-I", "-S", "-c", code]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        together = tree_bytes(process.pid for process in processes)
        for process in processes:
            with process:
                process.kill()
    finally:
        segment.unlink()
    assert 64 * MIB <= together < 90 * MIB  # and two bare Pythons


def test_a_process_that_is_gone_has_no_memory() -> None:
    gone = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    gone.wait()
    assert tree_bytes([gone.pid]) == 0
