"""The cards of this machine, through NVML: which they are, how much is free, who uses them."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.catalog.names import gpu_key
from kvplan.memory.hardware import GpuSpec
from kvplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_VGPU_MODE: Final = 2  # NVML_GPU_VIRTUALIZATION_MODE_VGPU
_UNSURE_RESERVE: Final = 150 * MIB
"""How far torch's total is from NVML's total less NVML's reserve, at most, in the profiles' readings."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a card."""

    pid: int
    used_bytes: int | None
    """None where the driver does not say (other users' processes, WSL2)."""


@dataclass(frozen=True, slots=True)
class DetectedGpu:
    """One card (or MIG slice) of this machine, now."""

    index: int
    uuid: str | None
    name: str
    """As NVML prints it."""
    total_bytes: int
    """NVML's total: what nvidia-smi prints, a little more than torch sees."""
    used_bytes: int
    """In use now by anybody, without the driver's own reserve."""
    free_bytes: int
    processes: tuple[GpuProcess, ...]
    is_mig: bool
    is_vgpu: bool
    profile_id: str | None
    """The profile that name and memory match; None for slices and unknown cards."""
    spec: GpuSpec
    """The profile's card, or one made of what NVML says."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """What NVML says of one card or slice. Sizes in bytes."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    reserved_bytes: int
    """The driver's own share, which torch does not see; 0 where an old driver does not say."""
    uuid: str | None = None
    compute_capability: tuple[int, int] | None = None
    processes: tuple[GpuProcess, ...] = ()
    is_mig: bool = False
    is_vgpu: bool = False


def read_nvml() -> list[NvmlReading]:
    """All cards of this machine that CUDA_VISIBLE_DEVICES leaves; empty without an NVIDIA driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001  no library, no driver, or one that does not answer: there is no card
        return []
    try:
        readings: list[NvmlReading] = []
        for i in range(pynvml.nvmlDeviceGetCount()):
            readings += _readings(pynvml, i)
        return [reading for reading in readings if _is_visible(reading)]
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def described(
    reading: NvmlReading, profiles: Sequence[Mapping[str, Any]], specs: Sequence[GpuSpec]
) -> DetectedGpu:
    """A reading with the profile that it matches by name *and* memory (cards of one name differ in it).

    Args:
        reading: what NVML says.
        profiles: all cards' profiles.
        specs: the same cards as the memory model knows them, in the same order.
    """
    whole_card = not (reading.is_mig or reading.is_vgpu)
    matched = [
        (profile, spec)
        for profile, spec in zip(profiles, specs, strict=True)
        if whole_card and _is_of(reading, profile, spec)
    ]
    spec = matched[0][1] if matched else _spec_from(reading)
    notes = []
    if reading.is_mig:
        notes.append("a MIG slice: its memory is what NVML says of the slice")
    if reading.is_vgpu:
        notes.append("a vGPU: its memory is what NVML says of the virtual card, and it may be shared")
    if _under_wsl():
        notes.append("WSL2: Windows and its desktop hold memory of the card that no process list shows")
    return DetectedGpu(
        index=reading.index,
        uuid=reading.uuid,
        name=reading.name,
        total_bytes=reading.total_bytes,
        used_bytes=max(0, reading.used_bytes),
        free_bytes=max(0, reading.total_bytes - reading.reserved_bytes - reading.used_bytes),
        processes=reading.processes,
        is_mig=reading.is_mig,
        is_vgpu=reading.is_vgpu,
        profile_id=matched[0][0]["id"] if matched else None,
        spec=dataclasses.replace(spec, notes=(*spec.notes, *notes)),
        notes=tuple(notes),
    )


def _is_of(reading: NvmlReading, profile: Mapping[str, Any], spec: GpuSpec) -> bool:
    names = {gpu_key(name) for name in (*profile.get("nvml_names", ()), profile["name"])}
    if gpu_key(reading.name) not in names:
        return False
    nvidia_smi = profile.get("nvidia_smi_mib")
    expected = nvidia_smi["value"] * MIB if nvidia_smi else spec.total_bytes
    # 1/16 is what ECC takes or gives back; other sizes of a card differ by a quarter and more.
    return abs(reading.total_bytes - expected) <= expected / 14


def _spec_from(reading: NvmlReading) -> GpuSpec:
    visible = reading.total_bytes - reading.reserved_bytes
    return GpuSpec(
        id="mig-slice" if reading.is_mig else "vgpu" if reading.is_vgpu else "detected",
        name=reading.name,
        total_bytes=visible,
        total_bytes_low=visible - _UNSURE_RESERVE,
        total_bytes_high=reading.total_bytes,
        compute_capability=reading.compute_capability,
        total_is_derived=True,
        sources={"total_bytes": "NVML's total less the driver's reserve"},
    )


def _readings(pynvml: Any, i: int) -> Iterator[NvmlReading]:
    """The card, or in MIG mode its slices."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(i)
    if _asked(pynvml, pynvml.nvmlDeviceGetMigMode, handle, default=(0, 0))[0]:
        slices = _asked(pynvml, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle, default=0)
        for j in range(slices):
            with suppress(pynvml.NVMLError):
                yield _reading(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, j), i, handle)
        return
    yield _reading(pynvml, handle, i, None)


def _reading(pynvml: Any, handle: Any, i: int, parent: Any) -> NvmlReading:
    total, used, reserved = _memory(pynvml, handle)
    mode = _asked(pynvml, pynvml.nvmlDeviceGetVirtualizationMode, parent or handle, default=0)
    return NvmlReading(
        index=i,
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        total_bytes=total,
        used_bytes=used,
        reserved_bytes=reserved,
        uuid=_text(_asked(pynvml, pynvml.nvmlDeviceGetUUID, handle, default="")) or None,
        compute_capability=_asked(
            pynvml, pynvml.nvmlDeviceGetCudaComputeCapability, parent or handle, default=None
        ),
        processes=_processes(pynvml, handle),
        is_mig=parent is not None,
        is_vgpu=mode == _VGPU_MODE,
    )


def _memory(pynvml: Any, handle: Any) -> tuple[int, int, int]:
    """Total, used and reserved bytes. Newer drivers count the reserve apart from what is used."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        memory = _asked(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle, default=None)
    if memory is None:
        # Unified memory (GB10, Jetson): NVML has no figure, the machine's memory is the card's.
        return (*_machine_memory(), 0)
    return memory.total, memory.used, getattr(memory, "reserved", 0)


def _machine_memory() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    return total, total - os.sysconf("SC_AVPHYS_PAGES") * page


def _processes(pynvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found: dict[int, int | None] = {}
    for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        for process in _asked(pynvml, ask, handle, default=()):
            found.setdefault(process.pid, process.usedGpuMemory)
    return tuple(GpuProcess(pid, used) for pid, used in sorted(found.items()))


def _asked(pynvml: Any, ask: Any, handle: Any, *, default: Any) -> Any:
    """An answer that some cards do not have, or drivers older than the newest form of the question."""
    try:
        return ask(handle)
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return default


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _is_visible(reading: NvmlReading) -> bool:
    """Whether CUDA_VISIBLE_DEVICES lets CUDA see it, by index or by the start of its UUID."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return True
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    return any(
        name == str(reading.index) or (reading.uuid is not None and reading.uuid.startswith(name))
        for name in names
    )


def _under_wsl() -> bool:
    try:
        return "microsoft" in Path("/proc/version").read_text(encoding="utf-8").lower()
    except OSError:
        return False
