"""Whatever the shape: ranks together cover the model, stages too, and quantising never adds."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.memory.weights import WeightsPerGpu, weights_per_gpu

SIZES = st.sampled_from([1, 2, 4, 8])


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Dense Llama and Qwen shapes, and mixtures, all divisible by 8."""
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = 8 * draw(st.integers(1, 4))
    family = draw(st.sampled_from(["llama", "qwen2", "qwen3", "gemma2", "qwen3_moe", "mixtral"]))
    return {
        "model_type": family,
        "hidden_size": 128 * draw(st.integers(1, 16)),
        "intermediate_size": 128 * draw(st.integers(1, 32)),
        "moe_intermediate_size": 128 * draw(st.integers(1, 8)),
        "num_experts": 8 * draw(st.integers(1, 4)),
        "num_local_experts": 8 * draw(st.integers(1, 4)),
        "num_hidden_layers": draw(st.integers(1, 40)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 64,
        "vocab_size": draw(st.integers(100, 200_000)),
        "tie_word_embeddings": draw(st.booleans()),
        "max_position_embeddings": 4096,
    }


def weigh(config: dict[str, Any], tp: int = 1, pp: int = 1, **more: Any) -> WeightsPerGpu:
    return weights_per_gpu(
        config,
        None,
        dtype="bfloat16",
        quantization=more.pop("quantization", None),
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        vllm_version=(0, 32, 0),
        **more,
    )


@settings(deadline=None)
@given(configs(), SIZES)
def test_bytes_of_a_rank_times_ranks_cover_the_model(config: dict[str, Any], tp: int) -> None:
    whole = weigh(config)
    rank = weigh(config, tp)
    assert rank.bytes.mid * tp >= whole.bytes.mid >= 2 * (whole.parameters or 0)
    assert rank.bytes.mid <= whole.bytes.mid


@settings(deadline=None)
@given(configs(), SIZES)
def test_stages_together_hold_the_model(config: dict[str, Any], pp: int) -> None:
    stages = weigh(config, 1, min(pp, config["num_hidden_layers"]))
    assert sum(stage.mid for stage in stages.per_stage) >= weigh(config).bytes.mid
    assert stages.bytes == max(stages.per_stage, key=lambda stage: stage.mid)


@settings(deadline=None)
@given(configs(), SIZES)
def test_fp8_never_takes_more_than_bfloat16(config: dict[str, Any], tp: int) -> None:
    assert weigh(config, tp, quantization="fp8").bytes.high <= weigh(config, tp).bytes.mid


@settings(deadline=None)
@given(configs(), SIZES, SIZES)
def test_allocated_is_never_less_than_the_weights(config: dict[str, Any], tp: int, pp: int) -> None:
    found = weigh(config, tp, min(pp, config["num_hidden_layers"]))
    pairs = zip(found.per_stage, found.allocated_per_stage, strict=True)
    assert all(held.mid <= allocated.mid for held, allocated in pairs)


@settings(deadline=None)
@given(configs(), SIZES)
def test_expert_parallelism_covers_the_model_too(config: dict[str, Any], ranks: int) -> None:
    divided = weigh(config, 1, data_parallel_size=ranks, enable_expert_parallel=True)
    assert divided.bytes.mid * ranks >= weigh(config).bytes.mid
