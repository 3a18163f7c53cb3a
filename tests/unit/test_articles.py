"""The worked examples of three articles on the KV cache, with the right values (docs/articles.md).

Every expected value is 2 x layers x KV heads x head_dim x bytes, in whole blocks, written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.planning import PlanRequest, plan_for
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.memory.kv_cache.plan import KvCachePlan


def plan(model: str, **flags: object) -> KvCachePlan:
    serving = ServingConfig().with_flags(**flags)
    request = PlanRequest(model=model, gpu="a100-80gb-sxm", vllm_version="0.32.0", serving=serving)
    return plan_for(request).estimate().plan


def request_bytes(kv: KvCachePlan, num_tokens: int) -> int:
    return kv.steady_blocks(num_tokens) * kv.bytes_per_block


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [
        ("meta-llama/Llama-2-7b-hf", 524_288),  # 2 x 32 x 32 x 128 x 2: MHA
        ("meta-llama/Meta-Llama-3-8B", 131_072),  # 2 x 32 x 8 x 128 x 2: GQA, 128 KiB and not 8 KB
        ("meta-llama/Llama-2-70b-hf", 327_680),  # 2 x 80 x 8 x 128 x 2
        ("qwen2-7b", 57_344),  # 2 x 28 x 4 x 128 x 2
    ],
)
def test_bytes_a_token(model: str, bytes_per_token: int) -> None:
    assert plan(model).bytes_per_token == bytes_per_token


@pytest.mark.parametrize(
    ("model", "requests", "num_tokens", "gib"),
    [
        ("meta-llama/Llama-2-7b-hf", 1, 4096, 2),
        ("meta-llama/Llama-2-7b-hf", 16, 4096, 32),
        ("meta-llama/Llama-2-70b-hf", 1, 4096, 1.25),
        ("meta-llama/Llama-2-70b-hf", 64, 4096, 80),
        # "8 KB a token, 32 MB at 4096, 1 GB for 32 of them": forgets the 32 layers (and miscounts one)
        ("meta-llama/Meta-Llama-3-8B", 1, 4096, 0.5),
        ("meta-llama/Meta-Llama-3-8B", 32, 4096, 16),
        # "16.0 GB" is what the article prints for its own script; the script gives 25
        ("meta-llama/Meta-Llama-3-8B", 100, 2048, 25),
        # every row of the table of the second article is twice this
        ("meta-llama/Llama-2-7b-hf", 1, 1024, 0.5),
        ("meta-llama/Llama-2-7b-hf", 32, 1024, 16),
        ("meta-llama/Llama-2-7b-hf", 1, 32768, 16),
        ("meta-llama/Llama-2-7b-hf", 16, 8192, 64),
    ],
)
def test_gib_of_so_many_requests(model: str, requests: int, num_tokens: int, gib: float) -> None:
    assert requests * request_bytes(plan(model), num_tokens) == gib * GIB


def test_fp8_halves_and_8_kv_heads_quarter_32() -> None:
    assert 2 * plan("meta-llama/Llama-2-7b-hf", kv_cache_dtype="fp8").bytes_per_token == 524_288
    assert 4 * plan("meta-llama/Meta-Llama-3-8B").bytes_per_token == 524_288


def test_k_in_fp8_and_v_in_4_bits_is_not_a_quarter() -> None:
    # "16 GB -> about 4 GB" would be 4 bits for both; 8 and 4 bits are 6 of 16, before the scales of V
    mixed = plan("qwen2-7b", kv_cache_dtype="turboquant_k8v4").bytes_per_token
    assert 0.37 < mixed / 57_344 < 0.50


def test_32_users_of_1500_and_512_tokens_need_3_45_gib() -> None:
    # 32 x cdiv(2012, 16) blocks of 16 x 57,344 B = 32 x 126 x 917,504 = 3.45 GiB: it fits 5 to 6 GiB, easily
    kv = plan("qwen2-7b")
    assert 32 * request_bytes(kv, 2012) == 32 * 126 * 917_504


def test_max_model_len_reserves_nothing() -> None:
    # the pool is the same; only the start check (one request must fit) and the printed concurrency change
    short, long = (
        plan_for(
            PlanRequest(
                model="qwen2-7b",
                gpu="4090",
                vllm_version="0.32.0",
                serving=ServingConfig(max_model_len=length, max_num_seqs=32, max_num_batched_tokens=2048),
            )
        ).estimate()
        for length in (8192, 32768)
    )
    assert short.capacity.num_blocks == long.capacity.num_blocks


def test_24_gb_times_08_minus_14_is_not_15_to_18() -> None:
    # the third article's own rule, in its own units: 24 x 0.8 - 14 = 5.2
    assert pytest.approx(5.2) == 24 * 0.8 - 14
