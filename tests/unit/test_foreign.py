"""What others wrote never ends in a traceback: values without sense, no output to write to, odd names."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.errors import ExitCode, InputError
from kvplan.foreign import read_text, reading
from kvplan.units import bytes_from_gib, parse_count

if TYPE_CHECKING:
    from pathlib import Path

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
FIRST = (sys.executable, "-m", "kvplan", "estimate")
QWEN = (*FIRST, "--model", "qwen2-7b", "--gpu", "4090")


def run(*argv: str, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("intermediate_size", "x"),
        ("intermediate_size", []),
        ("intermediate_size", float("nan")),
        ("max_position_embeddings", 0),
        ("head_dim", -1),
        ("num_hidden_layers", 10**30),
        ("vocab_size", 10**30),
        ("hidden_size", 1e308),
        ("quantization_config", "x"),
        ("rope_scaling", "x"),
        ("text_config", "x"),
        ("architectures", ["X\nY"]),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_in_one_line(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {key: value}))
    code, _, err = run(*FIRST, "--model", str(tmp_path), "--gpu", "h100-sxm", "--offline")
    assert code == ExitCode.CANNOT_JUDGE
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "flags",
    [
        ("--gpu-memory-gib", "inf"),
        ("--gpu-memory-gib", "nan"),
        ("--used-gib", "-1"),
        ("--used-gib", "nan"),
        ("--kv-cache-memory-bytes", "9" * 400),
        ("--kv-cache-memory-bytes", ""),
        ("--pipeline-parallel-size", "1000000000"),
        ("--pipeline-parallel-size", "29"),
        ("--data-parallel-size", "9" * 30),
        ("--model", "x" * 5000),
        ("--workload", "x" * 5000),
        ("--quantization", "a\nb"),
    ],
)
def test_a_value_beyond_sense_is_refused_in_one_line(flags: tuple[str, ...]) -> None:
    code, _, err = run(*QWEN, *flags)
    assert code == ExitCode.CANNOT_JUDGE
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("target", [">&-", ">/dev/full"])
def test_a_result_that_cannot_be_written_is_said_in_one_line(target: str) -> None:
    code, _, err = run("/bin/bash", "-c", f"{' '.join(QWEN)} {target}")
    assert code == ExitCode.CANNOT_JUDGE
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "launch",
    [
        "vllm serve Qwen/Qwen2-7B-Instruct --cpu-offload-gb inf",
        "vllm serve Qwen/Qwen2-7B-Instruct --pipeline-parallel-size 9223372036854775808",
        "vllm serve " + "a" * 5000,
    ],
)
def test_one_launch_never_takes_the_others_down(tmp_path: Path, launch: str) -> None:
    (tmp_path / "odd.sh").write_text(launch + "\n")
    (tmp_path / "good.sh").write_text("vllm serve Qwen/Qwen2-7B-Instruct --max-model-len 4096\n")
    argv = (sys.executable, "-m", "kvplan", "check", "--gpu", "h100-sxm", "--format", "json", ".")
    code, out, err = run(*argv, cwd=tmp_path)
    assert code in {ExitCode.OK, ExitCode.NO}, err
    assert "good.sh" in out


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_policy_that_cannot_be_read_does_not_pass_for_none(tmp_path: Path, kind: str) -> None:
    (tmp_path / "good.sh").write_text("vllm serve Qwen/Qwen2-7B-Instruct --max-model-len 4096\n")
    policy = tmp_path / ".kvplan.yaml"
    if kind == "link":
        policy.symlink_to("/etc/passwd")
    else:
        policy.mkdir()
    code, _, err = run(sys.executable, "-m", "kvplan", "check", "--gpu", "h100-sxm", ".", cwd=tmp_path)
    assert code == ExitCode.CANNOT_JUDGE
    assert ".kvplan.yaml" in err


def test_our_own_errors_pass_through_unchanged() -> None:
    with pytest.raises(InputError, match=r"^the line$"), reading("a file"):
        raise InputError("the line")
    with pytest.raises(InputError, match=r"a file holds a value .* \(ZeroDivisionError"), reading("a file"):
        print(1 // 0)


def test_sizes_beyond_any_machine_are_refused() -> None:
    with pytest.raises(InputError, match=r"inf GiB is not a size"):
        bytes_from_gib(float("inf"))
    with pytest.raises(InputError, match="digits is no size"):
        parse_count("9" * 30, "--x")


@pytest.mark.parametrize(
    "argv",
    [
        ("profiles", "calibrate", "--launches", "/dev/zero"),
        ("profiles", "calibrate", "--log", "/dev/zero", "--gpu", "h100"),
        ("profiles", "models", "--profiles", "/dev"),
        ("estimate", "--model", "qwen2-7b", "--gpu", "4090", "--workload", "/dev/zero"),
        ("estimate", "--model", "/dev/zero", "--gpu", "4090"),
        ("estimate", "--model", "qwen2-7b", "--gpu", "4090", "--config", "/dev/zero"),
        ("workload", "/dev/zero"),
    ],
)
def test_what_has_no_end_is_refused_in_one_line(argv: tuple[str, ...]) -> None:
    code, out, err = run(sys.executable, "-m", "kvplan", *argv)
    assert code == ExitCode.CANNOT_JUDGE
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("kvplan: ")
    assert err.rstrip().endswith(")"), "a hint"


def test_a_store_of_launches_without_end(tmp_path: Path) -> None:
    (tmp_path / ".kvplan.yaml").write_text("launches: /dev/zero\n")
    code, _, err = run(*QWEN, cwd=tmp_path)
    assert (code, err) == (
        ExitCode.CANNOT_JUDGE,
        "kvplan: /dev/zero is longer than 256 MiB, which no such file is (name another file)\n",
    )


def test_text_is_read_whole_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("grün\n")
    assert read_text(path, most_bytes=6) == "grün\n"
    with pytest.raises(InputError, match="is longer than 0 MiB"):
        read_text(path, most_bytes=5)
    path.write_bytes(b"a\nb\xff")
    with pytest.raises(InputError, match=r"a:2 cannot be read: not UTF-8 text"):
        read_text(path)
    assert read_text(path, errors="replace") == "a\nb\ufffd"
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_text(tmp_path)
