"""The figures that vLLM prints at start-up, by the formulas of its versions.

0.20.1 on: tokens are the concurrency times the longest request. 0.9.1 to 0.20.0: blocks shared out
among the groups. 0.9.0 and before: blocks times block size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.memory.kv_cache.era import Era
    from kvplan.memory.kv_cache.plan import KvCachePlan


def max_concurrency(plan: KvCachePlan, era: Era, num_blocks: int, max_model_len: int) -> float:
    """The figure of "Maximum concurrency for N tokens per request".

    0.9.1 to 0.20.0 divide one request's bytes by one block's of the widest group, which is the same number of
    blocks because all pages are equal by then.

    Source: vLLM v1/core/kv_cache_utils.py::get_max_concurrency_for_kv_cache_config of 0.32.0 and 0.19.1;
    before, blocks times block size over the length (0.8.5).
    """
    if not era.shares_blocks:
        return num_blocks * plan.groups[0].block_size / max_model_len
    return num_blocks / plan.blocks_for_request(max_model_len)


def kv_cache_tokens(plan: KvCachePlan, era: Era, num_blocks: int, max_model_len: int) -> int:
    """The figure of "GPU KV cache size: N tokens".

    Source: vLLM v1/core/kv_cache_utils.py::get_kv_cache_capacity of 0.32.0, `_report_kv_cache_config` of
    0.20.0, 0.19.1, 0.12.0, 0.9.1.
    """
    if era.prints_tokens_of_longest:
        return int(max_concurrency(plan, era, num_blocks, max_model_len) * max_model_len)
    smallest = min(group.block_size for group in plan.groups)
    if not era.shares_blocks:
        return num_blocks * smallest
    return num_blocks // len(plan.groups) * smallest * plan.decode_context_parallel_size
