"""A memory cgroup that stands for a card on CPU: the kernel enforces its size and counts its kills."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvplan.engine.guard import remove_cgroup

_V1_ROOT: Final = Path("/sys/fs/cgroup/memory")
_V2_ROOT: Final = Path("/sys/fs/cgroup")
_PREFIX: Final = "kvplan-"


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """One cgroup of ours, of version 1 or 2."""

    path: Path
    version: int
    limit_bytes: int

    @classmethod
    def create(cls, limit_bytes: int) -> MemoryCgroup | None:
        """A new cgroup of that size below our own or at the top, or None where none can be made."""
        limit_bytes = limit_bytes // os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PAGE_SIZE")
        for version, parent in _possible_parents():
            _remove_abandoned(parent)
            cgroup = cls(parent / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}", version, limit_bytes)
            try:
                cgroup.path.mkdir()
            except OSError:
                continue
            try:
                cgroup._set_limit()
                cgroup._try_to_enter()
            except OSError:
                cgroup.remove()
                continue
            return cgroup
        return None

    @property
    def procs_file(self) -> Path:
        """A pid written here moves into the cgroup; the children it starts from then on are in it too."""
        return self.path / "cgroup.procs"

    def used_bytes(self) -> int | None:
        """Memory that the kernel can't take back: all that is charged but page cache; None once it is gone.

        Charged memory less cache would be wrong for a moment after a file was read: the kernel's figures for
        the two are not of the same instant. So what is no cache is added up.
        """
        try:
            stat = _read_counters(self.path / "memory.stat")
            if self.version == 1:
                kernel = int((self.path / "memory.kmem.usage_in_bytes").read_text())
                return stat["total_rss"] + stat["total_shmem"] + kernel
            return stat["anon"] + stat["shmem"] + stat.get("kernel", stat.get("slab", 0))
        except (OSError, KeyError, ValueError):
            return None

    def oom_kill_count(self) -> int | None:
        """How many processes of the cgroup the kernel has killed for memory; None once it is gone."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        try:
            return _read_counters(self.path / name).get("oom_kill")
        except (OSError, ValueError):
            return None

    def remove(self) -> None:
        """Remove it; its processes must be gone."""
        remove_cgroup(self.path)

    def _try_to_enter(self) -> None:
        """Let a process in: the right to make a cgroup does not bring the right to move into it.

        Raises:
            OSError: it is refused.
        """
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as cat:
            self.procs_file.write_text(str(cat.pid))

    def _set_limit(self) -> None:
        if self.version == 1:
            (self.path / "memory.limit_in_bytes").write_text(str(self.limit_bytes))
            limit_with_swap = self.path / "memory.memsw.limit_in_bytes"
        else:
            (self.path / "memory.max").write_text(str(self.limit_bytes))
            limit_with_swap = self.path / "memory.swap.max"
        # A card does not swap. Kernels without swap accounting have no such file.
        with contextlib.suppress(OSError):
            limit_with_swap.write_text(str(self.limit_bytes) if self.version == 1 else "0")


def _remove_abandoned(parent: Path) -> None:
    """Remove empty cgroups of kvplans that were killed before they could start anything."""
    for path in parent.glob(f"{_PREFIX}*"):
        owner = path.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(OSError):  # not empty: someone's guard is still at work
                path.rmdir()


def _possible_parents() -> list[tuple[int, Path]]:
    """Where a child may be made: below our own cgroup or at the top, in version 2 beside it too.

    In version 2 a cgroup that holds processes can't hand memory to children: our own will rarely do.
    """
    parents: list[tuple[int, Path]] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        relative = own.lstrip("/")
        if "memory" in controllers.split(","):
            parents += [(1, _V1_ROOT / relative), (1, _V1_ROOT)]
        elif not controllers:
            candidates = [(_V2_ROOT / relative), (_V2_ROOT / relative).parent, _V2_ROOT]
            parents += [(2, parent) for parent in candidates if _hands_out_memory(parent)]
    return [(version, parent) for version, parent in parents if parent.is_dir()]


def _hands_out_memory(parent: Path) -> bool:
    with contextlib.suppress(OSError):
        return "memory" in (parent / "cgroup.subtree_control").read_text().split()
    return False


def _read_counters(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
