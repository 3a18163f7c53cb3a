"""The block sizes that an attention kernel takes, and what vLLM makes of them."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class KernelSizes(NamedTuple):
    """Sizes that a kernel takes as they are, and bases of which it takes any multiple.

    A manager block may be longer: vLLM splits it into kernel blocks, so a multiple of either will do.
    """

    exact: tuple[int, ...] = ()
    multiples_of: tuple[int, ...] = ()
    strict: bool = False
    """Blocks are not split: only the sizes themselves (vLLM's reference MLA on the CPU)."""
    preferred: int | None = None
    """What the backend asks for where nobody else says anything."""

    @property
    def all(self) -> tuple[int, ...]:
        """Every size or base."""
        return (*self.exact, *self.multiples_of)

    @property
    def smallest(self) -> int:
        """The smallest kernel block."""
        return min(self.all)

    def accepts(self, block_size: int) -> bool:
        """Whether a manager block of that size can be served."""
        if self.strict:
            return block_size in self.exact
        return any(block_size % size == 0 for size in self.all)

    def preferred_size(self, default: int) -> int:
        """The block size without --block-size.

        Source: vLLM 0.32.0 v1/attention/backend.py::AttentionBackend.get_preferred_block_size.
        """
        if self.preferred is not None:
            return max(default, self.preferred)
        return default if self.accepts(default) else self.smallest

    def largest_within(self, token_bytes: int, page_budget: int) -> int:
        """The longest kernel block whose page fits the budget; the shortest if none does.

        Source: vLLM 0.32.0 model_executor/layers/attention/attention.py::_largest_kernel_block_within.
        """
        longest = page_budget // token_bytes
        candidates = (*self.exact, *(max(base, longest // base * base) for base in self.multiples_of))
        fitting = [size for size in candidates if size * token_bytes <= page_budget]
        return max(fitting) if fitting else min(candidates)


def common_block_size(sizes: Sequence[KernelSizes], default: int) -> int | None:
    """The block size that all of a model's backends take, or None if there is none.

    Source: vLLM 0.32.0 platforms/interface.py::_preferred_block_size_for_backends.
    """
    if len(sizes) == 1:
        return sizes[0].preferred_size(default)
    if all(each.accepts(default) for each in sizes):
        return default
    candidates = sorted({math.lcm(*choice) for choice in product(*(each.all for each in sizes))})
    return next((size for size in candidates if all(each.accepts(size) for each in sizes)), None)


def at_multiples(base: int) -> KernelSizes:
    """Any multiple of `base`."""
    return KernelSizes(multiples_of=(base,))


def exactly(*sizes: int) -> KernelSizes:
    """Those sizes, and manager blocks that are multiples of them."""
    return KernelSizes(exact=sizes)
