"""The grid of real launches and the guided runs beside it: where they lie, and how two are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.tune.choose import (
    LAUNCH_NOISE,
    compare,
    mean,
    objective_values,
    prediction_half_width,
)
from kvplan.tune.journal import FILE_NAME, JournalContents, read_journal
from kvplan.tune.replay import outcome_of
from kvplan.tune.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.config.serving import ServingConfig
    from kvplan.tune.choose import Difference
    from kvplan.tune.problem import Problem

RUNS: Final = Path("kvplan-runs/grid")
"""Where runs are made, in the folder that one is in."""
DATA: Final = Path(__file__).parents[1] / "data" / "grid"
"""Where they are kept."""
SEEDS: Final = (0, 1, 2)
MAX_LAUNCHES: Final = 6
"""Of a guided run."""
CLOSE: Final = 0.03
"""A setting this close below the grid's best counts as found."""
IN_TURN: Final = ("classes", "paired")
"""Names of the launches in turn."""


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
