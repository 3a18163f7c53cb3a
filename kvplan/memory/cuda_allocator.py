"""What the CUDA caching allocator really takes for a tensor (pure).

"Model loading took" is a difference of `torch.cuda.max_memory_allocated`, which counts whole blocks. A block
is larger than the tensor where the rest of its segment is too small to be split off.

Source: PyTorch 2.8 `c10/cuda/CUDACachingAllocator.cpp` (kMinBlockSize, kSmallSize, kMinLargeAlloc,
kRoundLarge, should_split), `docs/source/notes/cuda.rst` (max_split_size_mb); vLLM 0.21.0
`v1/worker/gpu_worker.py` sets a split limit of 20 MiB while it loads.
"""

from __future__ import annotations

from typing import Final

from kvplan.units import MIB, round_up

_BLOCK: Final = 512
_SMALL: Final = MIB
_SEGMENT: Final = 20 * MIB
"""Segment for a tensor between 1 and 10 MiB."""
_LARGE: Final = 10 * MIB
_LARGE_ROUND: Final = 2 * MIB


def allocated_bytes(size: int, split_limit: int | None = None) -> int:
    """Bytes counted for one tensor.

    Args:
        size: bytes of the tensor.
        split_limit: tensors from this size on get their segment whole (`max_split_size_mb`).
    """
    size = round_up(size, _BLOCK)
    if size <= _SMALL:
        return size
    segment = _SEGMENT if size < _LARGE else round_up(size, _LARGE_ROUND)
    splits = segment - size > _SMALL and (split_limit is None or size < split_limit)
    return size if splits else segment
