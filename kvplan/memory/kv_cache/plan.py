"""KvCachePlan: block sizes, groups and byte counts of a model's KV cache on one card of an installation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.architecture.layers import FullAttention
from kvplan.units import cdiv

if TYPE_CHECKING:
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.resolved import ResolvedSettings
    from kvplan.memory.hardware import GpuSpec


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share one block table."""

    kind: str
    """full, sliding_window, chunked_local, mla, mamba or cross."""
    layers: int
    block_size: int
    page_bytes: int
    """One block in one layer."""


@dataclass(frozen=True, slots=True)
class KvCachePlan:
    """The KV cache of one rank. Sizes in bytes, lengths in tokens."""

    block_size: int
    bytes_per_token: int
    """One more token of one long request, in every layer that keeps it; the widest pipeline stage's."""
    bytes_per_block: int
    """One block of the pool, on the pipeline stage where it is largest."""
    stage_bytes_per_block: tuple[int, ...]
    groups: tuple[KvGroup, ...]
    attention_backends: tuple[str, ...]
    warnings: tuple[str, ...]
    max_model_len: int
    reserves_null_block: bool

    def num_blocks(self, available_kv_bytes: int) -> int:
        """Blocks that vLLM makes of what the tightest rank has left, the null block included."""
        return max(available_kv_bytes, 0) // self.bytes_per_block

    def blocks_for_request(self, num_tokens: int) -> int:
        """Blocks that vLLM counts for one request of that many tokens, at worst."""
        return sum(cdiv(num_tokens, group.block_size) for group in self.groups)

    def request_bytes(self, max_model_len: int) -> int:
        """Bytes that the start-up check wants for one request of `max_model_len` tokens."""
        return self.blocks_for_request(max_model_len) * self.bytes_per_block

    def check_bytes(self, available_kv_bytes: int) -> int:
        """What the start-up check compares `request_bytes` with: the null block is set aside from 0.29."""
        return available_kv_bytes - (self.bytes_per_block if self.reserves_null_block else 0)

    def max_concurrency(self, num_blocks: int, max_model_len: int) -> float:
        """The figure that vLLM prints as "Maximum concurrency"."""
        return num_blocks / self.blocks_for_request(max_model_len)

    def kv_cache_tokens(self, num_blocks: int, max_model_len: int) -> int:
        """The figure that vLLM prints as "GPU KV cache size"."""
        return int(self.max_concurrency(num_blocks, max_model_len) * max_model_len)

    def estimated_max_model_len(self, available_kv_bytes: int) -> int:
        """The longest request that fits, at most `max_model_len`; 0 if not even one token does."""
        low, high = 0, self.max_model_len
        budget = self.check_bytes(available_kv_bytes)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_bytes(middle) <= budget else (low, middle - 1)
        return low

    def steady_blocks(self, num_tokens: int) -> int:
        """Blocks that a decoding request of that many tokens holds between steps."""
        return sum(cdiv(num_tokens, group.block_size) for group in self.groups)

    def concurrent_requests(self, num_blocks: int, num_tokens: int) -> int:
        """Requests of that total length that run at once with nobody waiting or preempted."""
        return max(num_blocks - 1, 0) // self.steady_blocks(num_tokens)


def plan_kv_cache(shape: ModelShape, settings: ResolvedSettings, gpu: GpuSpec) -> KvCachePlan:
    """The KV cache that vLLM of `settings.vllm_version` would make for this model on this card.

    Raises:
        InputError: vLLM itself refuses the combination.
        UnsupportedModelError: no exact rule covers it.
    """
    first = shape.layers[0][0]
    if not isinstance(first, FullAttention):
        raise NotImplementedError
    block_size = settings.block_size or (128 if gpu.platform == "cpu" else 16)
    heads = max(1, first.num_kv_heads // settings.tensor_parallel_size)
    bytes_per_element = 1 if settings.kv_cache_dtype.startswith("fp8") else 2
    token_bytes = heads * (first.head_dim + first.head_dim_v) * bytes_per_element
    layers = cdiv(shape.num_layers, settings.pipeline_parallel_size)
    page = token_bytes * block_size
    return KvCachePlan(
        block_size=block_size,
        bytes_per_token=token_bytes * layers,
        bytes_per_block=page * layers,
        stage_bytes_per_block=(page * layers,) * settings.pipeline_parallel_size,
        groups=(KvGroup("full", shape.num_layers, block_size, page),),
        attention_backends=(),
        warnings=(),
        max_model_len=settings.max_model_len if settings.max_model_len > 0 else shape.max_model_len,
        reserves_null_block=settings.vllm_version >= (0, 29, 0),
    )
