"""Print the table of docs/weights.md: predicted weights beside what real starts of vLLM printed.

Usage: python tests/bench/compare_weights_launches.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from kvplan.config.version import parse_vllm_version
from kvplan.memory.weights import weights_per_gpu
from kvplan.units import GIB

DATA = Path(__file__).parents[1] / "data"


def config_of(row: dict[str, Any]) -> dict[str, Any]:
    """The record's model configuration."""
    base = row["config"]
    config = json.loads((DATA / "configs" / f"{base}.json").read_text()) if base else {}
    return {**config, **row.get("overrides", {})}


def answer(row: dict[str, Any], config: dict[str, Any]) -> tuple[float, float]:
    """GiB of the weights alone, and as allocated."""
    card = row.get("compute_capability")
    found = weights_per_gpu(
        config,
        None,
        dtype=row["dtype"],
        quantization=row.get("quantization"),
        tensor_parallel_size=row["tp"],
        pipeline_parallel_size=row["pp"],
        cpu_offload_bytes=row.get("cpu_offload_bytes", 0),
        vllm_version=parse_vllm_version(row["vllm"]),
        compute_capability=tuple(card) if card else None,
    )
    return found.bytes.mid / GIB, found.allocated.mid / GIB


def main() -> None:
    """One line a record, then the shares."""
    rows = [json.loads(line) for line in (DATA / "weights_launches.jsonl").read_text().splitlines()]
    met: dict[str, list[bool]] = {"unquantised": [], "quantised": []}
    errors: dict[str, list[float]] = {"unquantised": [], "quantised": []}
    print("| record | model | printed | weights | allocated | error | |")
    print("|---|---|---:|---:|---:|---:|---|")
    for row in rows:
        if "no_config" in row:
            print(f"| {row['id']} | {row['model']} | {row['printed_gib']} | | | | {row['no_config']} |")
            continue
        config = config_of(row)
        kind = "quantised" if row.get("quantization") or config.get("quantization_config") else "unquantised"
        alone, allocated = answer(row, config)
        error = allocated - row["printed_gib"]
        bound = 0.03 * row["printed_gib"] if kind == "quantised" else max(0.005 * row["printed_gib"], 0.05)
        met[kind].append(abs(error) <= bound)
        errors[kind].append(abs(error))
        word = row.get("explained") or (f"assumed: {row['assumed']}" if "assumed" in row else "")
        print(
            f"| {row['id']} | {row['model']} | {row['printed_gib']} | {alone:.3f} | {allocated:.3f}"
            f" | {error:+.3f} | {word} |"
        )
    print()
    for kind, oks in met.items():
        middle = statistics.median(errors[kind])
        print(f"{kind}: {sum(oks)} of {len(oks)} met, median error {middle:.4f} GiB")


if __name__ == "__main__":
    main()
