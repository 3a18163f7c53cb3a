"""The weights of every case in tests/data/weights_table.jsonl are those of vLLM 0.32.0's own model classes.

The table is made by tests/bench/make_weights_table.py; nothing in it was computed by kvplan. It holds what a
rank creates, before kernels rearrange quantised layers, so those are compared in the checkpoint's layout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.architecture.quantization import quantization_plan
from kvplan.architecture.tensors import weight_tensors
from kvplan.architecture.tensors.rotary import rotary_tables
from kvplan.memory.weights import stage_layers, weights_per_gpu
from kvplan.memory.weights_modules import Module, Rank, merged_tensors, rank_modules
from kvplan.units import MIB

DATA = Path(__file__).parents[1] / "data"
ROWS = [json.loads(line) for line in (DATA / "weights_table.jsonl").read_text().splitlines()]
VERSION = (0, 32, 0)
SCALARS = 2e-5
"""Share of a quantised rank in scalar scales and shapes (`weight_shape`, `input_scale`): not counted."""


def config_of(row: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((DATA / "configs" / f"{row['config']}.json").read_text())
    if "quantization_config" in row:
        config["quantization_config"] = row["quantization_config"]
    return config


def label(row: dict[str, Any]) -> str:
    return f"{row['config']} {row.get('format', '')} tp{row['tp']} pp{row['pp']} {row.get('gpu', '')}"


def stage_bytes(modules: list[Module], row: dict[str, Any], *, laid_out: bool) -> list[int]:
    """Bytes of each stage, in the checkpoint's layout or the kernel's."""
    layers = max(max(m.layers) + 1 for m in modules if m.layers)
    sizes, start = [], 0
    for stage, count in enumerate(stage_layers(layers, row["pp"])):
        held = range(start, start + count)
        total = 0
        for module in modules:
            if module.layers is not None:
                copies = sum(layer in held for layer in module.layers)
            else:
                ends = {"first": stage == 0, "last": stage == row["pp"] - 1}
                ends["ends"] = ends["first"] or ends["last"]
                copies = int(ends.get(module.place, True))
            total += copies * module.copies * (sum(module.sizes) if laid_out else module.created)
        sizes.append(total)
        start += count
    return sizes


def comparable(row: dict[str, Any]) -> bool:
    """MXFP4 experts are padded for their kernel at once: Hopper's is not in the vLLM that was asked."""
    return "gpt-oss" not in row["config"] or row.get("gpu") == "a100-80"


@pytest.mark.parametrize("row", [r for r in ROWS if comparable(r)], ids=label)
def test_each_stage_of_a_rank_holds_what_vllm_creates(row: dict[str, Any]) -> None:
    config = config_of(row)
    plan = quantization_plan(config, None, VERSION)
    padded = plan is not None and plan.method == "mxfp4"
    rank = Rank(row["tp"], 1, expert_parallel=False, dtype_bytes=2, capability=(8, 0), version=VERSION)
    found = stage_bytes(
        rank_modules(merged_tensors(weight_tensors(config), plan), rank), row, laid_out=padded
    )
    wanted = [stage["parameter_bytes"] for stage in row["stages"]]
    if plan is None:
        assert found == wanted
    else:
        # gpt-oss: the padding of the experts' biases too, half a megabyte.
        slack = 5e-5 if padded else SCALARS
        assert found == pytest.approx(wanted, rel=slack)


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_buffers_are_the_rotary_tables_and_little_else(row: dict[str, Any]) -> None:
    tables = sum(rotary_tables(config_of(row), 2, VERSION))
    largest = max(stage["buffer_bytes"] for stage in row["stages"])
    # Left over: views and float32 copies of convolution weights, scales of the KV cache, position numbers.
    little = max(5 * MIB, max(stage["parameter_bytes"] for stage in row["stages"]) // 10_000)
    assert tables <= largest + MIB
    assert largest - tables < little


def test_an_unquantised_answer_is_exact_and_per_stage() -> None:
    row = next(r for r in ROWS if r["config"].endswith("Llama-3.1-8B") and r["pp"] == 2)
    answer = weights_per_gpu(
        config_of(row),
        None,
        dtype="bfloat16",
        quantization=None,
        tensor_parallel_size=2,
        pipeline_parallel_size=2,
        vllm_version=VERSION,
    )
    assert [stage.mid for stage in answer.per_stage] == [s["parameter_bytes"] for s in row["stages"]]
    assert answer.exact
    assert answer.bytes.mid == max(s["parameter_bytes"] for s in row["stages"])


def test_the_table_has_one_model_of_each_kind_at_every_tensor_parallel_size() -> None:
    sizes: dict[str, set[int]] = {}
    for row in ROWS:
        sizes.setdefault(row["config"], set()).add(row["tp"])
    assert sum({1, 2, 4} <= found for found in sizes.values()) >= 12
