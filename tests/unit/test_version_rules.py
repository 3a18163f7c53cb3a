"""What vLLM defaults to by version and card, as read in its source (profiles/engines names the files)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kvplan.architecture.model_shape import ModelShape, model_shape
from kvplan.catalog.engines import newest_known_version, rules_for
from kvplan.catalog.gpus import find_gpu
from kvplan.config.defaults import resolve
from kvplan.config.serving import ServingConfig
from kvplan.config.version import VllmVersion, parse_vllm_version
from kvplan.errors import InputError
from kvplan.memory.hardware import cpu_spec
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.config.resolved import ResolvedSettings

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "vocab_size": 152064,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def shape() -> ModelShape:
    return model_shape(QWEN2)


def resolved(version: VllmVersion, gpu: str, **flags: object) -> ResolvedSettings:
    return resolve(
        ServingConfig().with_flags(**flags), rules=rules_for(version), gpu=find_gpu(gpu), shape=shape()
    )


@pytest.mark.parametrize(
    ("version", "utilization"),
    [((0, 19, 1), 0.9), ((0, 20, 0), 0.92), ((0, 32, 0), 0.92), ((0, 8, 5), 0.9)],
)
def test_the_default_utilisation_rose_with_0_20(version: VllmVersion, utilization: float) -> None:
    assert resolved(version, "4090").gpu_memory_utilization == utilization


@pytest.mark.parametrize(
    ("version", "gpu", "tokens", "seqs"),
    [
        # engine/arg_utils.py::get_batch_defaults of 0.32.0, server columns
        ((0, 32, 0), "T4", 2048, 256),
        ((0, 32, 0), "L4", 2048, 256),
        ((0, 32, 0), "A100-80GB-SXM", 2048, 256),
        ((0, 32, 0), "H100-SXM", 8192, 1024),
        ((0, 32, 0), "H200-SXM", 8192, 1024),
        ((0, 32, 0), "B200", 16384, 1024),
        # the class of 160 GiB came with 0.28
        ((0, 27, 0), "B200", 8192, 1024),
        # the A100 left the large class with 0.9
        ((0, 8, 5), "A100-80GB-SXM", 8192, 1024),
    ],
)
def test_the_batch_defaults_go_by_card(version: VllmVersion, gpu: str, tokens: int, seqs: int) -> None:
    settings = resolved(version, gpu)
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, seqs)


def test_the_cpu_backend_has_defaults_of_its_own() -> None:
    settings = resolve(ServingConfig(), rules=rules_for((0, 32, 0)), gpu=cpu_spec(8 * GIB), shape=shape())
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (2048, 128)
    assert settings.async_scheduling is False


def test_default_tokens_never_exceed_what_all_sequences_can_hold() -> None:
    # min(2048, 2 x 512) = 1024: arg_utils.py::_set_default_max_num_seqs_and_batched_tokens_args
    assert resolved((0, 32, 0), "4090", max_num_seqs=2, max_model_len=512).max_num_batched_tokens == 1024


def test_default_sequences_never_exceed_the_tokens_of_a_step() -> None:
    assert resolved((0, 32, 0), "4090", max_num_batched_tokens=64).max_num_seqs == 64


def test_without_chunked_prefill_a_step_holds_the_longest_prompt() -> None:
    assert resolved((0, 32, 0), "4090", enable_chunked_prefill=False).max_num_batched_tokens == 32768


def test_what_was_filled_in_is_named() -> None:
    settings = resolved((0, 32, 0), "4090", max_num_seqs=32)
    assert "max_num_batched_tokens" in settings.defaulted
    assert "max_num_seqs" not in settings.defaulted


def test_a_newer_version_gets_the_newest_rules_and_says_so() -> None:
    rules = rules_for((0, 99, 0))
    assert rules.newer_than_known
    assert rules.gpu_memory_utilization == 0.92
    assert not rules_for(newest_known_version()).newer_than_known
    assert not rules_for((0, 20, 1)).newer_than_known


def test_a_version_older_than_all_rules_is_refused() -> None:
    with pytest.raises(InputError, match=r"older than the oldest rules that kvplan has \(0\.6\.6\)"):
        rules_for((0, 5, 0))


@pytest.mark.parametrize("text", ["latest", "main", "", "0"])
def test_a_branch_is_no_version(text: str) -> None:
    with pytest.raises(InputError, match="not a release number"):
        parse_vllm_version(text)


@pytest.mark.parametrize(
    ("text", "version"),
    [("v0.20.2", (0, 20, 2)), ("0.9.0.post2", (0, 9, 0)), ("0.32", (0, 32, 0)), ("0.19.1+cu130", (0, 19, 1))],
)
def test_versions_are_read_as_people_write_them(text: str, version: VllmVersion) -> None:
    assert parse_vllm_version(text) == version


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"gpu_memory_utilization": 1.7}, "--gpu-memory-utilization 1.7 is outside 0 to 1"),
        ({"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization 0 is outside 0 to 1"),
        ({"max_num_seqs": 0}, "--max-num-seqs 0 is not positive"),
        ({"max_model_len": -2}, "--max-model-len -2 is not a length"),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, "below --max-num-seqs 512"),
        ({"dtype": "int3"}, "--dtype 'int3' is not one of vLLM's"),
    ],
)
def test_what_vllm_refuses_before_memory_is_refused_by_name(flags: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolved((0, 32, 0), "4090", **flags)


def test_an_explicit_kv_size_is_refused_where_the_flag_does_not_exist() -> None:
    with pytest.raises(InputError, match="not a flag of that vLLM version"):
        resolved((0, 9, 2), "4090", kv_cache_memory_bytes=GIB)


def test_given_flags_survive_a_copy() -> None:
    config = ServingConfig(max_num_seqs=4).with_flags(block_size=32, seed=7)
    assert config.given() == {"max_num_seqs": 4, "block_size": 32, "seed": 7}
    assert dataclasses.replace(config, block_size=None).given() == {"max_num_seqs": 4, "seed": 7}


@pytest.mark.parametrize(("gpu", "dtype"), [("t4", "float16"), ("4090", "bfloat16")])
def test_a_card_without_bfloat16_serves_in_float16(gpu: str, dtype: str) -> None:
    # vLLM 0.32.0 config/model.py::_resolve_auto_dtype; weights and activations follow the resolved dtype
    assert resolved((0, 32, 0), gpu).dtype == dtype


def test_bfloat16_that_was_asked_for_is_refused_on_such_a_card() -> None:
    with pytest.raises(InputError, match="Bfloat16 is only supported on GPUs with compute capability"):
        resolved((0, 32, 0), "t4", dtype="bfloat16")
