"""What a compute capability implies for buffers: multiprocessors, cuBLAS workspace, fused all-reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.units import KIB, MIB

if TYPE_CHECKING:
    from kvplan.memory.overhead.inputs import OverheadInputs

_MULTIPROCESSORS: Final = {
    (7, 5): 40,
    (8, 0): 108,
    (8, 6): 82,
    (8, 9): 128,
    (9, 0): 132,
    (10, 0): 148,
    (12, 0): 170,
}
"""Of the largest common card of the generation: one Triton program, and its scratch row, runs on each."""


def multiprocessors(facts: OverheadInputs) -> int:
    """Multiprocessors of the card, or of a typical one."""
    return _MULTIPROCESSORS.get(facts.compute_capability or (9, 0), 128)


def cublas_workspace_bytes(facts: OverheadInputs) -> int:
    """The workspace that torch gives cuBLAS at its first matrix product.

    Source: PyTorch aten/src/ATen/cuda/CUDABlas.cpp::parseChosenWorkspaceSize (32 MiB on Hopper, else 8.125).
    """
    if facts.platform != "cuda":
        return 0
    return 32 * MIB if is_hopper_or_newer_datacentre(facts) else 8 * MIB + 128 * KIB


def is_hopper_or_newer_datacentre(facts: OverheadInputs) -> bool:
    """H100, H200, GH200, B200, B300: the cards with NVSwitch-class links and the larger kernels."""
    return facts.compute_capability is not None and facts.compute_capability[0] in {9, 10}
