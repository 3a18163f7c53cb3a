"""The demo model: the same bytes every time, made once, with a tokenizer of one token a byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvplan.engine.demo_model import make_demo_model

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("tokenizers")
pytest.importorskip("torch")


def test_the_same_parameters_are_made_once_and_others_elsewhere(tmp_path: Path) -> None:
    first = make_demo_model(tmp_path)
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert make_demo_model(tmp_path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made
    assert make_demo_model(tmp_path, seed=1) != first
    assert {path.parent for path in tmp_path.rglob("config.json")} == set(tmp_path.iterdir())


def test_the_weights_are_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    one, two = (make_demo_model(tmp_path / name, num_hidden_layers=1) for name in ("a", "b"))
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_its_size_is_that_of_its_shape(tmp_path: Path) -> None:
    folder = make_demo_model(tmp_path)
    # Embedding (tied) 259 x 256; a layer: q, o 256 x 256, k, v 128 x 256, biases 256 + 2 x 128,
    # MLP 3 x 512 x 256, two norms of 256; a last norm of 256.
    layer = 2 * 256 * 256 + 2 * 128 * 256 + 256 + 2 * 128 + 3 * 512 * 256 + 2 * 256
    parameters = 259 * 256 + 4 * layer + 256
    header_bytes = int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    assert (folder / "model.safetensors").stat().st_size == 8 + header_bytes + 2 * parameters


def test_its_tokenizer_has_one_token_a_byte(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = make_demo_model(tmp_path, num_hidden_layers=1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == json.loads((folder / "config.json").read_text())["vocab_size"] == 259
    for text in ("hello world", "  ä€😀\n"):
        tokens = tokenizer.encode(text).ids
        assert len(tokens) == len(text.encode())
        assert tokenizer.decode(tokens) == text
