"""Our and other planners' available KV memory on the published launches that each of them can answer.

usage: python tests/bench/peers/compare.py PEERS_PYTHON [--csv FILE]

PEERS_PYTHON is the interpreter of a virtual environment that has them:
    python -m venv peers && peers/bin/pip install kvfit==0.3.0 modelinfo-cli==1.4.4 llm-d-planner==0.3.3

Only unquantised checkpoints are asked about: what the tools make of a quantised one depends on headers of
files that are not here. The peers are told the exact bytes and parameters of the weight files, and the card's
memory as they count it (marketing GB as GiB). Ours is the fit without the launch's own source.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.architecture.tensors import weight_tensors
from kvplan.calibration.study import default_launches_path, score_left_out
from kvplan.catalog.gpus import gpu_profiles
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.calibration.evaluate import Outcome

TOOLS = ("kvfit", "planner", "modelinfo")


def main() -> None:
    """Ask everybody and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    marketing = {p["id"]: p["marketing_gb"] for p in gpu_profiles() if "marketing_gb" in p}
    outcomes = {
        o.case.launch.id: o
        for o in score_left_out(default_launches_path()).outcomes
        if o.case.launch.kv_cache_bytes
        and "quantization_config" not in o.case.planner.model_config
        and o.case.settings.quantization is None
        and o.case.planner.gpu.id in marketing
    }
    tasks = [task_of(o, marketing[o.case.planner.gpu.id]) for o in outcomes.values()]
    answers = {tool: ask(arguments.python, tool, tasks) for tool in TOOLS}
    print(f"{len(tasks)} launches of unquantised checkpoints with a printed KV cache\n")
    rows = [
        row_of(tool, {k: (v, ours_gib(outcomes[k])) for k, v in found.items()}, outcomes)
        for tool, (found, _) in answers.items()
    ]
    ours_alone = {k: (ours_gib(o), ours_gib(o)) for k, o in outcomes.items()}
    for row in (*rows, row_of("kvplan (all)", ours_alone, outcomes)):
        print(row)
    for tool, (_, refused) in answers.items():
        for reason, count in sorted(refused.items(), key=lambda item: -item[1]):
            print(f"{tool} did not answer {count}: {reason}", file=sys.stderr)
    if arguments.csv:
        write_csv(Path(arguments.csv), outcomes, answers)


def task_of(outcome: Outcome, marketing_gb: float) -> dict[str, Any]:
    """What a peer needs to know of one launch."""
    case = outcome.case
    tensors = weight_tensors(case.planner.model_config)
    parameters = sum(
        math.prod(t.shape) * t.count * (len(t.layers) if t.layers is not None else 1) for t in tensors
    )
    settings = case.settings
    return {
        "id": case.launch.id,
        "model": case.launch.model,
        "gpu": case.planner.gpu.name,
        "config": dict(case.planner.model_config),
        "parameters": parameters,
        "weights_bytes": 2 * parameters,
        "marketing_gb": marketing_gb,
        "tp": settings.tensor_parallel_size,
        "pp": settings.pipeline_parallel_size,
        "utilization": settings.gpu_memory_utilization,
        "max_model_len": settings.max_model_len,
    }


def ask(python: str, tool: str, tasks: list[dict[str, Any]]) -> tuple[dict[str, float], dict[str, int]]:
    """(launch -> GiB per GPU, reason -> how many it did not answer)."""
    done = subprocess.run(
        [python, str(Path(__file__).with_name("ask.py")), tool],
        input="\n".join(json.dumps(task) for task in tasks) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, float] = {}
    refused: dict[str, int] = {}
    for answer in map(json.loads, done.stdout.splitlines()):
        if "kv_gib" in answer:
            found[answer["id"]] = answer["kv_gib"]
        else:
            refused[answer["error"]] = refused.get(answer["error"], 0) + 1
    if not found and not refused:
        refused[f"did not run: {done.stderr.strip().splitlines()[-1:]}"] = len(tasks)
    return found, refused


def ours_gib(outcome: Outcome) -> float:
    """Our middle figure for the same launch."""
    return outcome.answer.budget.available_kv_bytes.mid / GIB


def row_of(tool: str, pairs: dict[str, tuple[float, float]], outcomes: dict[str, Outcome]) -> str:
    """A tool's errors beside ours on the launches that it answered."""
    if not pairs:
        return f"{tool:<14} answered none"
    theirs, ours = ([error_percent(outcomes[k], pair[i]) for k, pair in pairs.items()] for i in (0, 1))
    return (
        f"{tool:<14} answered {len(pairs):3d}: median error {statistics.median(map(abs, theirs)):5.2f} % "
        f"of the card, over-promises {sum(e > 2 for e in theirs) / len(theirs):4.0%}; kvplan on the same "
        f"{statistics.median(map(abs, ours)):5.2f} %, {sum(e > 2 for e in ours) / len(ours):4.0%}"
    )


def error_percent(outcome: Outcome, predicted_gib: float) -> float:
    """Predicted minus printed, in percent of the card as software sees it."""
    measured = (outcome.case.launch.kv_cache_bytes or 0) / GIB
    return 100 * (predicted_gib - measured) * GIB / outcome.answer.gpu.total_bytes


def write_csv(path: Path, outcomes: dict[str, Outcome], answers: dict[str, Any]) -> None:
    """One launch a line."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("launch", "printed", "kvplan", *TOOLS))
        for name, outcome in outcomes.items():
            printed = (outcome.case.launch.kv_cache_bytes or 0) / GIB
            others = [answers[tool][0].get(name, "") for tool in TOOLS]
            writer.writerow((name, round(printed, 2), round(ours_gib(outcome), 2), *others))


if __name__ == "__main__":
    main()
