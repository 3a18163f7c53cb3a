"""GPUs through NVML. No card is here: NVML's own answers are scripted, its errors are its real ones."""

# ruff: noqa: D102, N802  NVML's names

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from kvplan.engine.gpu import GpuLostError, GpuMemory, bytes_held_by, gpus, wait_until_free
from kvplan.units import GIB, MIB


class Nvml:
    """Two cards, and what runs on them."""

    NVMLError = pynvml.NVMLError
    NVMLLibraryMismatchError = pynvml.NVMLLibraryMismatchError

    def __init__(self) -> None:
        self.used = {"GPU-a": [GIB], "GPU-b": [2 * GIB]}
        """Per card, the answers to come; the last one stays."""
        self.processes: dict[str, dict[int, int | None]] = {
            "GPU-a": {10: 3 * GIB, 11: GIB},
            "GPU-b": {10: GIB, 12: None},
        }
        self.lost = False
        self.old_driver = False
        self.open = 0

    def nvmlInit(self) -> None:
        if self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return list(self.used)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.used:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, _: str) -> str:
        return "NVIDIA GeForce RTX 4090"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        answers = self.used[handle]
        return SimpleNamespace(total=24 * GIB, used=answers.pop(0) if len(answers) > 1 else answers[0])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        if self.old_driver:
            raise pynvml.NVMLLibraryMismatchError("use a versioned function")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes[handle].items()]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    scripted = Nvml()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", scripted)
    return scripted


def test_the_cards_that_are_asked_for_or_all(nvml: Nvml) -> None:
    assert gpus(["GPU-b"]) == [GpuMemory("GPU-b", "NVIDIA GeForce RTX 4090", 24 * GIB, 2 * GIB)]
    assert [card.uuid for card in gpus()] == ["GPU-a", "GPU-b"]
    assert nvml.open == 0


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize("visible", ["1", "GPU-b", " GPU-b ,"])
def test_cards_that_cuda_may_not_see_are_not_there(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [card.uuid for card in gpus()] == ["GPU-b"]


@pytest.mark.usefixtures("nvml")
def test_what_our_processes_hold_on_their_cards() -> None:
    assert bytes_held_by([10], ["GPU-a"]) == 3 * GIB
    assert bytes_held_by([10, 11]) == 5 * GIB


@pytest.mark.usefixtures("nvml")
def test_nothing_listed_is_unknown_not_zero() -> None:
    # In a container NVML lists the host's pids, or gives no size (None).
    assert bytes_held_by([99]) is None
    assert bytes_held_by([12]) is None


def test_a_driver_older_than_the_question_for_processes_leaves_it_unknown(nvml: Nvml) -> None:
    nvml.old_driver = True
    assert bytes_held_by([10]) is None


def test_memory_is_waited_for_until_the_driver_has_it_back(nvml: Nvml) -> None:
    before = gpus(["GPU-a"])
    nvml.used["GPU-a"] = [20 * GIB, 5 * GIB, GIB + 10 * MIB]
    slept: list[float] = []
    assert wait_until_free(before, timeout_s=60, sleep=slept.append) == 0
    assert len(slept) == 2


def test_memory_that_someone_keeps_is_told(nvml: Nvml) -> None:
    before = gpus(["GPU-a"])
    nvml.used["GPU-a"] = [4 * GIB]
    assert wait_until_free(before, timeout_s=0) == 3 * GIB - 64 * MIB


def test_a_card_that_disappeared_is_an_error_of_its_own(nvml: Nvml) -> None:
    before = gpus()
    nvml.lost = True
    with pytest.raises(GpuLostError, match="GPU is lost"):
        wait_until_free(before, timeout_s=1)


def test_without_a_driver_there_are_no_cards() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(GpuLostError, match="NVML"):
            gpus()
    else:
        pytest.skip("there is a driver here")
