"""vLLM's YAML file: read as vLLM 0.32's own parser reads it, refused with file and line, and written back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvplan.config.argv import to_argv
from kvplan.config.serving import ServingConfig
from kvplan.config.yaml_file import from_vllm_yaml, to_vllm_yaml
from kvplan.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def read(tmp_path: Path, text: str, **kwargs: Any) -> ServingConfig:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    return from_vllm_yaml(path, **kwargs)


@pytest.mark.parametrize(
    ("line", "flag", "value"),
    [
        # vLLM 0.32.0 utils/argparse_utils.py::human_readable_int: k is decimal, K is binary.
        ("max-model-len: 8k", "max_model_len", 8000),
        ("max_model_len: 32K", "max_model_len", 32768),
        ("max-model-len: auto", "max_model_len", -1),
        ("max-num-batched-tokens: 25.6k", "max_num_batched_tokens", 25600),
        ("kv-cache-memory-bytes: 2G", "kv_cache_memory_bytes", 2147483648),
        ("gpu-memory-utilization: 1", "gpu_memory_utilization", 1.0),
        ("device-memory-utilization: 0.8", "gpu_memory_utilization", 0.8),
        ("enforce-eager: true", "enforce_eager", True),
        ("enable-prefix-caching: false", "enable_prefix_caching", False),
        ("no-enable-prefix-caching: true", "enable_prefix_caching", False),
        ("model: Qwen/Qwen2-7B-Instruct", "model", "Qwen/Qwen2-7B-Instruct"),
        ("served-model-name: [a, b]", "served_model_name", ["a", "b"]),
        ("kv-cache-dtype-skip-layers: [sliding_window]", "kv_cache_dtype_skip_layers", ("sliding_window",)),
        ("compilation-config: {mode: 3}", "compilation_config", {"mode": 3}),
        ("compilation-config.mode: 3", "compilation_config", {"mode": 3}),
        # An abbreviation that only one option begins with, as argparse takes it.
        ("gpu-memory-util: 0.5", "gpu_memory_utilization", 0.5),
    ],
)
def test_a_key_is_read_as_vllm_reads_it(tmp_path: Path, line: str, flag: str, value: object) -> None:
    assert read(tmp_path, line).given() == {flag: value}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "# c\nmax-modl-len: 8192",
            "serve.yaml:2: unknown key 'max-modl-len'",
            "did you mean max-model-len?",
        ),
        ("max-model-len: abc", "serve.yaml:1: max-model-len: 'abc': not an integer", "8k (8000)"),
        ("max-model-len: 1.5K", "decimals are not allowed with a binary suffix", "8K (8192)"),
        ("gpu-memory-utilization: high", "'high': not a number", "a number"),
        ("kv-cache-dtype: fp9", "'fp9' is not a value that vLLM takes", "did you mean fp8?"),
        ("enforce-eager: 1", "1 is neither true nor false", "true or false"),
        ("block-size: true", "needs a value, not true", "bare option"),
        ("max-model-len: [1, 2]", "takes one value, not a list", "one value"),
        ("max_model_len: 1\nmax-model-len: 2", "serve.yaml:2: 'max-model-len' is given twice", "keep one"),
        ("a: [", "serve.yaml:2: not YAML", "vllm serve --config"),
        ("- max-model-len", "not a mapping of vLLM's flags", "max-model-len: 8192"),
        ("compilation-config: &a [*a]", "not a plain value", "maps"),
        ("block-size: &a\n  ? [x]\n  : 1", "not a plain value", "maps"),
    ],
)
def test_what_vllm_would_refuse_is_named_with_its_line(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        from_vllm_yaml(tmp_path / "none.yaml")


def test_a_key_that_the_named_version_lacks_is_refused(tmp_path: Path) -> None:
    # --kv-cache-memory-bytes came with 0.10.2.
    with pytest.raises(InputError, match=r"vLLM 0\.9\.2 has no 'kv-cache-memory-bytes'") as caught:
        read(tmp_path, "kv-cache-memory-bytes: 2G", version=(0, 9, 2))
    assert caught.value.hint == "it is there from 0.10.2 on"
    assert read(tmp_path, "kv-cache-memory-bytes: 2G", version=(0, 11, 0)).kv_cache_memory_bytes == 2**31


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing\n").given() == {}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config = ServingConfig(
        model="m",
        gpu_memory_utilization=0.9,
        max_model_len=8192,
        kv_cache_dtype="fp8_e4m3",
        kv_cache_dtype_skip_layers=("0", "sliding_window"),
        enforce_eager=True,
        enable_prefix_caching=False,
        other_flags={"compilation_config": {"mode": 3}, "served_model_name": ["a", "b"]},
    )
    assert read(tmp_path, to_vllm_yaml(config)) == config


def test_argv_is_what_vllm_makes_of_the_same_file() -> None:
    config = ServingConfig(
        model="not in the argv",
        max_model_len=-1,
        enforce_eager=True,
        enable_prefix_caching=False,
        kv_cache_dtype_skip_layers=("0", "1"),
        other_flags={
            "speculative_config": {"method": "ngram", "n": 2},
            "disable_log_stats": False,
            "seed": None,
        },
    )
    assert to_argv(config) == [
        "--max-model-len=-1",  # tied on: argparse may take a word that begins with a dash for an option
        "--kv-cache-dtype-skip-layers",
        "0",
        "1",
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "--speculative-config",
        '{"method":"ngram","n":2}',
    ]
