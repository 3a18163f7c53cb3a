"""The tables of docs/tuning.md about the grid of real launches, from tests/data/grid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.tune.choose import compare_paired, mean, objective_values
from kvplan.tune.grid import best_of
from kvplan.tune.problem import Problem
from tests.bench.grid_data import (
    IN_TURN,
    confirmed,
    grid_journal,
    guided_journals,
    holds_target,
    judged,
    launch_noise_of,
    named,
    trials_in_turn,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvplan.config.serving import ServingConfig
    from kvplan.tune.trial import Trial

DOCS: Final = Path(__file__).parents[2] / "docs" / "tuning.md"
_BEGIN, _END = "<!-- made by python -m tests.bench.tune_grid_real --docs -->", "<!-- end -->"


def write_docs() -> None:
    """Put the tables between their marks in docs/tuning.md."""
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    text = DOCS.read_text()
    assert pattern.search(text), f"{DOCS} has no {_BEGIN}"
    tables = "\n".join(report())
    DOCS.write_text(pattern.sub(lambda _: f"{_BEGIN}\n\n{tables}\n\n{_END}", text))


def report() -> Iterator[str]:
    """The tables' lines, in Markdown."""
    journal = grid_journal()
    problem, trials = Problem.from_dict(journal.header["problem"]), list(journal.trials)
    best = best_of(problem, trials)
    assert best is not None
    noise = launch_noise_of(problem, trials, best)
    yield from _grid(problem, [trial for trial in trials if trial.spec.phase == "grid"])
    best_values = objective_values(problem, best)
    yield ""
    yield (
        f"The best that may be recommended: {named(best.spec.settings)}, {mean(best_values):,.0f} tokens/s; "
        f"one more launch of its kv_cache_dtype and block_size lies within {noise:.0%} of their mean."
    )
    if guided := guided_journals():
        yield ""
        yield "| guided | launches | recommends | tokens/s | against the grid's best | |"
        yield "|:--|--:|:--|--:|:--|:--|"
        for seed, run in guided.items():
            trial = confirmed(run)
            values = objective_values(problem, trial)
            change, said = verdict(best_values, values, noise)
            yield (
                f"| seed {seed} | {len(run.trials)} | {named(trial.spec.settings)} | {mean(values):,.0f} | "
                f"{change} | {said} |"
            )
    for name in IN_TURN:
        yield from _in_turn(problem, name, best.spec.settings)


def _grid(problem: Problem, points: Sequence[Trial]) -> Iterator[str]:
    """A row for each utilisation and kv_cache_dtype, a column for each max_num_seqs and block_size."""
    columns = sorted({(t.spec.settings.max_num_seqs or 0, t.spec.settings.block_size or 0) for t in points})
    rows = sorted({(t.gpu_memory_utilization or 0.0, str(t.spec.settings.kv_cache_dtype)) for t in points})
    heads = [f"{seqs} seqs, block {size}" for seqs, size in columns]
    yield f"| utilisation | kv_cache_dtype | {' | '.join(heads)} | |"
    yield f"|--:|:--|{'--:|' * len(columns)}:--|"
    for utilization, dtype in rows:
        shown, said = [], set()
        for seqs, size in columns:
            trial = next(
                t
                for t in points
                if (t.gpu_memory_utilization, t.spec.settings.kv_cache_dtype) == (utilization, dtype)
                and (t.spec.settings.max_num_seqs, t.spec.settings.block_size) == (seqs, size)
            )
            value = mean(objective_values(problem, trial))
            shown.append(f"{trial.failure}" if value is None else f"{value:,.0f}")
            if trial.survived and not holds_target(problem, trial):
                said.add("requests waited for KV cache")
        yield f"| {utilization:g} | {dtype} | {' | '.join(shown)} | {', '.join(said)} |"


def _in_turn(problem: Problem, name: str, best: ServingConfig) -> Iterator[str]:
    """Each launch beside the one of the grid's best in the same round: what drifts weighs on both alike."""
    rounds: dict[str, dict[int, float]] = {}
    for trial in trials_in_turn(name):
        value = mean(objective_values(problem, trial))
        if value is not None:
            rounds.setdefault(named(trial.spec.settings), {})[trial.spec.attempt] = value
    base = rounds.get(named(best))
    if base is None:
        return
    yield ""
    yield "| launched in turn | tokens/s of each round | against the grid's best | |"
    yield "|:--|:--|:--|:--|"
    for settings, by_round in rounds.items():
        shown = ", ".join(f"{value:,.0f}" for _, value in sorted(by_round.items()))
        pairs = [(base[turn], value) for turn, value in by_round.items() if turn in base]
        change, said = ("", "the grid's best") if by_round is base else judged(compare_paired(pairs), 0.0)
        yield f"| {settings} | {shown} | {change} | {said} |"
