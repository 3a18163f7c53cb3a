"""What model_shape reads from public config.json files: layer kinds, heads, head size, context length.

Each expected value is what vLLM 0.32.0's ModelConfig or the model's attention module takes from the same
file; the traps are those on which planners are known to be wrong.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvplan.architecture.kv_scheme import CheckpointCache
from kvplan.architecture.layers import (
    ChunkedLocal,
    FullAttention,
    GatedDeltaNetState,
    Mamba1State,
    Mamba2State,
    Mla,
    MlaIndexer,
    SlidingWindow,
)
from kvplan.architecture.model_shape import ModelShape, model_shape
from kvplan.errors import UnsupportedModelError

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


def config(model: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{model.replace('/', '__', 1)}.json").read_text())
    return loaded


def shape(model: str) -> ModelShape:
    return model_shape(config(model))


def kinds(found: ModelShape) -> dict[str, int]:
    return dict(Counter(type(cache).__name__ for layer in found.layers for cache in layer))


def heads(found: ModelShape) -> tuple[int, int, int]:
    return found.num_attention_heads, found.num_key_value_heads, found.head_dim


@pytest.mark.parametrize(
    ("model", "layers", "expected"),
    [
        ("meta-llama/Llama-2-7b-hf", 32, (32, 32, 128)),
        ("meta-llama/Meta-Llama-3-8B", 32, (32, 8, 128)),
        ("meta-llama/Llama-2-70b-hf", 80, (64, 8, 128)),
        ("Qwen/Qwen2-7B", 28, (28, 4, 128)),
        # head_dim is a field of its own, not hidden_size / heads (32, 64, 160, 45).
        ("Qwen/Qwen3-0.6B", 28, (16, 8, 128)),
        ("Qwen/Qwen3-30B-A3B", 48, (32, 4, 128)),
        ("mistralai/Mistral-Small-24B-Instruct-2501", 40, (32, 8, 128)),
        ("openai/gpt-oss-20b", 24, (64, 8, 64)),
        ("google/gemma-2-27b-it", 46, (32, 16, 128)),
        # multi_query_group_num, kv_channels and num_layers.
        ("THUDM/glm-4-9b", 40, (32, 2, 128)),
        # num_kv_heads, because of new_decoder_architecture.
        ("tiiuae/falcon-40b", 60, (128, 8, 64)),
        # One latent vector a token for all heads: the file's 128 KV heads are not cached.
        ("deepseek-ai/DeepSeek-V3", 61, (128, 1, 576)),
    ],
)
def test_heads_are_vllms(model: str, layers: int, expected: tuple[int, int, int]) -> None:
    found = shape(model)
    assert (found.num_layers, heads(found)) == (layers, expected)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # sliding_window 131072 in the file, but use_sliding_window is false.
        ("Qwen/Qwen2.5-7B", {"FullAttention": 28}),
        ("mistralai/Mistral-7B-v0.1", {"SlidingWindow": 32}),
        ("mistralai/Mistral-7B-Instruct-v0.3", {"FullAttention": 32}),
        ("microsoft/Phi-3-mini-4k-instruct", {"SlidingWindow": 32}),
        ("google/gemma-2-2b", {"SlidingWindow": 13, "FullAttention": 13}),
        ("google/gemma-3-1b-it", {"SlidingWindow": 22, "FullAttention": 4}),
        ("google/gemma-3-27b-it", {"SlidingWindow": 52, "FullAttention": 10}),
        ("openai/gpt-oss-120b", {"SlidingWindow": 18, "FullAttention": 18}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"ChunkedLocal": 36, "FullAttention": 12}),
        ("deepseek-ai/DeepSeek-V2-Lite", {"Mla": 27}),
        ("deepseek-ai/DeepSeek-V3.2", {"MlaIndexer": 61, "Mla": 61}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"GatedDeltaNetState": 36, "FullAttention": 12}),
        ("ai21labs/AI21-Jamba-1.5-Mini", {"Mamba1State": 28, "FullAttention": 4}),
        # 52 layers, most of them MLP, which keep nothing.
        ("nvidia/Nemotron-H-8B-Base-8K", {"Mamba2State": 24, "FullAttention": 4}),
        # Both in every layer.
        ("tiiuae/Falcon-H1-7B-Instruct", {"FullAttention": 44, "Mamba2State": 44}),
        ("ibm-granite/granite-4.0-h-tiny", {"Mamba2State": 36, "FullAttention": 4}),
    ],
)
def test_layers_are_of_the_kinds_that_vllm_builds(model: str, expected: dict[str, int]) -> None:
    assert kinds(shape(model)) == expected


def test_the_order_of_kinds_is_the_models() -> None:
    gemma2, gemma3 = shape("google/gemma-2-2b"), shape("google/gemma-3-1b-it")
    assert [isinstance(layer[0], FullAttention) for layer in gemma2.layers[:4]] == [False, True, False, True]
    assert [i for i, layer in enumerate(gemma3.layers) if isinstance(layer[0], FullAttention)] == [
        5,
        11,
        17,
        23,
    ]
    scout = shape("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert [i for i, layer in enumerate(scout.layers) if isinstance(layer[0], FullAttention)][:3] == [
        3,
        7,
        11,
    ]


def test_windows_and_chunks() -> None:
    windows = {
        "mistralai/Mistral-7B-v0.1": 4096,
        "microsoft/Phi-3-mini-4k-instruct": 2047,
        "google/gemma-3-1b-it": 512,
        "google/gemma-3-27b-it": 1024,
        "openai/gpt-oss-20b": 128,
    }
    found = {
        model: {
            cache.window
            for layer in shape(model).layers
            for cache in layer
            if isinstance(cache, SlidingWindow)
        }
        for model in windows
    }
    assert found == {model: {window} for model, window in windows.items()}
    first = shape("meta-llama/Llama-4-Scout-17B-16E-Instruct").layers[0][0]
    assert isinstance(first, ChunkedLocal)
    assert first.chunk == 8192


def test_an_empty_no_rope_list_means_the_classes_default() -> None:
    scout = config("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    scout["text_config"]["no_rope_layers"] = []
    assert kinds(model_shape(scout)) == {"ChunkedLocal": 36, "FullAttention": 12}


def test_gemma_3_4b_leaves_out_what_its_class_knows() -> None:
    assert "num_attention_heads" not in config("google/gemma-3-4b-it")["text_config"]
    found = shape("google/gemma-3-4b-it")
    # Gemma3TextConfig: 8 heads, 4 KV heads, 256, 262208 tokens, 131072 positions.
    assert heads(found) == (8, 4, 256)
    assert (found.vocab_size, found.max_model_len) == (262208, 131072)
    assert found.is_multimodal
    assert found.has_bidirectional_images


def test_recurrent_states_are_the_models() -> None:
    states = {
        "Qwen/Qwen3-Next-80B-A3B-Instruct": GatedDeltaNetState(16, 32, 128, 128, 4),
        "ai21labs/AI21-Jamba-1.5-Mini": Mamba1State(8192, 16, 4),
        "nvidia/Nemotron-H-8B-Base-8K": Mamba2State(8192, 8, 128, 64, 128, 4),
    }
    for model, expected in states.items():
        assert expected in {cache for layer in shape(model).layers for cache in layer}


def test_an_indexer_beside_every_sparse_layer() -> None:
    indexer, latent = shape("deepseek-ai/DeepSeek-V3.2").layers[0]
    assert indexer == MlaIndexer(128)
    assert latent == Mla(128, 512, 64, 128, sparse=True)


@pytest.mark.parametrize(
    ("model", "default", "longest"),
    [
        ("Qwen/Qwen2-7B", 131072, 131072),
        ("meta-llama/Meta-Llama-3.1-8B", 131072, 131072),
        # longrope: vLLM starts from the original length and lets the user ask for the longer one.
        ("microsoft/Phi-3-mini-128k-instruct", 4096, 131072),
        ("microsoft/Phi-3-mini-4k-instruct", 4096, 4096),
        # Its file says 163840 with a YaRN factor of 40: the length already has it.
        ("deepseek-ai/DeepSeek-V3", 163840, 163840),
        ("zai-org/GLM-4.6", 202752, 202752),
        ("facebook/opt-125m", 2048, 2048),
        ("openai-community/gpt2", 1024, 1024),
    ],
)
def test_context_length_without_a_flag(model: str, default: int, longest: int) -> None:
    found = shape(model)
    assert (found.max_model_len, found.longest_model_len) == (default, longest)


def test_a_linear_rope_scaling_multiplies_the_length() -> None:
    llama = config("meta-llama/Llama-2-7b-hf")
    llama["rope_scaling"] = {"type": "linear", "factor": 8.0}
    assert model_shape(llama).max_model_len == 8 * 4096


def test_float32_files_are_served_in_bfloat16() -> None:
    assert config("google/gemma-2-2b")["torch_dtype"] == "float32"
    assert shape("google/gemma-2-2b").dtype == "bfloat16"
    assert shape("meta-llama/Llama-2-7b-hf").dtype == "float16"


def test_flags_of_whole_models() -> None:
    assert shape("mistralai/Mixtral-8x7B-v0.1").is_moe
    assert not shape("mistralai/Mistral-7B-v0.1").is_moe
    assert shape("Qwen/Qwen3-Next-80B-A3B-Instruct").is_hybrid
    assert shape("deepseek-ai/DeepSeek-V2-Lite").uses_mla
    assert shape("google/gemma-2-2b").has_logit_softcap
    # A vision tower, a language model.
    assert shape("Qwen/Qwen2.5-VL-7B-Instruct").is_multimodal


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "vocab_size": 32000,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, CheckpointCache()),
        ({"quant_method": "awq"}, CheckpointCache("awq")),
        # The config.json of nvidia/Qwen3.6-27B-NVFP4.
        (
            {
                "quant_method": "modelopt",
                "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            },
            CheckpointCache("modelopt", "fp8_e4m3"),
        ),
        # hf_quant_config.json of older ModelOpt checkpoints has no quant_method.
        (
            {
                "producer": {"name": "modelopt", "version": "0.29.0"},
                "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16},
            },
            CheckpointCache("modelopt-fp4", "fp8_e4m3"),
        ),
        (
            {"quant_method": "modelopt_fp4", "kv_cache_scheme": {"num_bits": 4, "type": "float"}},
            CheckpointCache("modelopt-fp4", "nvfp4"),
        ),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, CheckpointCache("modelopt")),
        (
            {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "strategy": "tensor"}},
            CheckpointCache("compressed-tensors", "fp8"),
        ),
        (
            {
                "quant_method": "compressed_tensors",
                "kv_cache_scheme": {"num_bits": 8, "strategy": "attn_head"},
            },
            CheckpointCache("compressed-tensors", "fp8", scales_per_head=True),
        ),
        (
            {"quant_method": "compressed-tensors", "kv_cache_scheme": None},
            CheckpointCache("compressed-tensors"),
        ),
    ],
)
def test_what_a_quantised_checkpoint_says_about_its_cache(
    quantization: dict[str, Any] | None, expected: CheckpointCache
) -> None:
    assert model_shape({**LLAMA, "quantization_config": quantization}).checkpoint_cache == expected


def test_fields_may_lie_in_text_config() -> None:
    nested = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    inner = {k: v for k, v in LLAMA.items() if k != "architectures"} | {
        "model_type": "gemma3_text",
        "head_dim": 64,
    }
    found = model_shape({**nested, "text_config": inner})
    assert heads(found) == (8, 2, 64)


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"architectures": None}, "no `architectures`", "LlamaForCausalLM"),
        # A misspelt or new name: refused by name, and the close ones are named.
        ({"architectures": ["LlamaForCausalLM2"]}, "architecture LlamaForCausalLM2", "LlamaForCausalLM"),
        ({"architectures": ["BertModel"]}, "architecture BertModel has no exact rule", "families.py"),
        ({"num_attention_heads": None}, "no `num_attention_heads`", "add the field"),
        ({"num_hidden_layers": None}, "no `num_hidden_layers`", "add the field"),
        ({"max_position_embeddings": None}, "no `max_position_embeddings`", "add the field"),
        ({"num_attention_heads": 7}, "512 does not divide into 7 attention heads", "head_dim"),
        ({"num_attention_heads": "8"}, "`num_attention_heads` is '8'", ""),
        ({"torch_dtype": "int8"}, "dtype 'int8' has no rule", "bfloat16"),
        (
            {"layer_types": ["full_attention", "mystery"]},
            "layer type 'mystery' has no rule",
            "full_attention",
        ),
        ({"layer_types": ["full_attention"]}, "names 1 layers of 2", ""),
    ],
)
def test_what_is_missing_is_refused_by_name(change: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        model_shape({**LLAMA, **change})
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")


def test_an_unknown_kind_of_layer_in_a_hybrid() -> None:
    granite = config("ibm-granite/granite-4.0-h-tiny")
    granite["layer_types"] = ["mamba", *granite["layer_types"][1:-1], "retention"]
    with pytest.raises(UnsupportedModelError, match="layer type 'retention' has no rule"):
        model_shape(granite)


def test_qwen_with_a_window_on_some_layers_is_refused_as_vllm_does() -> None:
    qwen = config("Qwen/Qwen2.5-7B") | {"use_sliding_window": True, "max_window_layers": 14}
    qwen.pop("layer_types", None)
    with pytest.raises(
        UnsupportedModelError, match="Sliding window for some but all layers is not supported"
    ):
        model_shape(qwen)
