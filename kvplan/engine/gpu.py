"""GPUs as NVML tells of them: which there are, what a process holds, and whether memory is free again.

Every answer may be missing: NVML is not everywhere, and a card can fall off the bus in the middle of a run.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_FREE_TOLERANCE_BYTES = 64 * MIB
_POLL_S = 0.25


class GpuLostError(Exception):
    """NVML no longer answers for a card that was there."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One card now."""

    uuid: str
    name: str
    total_bytes: int
    used_bytes: int


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, initialised; GpuLostError for whatever it refuses.

    Raises:
        GpuLostError: no driver, no card, or a card that disappeared.
    """
    try:
        import pynvml
    except ImportError as error:
        raise GpuLostError("nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise GpuLostError(f"NVML: {error}") from error


def gpus(uuids: Sequence[str] = ()) -> list[GpuMemory]:
    """The cards of these UUIDs, or all that CUDA_VISIBLE_DEVICES shows.

    Raises:
        GpuLostError: one of them does not answer (any more).
    """
    with _nvml() as nvml:
        names = list(uuids) or _visible() or [str(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [_read(nvml, _handle(nvml, name)) for name in names]


def bytes_held_by(pids: Iterable[int], uuids: Sequence[str] = ()) -> int | None:
    """GPU memory of these processes on these cards.

    None if NVML lists none of them: in a container it sees the host's pids, not ours.

    Raises:
        GpuLostError: a card does not answer.
    """
    wanted = set(pids)
    held: list[int] = []
    with _nvml() as nvml:
        for card in gpus(uuids):
            handle = nvml.nvmlDeviceGetHandleByUUID(card.uuid)
            try:
                running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except nvml.NVMLLibraryMismatchError:  # a driver older than the newest form of this question
                continue
            held += [int(p.usedGpuMemory) for p in running if p.pid in wanted and p.usedGpuMemory is not None]
    return sum(held) if held else None


def wait_until_free(
    before: Sequence[GpuMemory], *, timeout_s: float, sleep: Callable[[float], None] = time.sleep
) -> int:
    """Wait until the cards hold no more than `before` (and a little), as they were at the start.

    The driver gives memory back a moment after the process is gone; the next start would be refused, or sized
    too small.

    Returns:
        Bytes that are still held beyond that when the time is up; 0 if all is free.

    Raises:
        GpuLostError: a card does not answer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        now = {card.uuid: card.used_bytes for card in gpus([card.uuid for card in before])}
        excess = sum(max(0, now[card.uuid] - card.used_bytes - _FREE_TOLERANCE_BYTES) for card in before)
        if excess == 0 or time.monotonic() >= deadline:
            return excess
        sleep(_POLL_S)


def _visible() -> list[str]:
    return [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]


def _handle(nvml: Any, name: str) -> Any:
    """By UUID, or by index in the order of PCI addresses (which our launches have CUDA use too)."""
    return (
        nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else nvml.nvmlDeviceGetHandleByUUID(name)
    )


def _read(nvml: Any, handle: Any) -> GpuMemory:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    return GpuMemory(
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=name if isinstance(name, str) else name.decode(),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
    )
