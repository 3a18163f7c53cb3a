"""Names that others chose reach no terminal as commands, and forge no line of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvplan.visible import harmless, visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

EVIL = "a\x1b]0;owned\x07\x1b[2J\u202eb\x9b31m\nFORGED: starts (p = 1.00)\rFORGED"
LLAMA = {
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 24 GB", "plain text, 24 GB"),
        ("grün 4090 \u2026", "grün 4090 \u2026"),
        ("\x1b[31m", "\\u001b[31m"),
        ("a\nb\tc", "a\\u000ab\\u0009c"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\udb40\\udc41"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown
    if "\n" not in text and "\t" not in text:
        assert harmless(text) == shown
        # As JSON reads it, it is the character itself.
        assert json.loads(f'"{shown}"') == text


def test_our_own_lines_stay_lines() -> None:
    assert harmless("a\n\tb\x1b") == "a\n\tb\\u001b"


def run(argv: Sequence[str], cwd: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *argv],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=60,
        env=os.environ | {"XDG_DATA_HOME": str(cwd / "data"), "XDG_CACHE_HOME": str(cwd / "cache")},
    )
    assert done.returncode in {0, 1, 2}, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder in which every name that kvplan may read is hostile."""
    model = tmp_path / EVIL
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps(LLAMA | {"architectures": [EVIL]}))
    (tmp_path / "quant").mkdir()
    (tmp_path / "quant" / "config.json").write_text(
        json.dumps(LLAMA | {"quantization_config": {"quant_method": EVIL}})
    )
    quoted = json.dumps(EVIL)
    (tmp_path / "w.yaml").write_text(
        f"schema: kvplan.workload/1\nname: {quoted}\nsource: {quoted}\nlengths: {{input: 100, output: 10}}\n"
    )
    (tmp_path / "bad.yaml").write_text(f"schema: kvplan.workload/1\nname: x\n{quoted}: 1\n")
    gpus = tmp_path / "own" / "gpus"
    gpus.mkdir(parents=True)
    (gpus / "a.yaml").write_text(
        f"id: {quoted}\nname: {quoted}\naliases: [mine]\n"
        f"total_gib: {{value: 24, source: {quoted}}}\nnotes: [{quoted}]\n"
    )
    (tmp_path / "flags.yaml").write_text(f"kv-cache-dtype: {quoted}\n")
    (tmp_path / "log").write_text(f'{{"prompt_tokens": 5, "completion_tokens": 5}}\n{EVIL}\n')
    return tmp_path


@pytest.mark.parametrize(
    "argv",
    [
        ("estimate", "--model", EVIL, "--gpu", "4090"),
        ("estimate", "--model", EVIL, "--gpu", "4090", "--format", "markdown", "--explain"),
        ("estimate", "--model", EVIL, "--gpu", "4090", "--format", "json"),
        ("estimate", "--model", "odd", "--gpu", "4090"),
        ("estimate", "--model", "quant", "--gpu", "4090"),
        ("estimate", "--model", "qwen2-7b", "--gpu", "mine", "--profiles", "own"),
        ("estimate", "--model", "qwen2-7b", "--gpu", EVIL),
        ("estimate", "--model", "qwen2-7b", "--gpu", "4090", "--config", "flags.yaml"),
        ("estimate", "--model", "qwen2-7b", "--gpu", "4090", "--workload", "w.yaml"),
        ("estimate", "--model", "qwen2-7b", "--gpu", "4090", "--workload", "bad.yaml"),
        ("estimate", "--model", "qwen2-7b", "--gpu", "4090", "--kv-cache-dtype-skip-layers", EVIL),
        ("estimate", "--gpu", "4090", "--compare", EVIL, "odd", "quant"),
        ("profiles", "gpus", "--profiles", "own"),
        ("profiles", "gpus", "--profiles", "own", "--format", "json"),
        ("profiles", "show", "mine", "--profiles", "own"),
        ("profiles", "add", EVIL, "--profiles", "own"),
        ("workload", "w.yaml"),
        ("workload", "w.yaml", "--format", "markdown"),
        ("workload", "w.yaml", "--format", "json"),
        ("workload", "bad.yaml"),
        ("workload", "log", "--name", EVIL),
        ("workload", "log", "--name", EVIL, "--output", "-"),
        ("report", EVIL),
    ],
    ids=lambda argv: " ".join(word.replace(EVIL, "EVIL") for word in argv),
)
def test_hostile_names_do_nothing(hostile: Path, argv: tuple[str, ...]) -> None:
    for text in run(argv, hostile):
        # A file of ours that goes to a pipe is data: YAML spells out what acts on a terminal, no more.
        spared = "\n\u202e" if "--output" in argv else "\n"
        assert [c for c in text if not (c.isprintable() or c in spared)] == []
        assert [line for line in text.splitlines() if line.lstrip(" -#*|\"'").startswith("FORGED")] == []


def test_a_project_file_with_hostile_names(hostile: Path) -> None:
    (hostile / ".kvplan.yaml").write_text(
        f"model: {json.dumps(EVIL)}\ngpu: 4090\nworkload: {json.dumps(EVIL)}\n"
    )
    for text in run(("estimate",), hostile):
        assert [c for c in text if not (c.isprintable() or c == "\n")] == []
        assert "\nFORGED" not in text
