"""How far real launches were from the memory model, each predicted without its own source.

Two lists, of the published launches in tests/data/launches.jsonl: what the model missed of the KV cache that
vLLM printed (in percent of the card; positive: more was promised), and of the memory that vLLM does not count
(in GiB; positive: more was used). `source` is the post or project of a launch: draw a source first, then one
of its launches, so that each source counts once.

    python tests/bench/overhead_residuals.py        # writes tests/data/overhead_residuals.json, about 10 s
"""

from __future__ import annotations

import json
from pathlib import Path

from kvplan.calibration.cases import prepare
from kvplan.calibration.evaluate import leave_one_source_out, predict_all
from kvplan.calibration.fit import predicted_gib, targets_of
from kvplan.calibration.public_launches import read_public_launches
from kvplan.calibration.study import default_launches_path
from kvplan.memory.overhead.fitted import FITTED

RESIDUALS = Path(__file__).parents[1] / "data" / "overhead_residuals.json"


def main() -> None:
    """Write both lists."""
    cases, _ = prepare(read_public_launches(default_launches_path()))
    fitted = leave_one_source_out(cases, FITTED)
    outcomes, _ = predict_all(
        (case for case in cases if case.launch.is_usable), lambda case: fitted[case.launch.source]
    )
    kv_cache = [
        {"source": o.case.launch.source, "launch": o.case.launch.id, "percent_of_card": round(percent, 4)}
        for o in outcomes
        if (percent := o.error_percent) is not None
    ]
    outside = [
        {
            "source": target.case.launch.source,
            "launch": target.case.launch.id,
            "gib": round(target.measured_gib - predicted_gib(target, fitted[target.case.launch.source]), 4),
        }
        for target in targets_of(cases)
        if target.figure == "outside"
    ]
    text = json.dumps({"kv_cache": kv_cache, "outside_budget": outside}, indent=1)
    RESIDUALS.write_text(text + "\n", encoding="utf-8")
    print(f"{len(kv_cache)} launches with a KV cache, {len(outside)} with memory outside the budget")


if __name__ == "__main__":
    main()
