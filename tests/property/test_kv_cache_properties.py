"""Laws of the KV cache that hold for every model, card, release and setting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, reject
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kvplan.errors import KvplanError, UnsupportedModelError
from kvplan.memory.kv_cache.plan import plan_kv_cache
from kvplan.units import GIB
from tests.kv_cases import A100, ADA, BLACKWELL, CONFIGS, CPU, H100, TURING, plan, settings, shape_of

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.kv_cache.plan import KvCachePlan

VERSIONS = (
    (0, 8, 5),
    (0, 9, 2),
    (0, 12, 0),
    (0, 15, 1),
    (0, 19, 1),
    (0, 20, 0),
    (0, 26, 0),
    (0, 28, 0),
    (0, 32, 0),
)
GPUS = (H100, A100, ADA, TURING, BLACKWELL, CPU)


def _answered(path: Path) -> bool:
    try:
        shape_of(path.stem.replace("__", "/", 1))
    except UnsupportedModelError:
        return False
    return True


GONE = {"baichuan-inc/Baichuan2-7B-Base", "microsoft/Phi-3-small-8k-instruct", "mosaicml/mpt-7b"}
"""Not served by 0.32 any more."""
MODELS = sorted(path.stem.replace("__", "/", 1) for path in CONFIGS.glob("*.json") if _answered(path))


@st.composite
def plans(draw: st.DrawFn, /, **fixed: Any) -> tuple[str, Any, dict[str, Any], KvCachePlan]:
    """A model, a card and settings that vLLM takes, with the plan."""
    model = draw(st.sampled_from(MODELS))
    gpu = draw(st.sampled_from(GPUS))
    changes: dict[str, Any] = {
        "vllm_version": draw(st.sampled_from(VERSIONS)),
        "tensor_parallel_size": draw(st.sampled_from((1, 2, 4, 8))),
        "pipeline_parallel_size": draw(st.sampled_from((1, 2, 3))),
        "kv_cache_dtype": draw(st.sampled_from(("auto", "fp8", "int8_per_token_head", "nvfp4"))),
        "block_size": draw(st.sampled_from((None, 32, 64, 128))),
        "max_num_batched_tokens": draw(st.sampled_from((2048, 8192))),
        "disable_hybrid_kv_cache_manager": draw(st.booleans()),
        "defaulted": ("dtype", "enable_prefix_caching"),
        "allows_longer_max_model_len": True,
    } | fixed
    return model, gpu, changes, _or_assume(model, gpu, changes)


def _or_assume(model: str, gpu: GpuSpec, changes: dict[str, Any]) -> KvCachePlan:
    """The plan; what vLLM refuses is not compared."""
    try:
        return plan(model, gpu, **changes)
    except KvplanError:
        reject()


many = hypothesis_settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
memories = st.integers(0, 200 * GIB)
lengths = st.integers(1, 300_000)


@many
@given(plans(), memories, memories, lengths)
def test_more_memory_never_gives_fewer_tokens(
    found: tuple[str, Any, dict[str, Any], KvCachePlan], one: int, other: int, length: int
) -> None:
    kv = found[3]
    less, more = (kv.num_blocks(memory) for memory in sorted((one, other)))
    assert less <= more
    assert kv.kv_cache_tokens(less, length) <= kv.kv_cache_tokens(more, length)
    assert kv.max_concurrency(less, length) <= kv.max_concurrency(more, length)
    assert kv.concurrent_requests(less, length) <= kv.concurrent_requests(more, length)
    assert kv.estimated_max_model_len(min(one, other)) <= kv.estimated_max_model_len(max(one, other))


@many
@given(plans(), memories, lengths, lengths)
def test_longer_requests_are_never_more_at_once(
    found: tuple[str, Any, dict[str, Any], KvCachePlan], memory: int, one: int, other: int
) -> None:
    kv = found[3]
    blocks = kv.num_blocks(memory)
    short, long = sorted((one, other))
    assert kv.max_concurrency(blocks, long) <= kv.max_concurrency(blocks, short)
    assert kv.concurrent_requests(blocks, long) <= kv.concurrent_requests(blocks, short)
    assert kv.steady_blocks(short) <= kv.steady_blocks(long)
    assert kv.request_bytes(short) <= kv.request_bytes(long)


@many
@given(plans(), lengths)
def test_a_decoding_request_holds_no_more_than_its_worst_case(
    found: tuple[str, Any, dict[str, Any], KvCachePlan], length: int
) -> None:
    kv = found[3]
    assert kv.steady_blocks(length) <= kv.blocks_for_request(length)


@many
@given(plans(kv_cache_dtype="auto"), memories, st.integers(1, 40))
def test_fp8_never_holds_less_than_the_models_own_dtype(
    found: tuple[str, Any, dict[str, Any], KvCachePlan], memory: int, count: int
) -> None:
    model, gpu, changes, plain = found
    quantised = _or_assume(model, gpu, changes | {"kv_cache_dtype": "fp8"})
    assert quantised.bytes_per_token <= plain.bytes_per_token
    # Where fp8 has longer blocks (MLA), a short request or the last block may waste more of one: whole blocks
    # of both are compared, and one more block of memory.
    sizes = (group.block_size for kv in (plain, quantised) for group in kv.groups if group.kind != "mamba")
    length = count * math.lcm(*sizes)
    assert quantised.request_bytes(length) <= plain.request_bytes(length)
    held = quantised.num_blocks(memory + quantised.bytes_per_block) / quantised.blocks_for_request(length)
    assert held >= plain.num_blocks(memory) / plain.blocks_for_request(length)


@many
@given(plans(tensor_parallel_size=1), st.sampled_from((2, 4, 8)))
def test_all_ranks_together_keep_at_least_the_whole_cache(
    found: tuple[str, Any, dict[str, Any], KvCachePlan], ranks: int
) -> None:
    model, gpu, changes, alone = found
    sharded = _or_assume(model, gpu, changes | {"tensor_parallel_size": ranks})
    assert sharded.bytes_per_token * ranks >= alone.bytes_per_token
    assert sharded.bytes_per_token <= alone.bytes_per_token


@many
@given(plans())
def test_a_plan_adds_up(found: tuple[str, Any, dict[str, Any], KvCachePlan]) -> None:
    kv = found[3]
    assert kv.bytes_per_block == max(kv.stage_bytes_per_block, default=0)
    if len(kv.stage_bytes_per_block) == 1 and kv.groups:
        assert kv.bytes_per_block >= max(group.block_bytes for group in kv.groups)
    for group in kv.groups:
        assert group.block_bytes <= group.layers * group.page_bytes


@pytest.mark.parametrize("model", sorted(set(MODELS) - GONE))
def test_the_null_block_serves_nobody(model: str) -> None:
    kv = plan(model)
    need = kv.blocks_for_request(1)
    assert kv.concurrent_requests(need, 1) == 0
    assert kv.concurrent_requests(need + 1, 1) == 1


def test_plans_are_made_once() -> None:
    shape = shape_of("meta-llama/Meta-Llama-3-8B")
    first = plan_kv_cache(shape, settings(), H100)
    again = plan_kv_cache(shape, settings()._replace(max_num_seqs=7), H100)
    assert first is again
