"""Parameters and bytes equal what the models' own files are published to hold.

tests/data/weights_published.jsonl: total sizes from safetensors indexes and model pages, none of them
computed by kvplan.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.architecture.stored_weights import StoredWeights
from kvplan.architecture.tensors import weight_tensors
from kvplan.errors import UnsupportedModelError
from kvplan.memory.weights import WeightsPerGpu, weights_per_gpu

DATA = Path(__file__).parents[1] / "data"
ROWS = [json.loads(line) for line in (DATA / "weights_published.jsonl").read_text().splitlines()]
INVERSE_FREQUENCIES = {
    # 64 values of 4 B a layer that old Llama files carry and nobody loads.
    "meta-llama/Llama-2-7b-hf": 32 * 64 * 4,
    "meta-llama/Llama-2-70b-hf": 80 * 64 * 4,
}
REFUSED = {
    "MiniMaxAI__MiniMax-M3": "minimax_m3",
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": "vision_config",
}
"""Configs without an answer, and what the refusal names."""


def answer(row: dict[str, Any]) -> WeightsPerGpu:
    config = json.loads((DATA / "configs" / f"{row['config']}.json").read_text())
    return weights_per_gpu(
        config | row.get("overrides", {}),
        StoredWeights(row["total_bytes"], None, "index", row["source"]),
        dtype="bfloat16",
        quantization=None,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        vllm_version=(0, 32, 0),
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model"])
def test_the_published_total_is_accounted_for(row: dict[str, Any]) -> None:
    found = answer(row)
    assert not any("than the config's tensors" in note for note in found.notes), found.notes
    assert found.source == "index"
    config = json.loads((DATA / "configs" / f"{row['config']}.json").read_text())
    quantised = (config | row.get("overrides", {})).get("quantization_config")
    if found.notes or quantised:
        return  # what is in the file besides is named in the note, or packed
    assert found.parameters is not None
    assert 2 * found.parameters + INVERSE_FREQUENCIES.get(row["model"], 0) == row["total_bytes"]


def test_most_published_totals_are_met_to_the_byte() -> None:
    plain = [found for row in ROWS if not (found := answer(row)).notes and "FP8" not in found.explanation]
    assert len(plain) >= 45


@pytest.mark.parametrize(
    ("model", "note"),
    [
        ("Qwen/Qwen3-1.7B", "tied head repeated in the files: not loaded (0.58 GiB)"),
        ("Qwen/Qwen3.5-9B", "multi-token prediction layer in the files: not loaded (0.45 GiB)"),
        ("zai-org/GLM-4.5-Air", "multi-token prediction layer in the files: not loaded (6.74 GiB)"),
    ],
)
def test_what_stays_in_the_file_is_named_with_its_size(model: str, note: str) -> None:
    # Qwen3-1.7B: 151,936 x 2,048 x 2 B = 0.58 GiB, the head that its file repeats.
    found = answer(next(row for row in ROWS if row["model"] == model))
    assert note in found.notes


def test_a_packed_checkpoint_is_met_to_the_byte() -> None:
    # 80 layers x 855,638,016 linear parameters x (4 + 16/128 + 4/128) bits, the rest in 2 B.
    row = next(row for row in ROWS if "AWQ" in row["model"])
    linear = 80 * 855_638_016
    by_hand = linear * (128 * 4 + 16 + 4) // (128 * 8) + 2 * (70_553_706_496 - linear)
    assert row["total_bytes"] == by_hand
    assert answer(row).bytes.low == by_hand


def test_qwen2_7b_is_7_615_616_512_parameters() -> None:
    # 28 layers x (3584 x 4608 + 4608 + 3584 x 3584 + 3 x 3584 x 18944 + 2 x 3584) + 3584
    # + 2 x 152064 x 3584 = 7,615,616,512; x 2 B = 15,231,233,024 (the index of Qwen2-7B-Instruct).
    config = json.loads((DATA / "configs/Qwen__Qwen2-7B.json").read_text())
    assert sum(tensor.elements for tensor in weight_tensors(config)) == 7_615_616_512
    found = answer({"config": "Qwen__Qwen2-7B", "total_bytes": 15_231_233_024, "source": "index"})
    assert found.bytes.mid == 15_231_233_024
    assert found.exact


@pytest.mark.parametrize("path", sorted((DATA / "configs").glob("*.json")), ids=lambda path: path.stem)
def test_every_public_config_is_answered_or_refused_by_name(path: Path) -> None:
    config = json.loads(path.read_text())
    if path.stem in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[path.stem]):
            weight_tensors(config)
        return
    tensors = weight_tensors(config)
    layers = {layer for tensor in tensors for layer in tensor.layers or ()}
    text = config.get("text_config") or config
    depth = next(
        text[key] for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if text.get(key)
    )
    assert layers == set(range(depth))
