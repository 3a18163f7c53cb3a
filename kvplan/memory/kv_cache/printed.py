"""The figures that vLLM prints at start-up, by the formulas of its versions.

0.20 on: tokens are the concurrency times the longest request. 0.9.2 to 0.19: blocks shared out among the
groups. 0.8 to 0.9.1 and before: blocks times block size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.units import cdiv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.config.version import VllmVersion
    from kvplan.memory.kv_cache.grouping import Group
    from kvplan.memory.kv_cache.spec import Demand


def max_concurrency(
    groups: Sequence[Group], num_blocks: int, max_model_len: int, demand: Demand, version: VllmVersion
) -> float:
    """The figure of "Maximum concurrency for N tokens per request".

    Source: vLLM v1/core/kv_cache_utils.py::get_max_concurrency_for_kv_cache_config of 0.32.0, of 0.19.1
    and (0.8.5) `_get_kv_cache_config_uniform_type`.
    """
    if not groups:
        return 0.0
    if version < (0, 9, 2):
        return num_blocks * groups[0].first.block_size / max_model_len
    if version >= (0, 20, 0):
        return num_blocks / sum(group.request_blocks(max_model_len, demand) for group in groups)
    layers = max(len(group.members) for group in groups)
    first = groups[0].first if _is_uniform(groups[0]) else None
    page = first.page_bytes if first is not None else groups[0].page_bytes()
    needed = sum(
        group.request_blocks(max_model_len, demand)
        * (group.first.page_bytes if _is_uniform(group) else group.page_bytes())
        for group in groups
    )
    return num_blocks / cdiv(layers * needed, page * layers)


def _is_uniform(group: Group) -> bool:
    return len({member.spec for member in group.members}) == 1


def kv_cache_tokens(
    groups: Sequence[Group], num_blocks: int, max_model_len: int, demand: Demand, version: VllmVersion
) -> int:
    """The figure of "GPU KV cache size: N tokens".

    Source: vLLM v1/core/kv_cache_utils.py::get_kv_cache_capacity of 0.32.0, `_report_kv_cache_config` of
    0.19.1, 0.12.0, 0.9.2.
    """
    if not groups:
        return 0
    if version >= (0, 20, 0):
        return int(max_concurrency(groups, num_blocks, max_model_len, demand, version) * max_model_len)
    smallest = min(group.first.block_size for group in groups)
    if version < (0, 9, 2):
        return num_blocks * smallest
    return num_blocks // len(groups) * smallest * demand.decode_context_parallel_size
