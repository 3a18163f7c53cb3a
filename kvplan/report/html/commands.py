"""The commands that make the run again: the tuner's own, and each launch's as it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.config.argv import to_argv
from kvplan.report.html.words import shell_lines
from kvplan.report.paste import serve_command
from kvplan.tune.problem import settings_from_dict
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvplan.report.tune import TuneReport
    from kvplan.tune.trial import Trial

_COMMAND_FILE: Final = "command.txt"
_LONGEST_COMMAND: Final = 16_384
_OWN_FLAGS: Final = frozenset(
    {
        "max_model_len",
        "max_num_batched_tokens",
        "dtype",
        "quantization",
        "tensor_parallel_size",
        "enforce_eager",
        "enable_prefix_caching",
    }
)
"""vLLM flags that `kvplan tune` has as its own; others reach it through a vLLM YAML file."""


def tune_command(report: TuneReport) -> tuple[str, tuple[str, ...]]:
    """The `kvplan tune` line that asks the same question, and what no flag can say."""
    words = [*_subject(report), *_target(report), *_search(report)]
    own = {name: value for name, value in report.problem.fixed.items() if name in _OWN_FLAGS}
    words += to_argv(settings_from_dict(own))
    notes = []
    others = {name: value for name, value in report.problem.fixed.items() if name not in _OWN_FLAGS}
    if others:
        words += ["--config", "flags.yaml"]
        flags = ", ".join(f"{name.replace('_', '-')}: {value}" for name, value in others.items())
        notes.append(f"flags.yaml holds {flags}")
    workload = report.header["context"]["workload"]
    if not _has_fixed_lengths(workload):
        notes.append(
            f"workload.yaml is the workload {workload['name']!r} ({workload['source']}); its lengths are in "
            "the first line of journal.jsonl"
        )
    if report.problem.space.other:
        notes.append(f"more knobs were searched: {', '.join(report.problem.space.other)} (in the journal)")
    return shell_lines(("kvplan", "tune"), words), tuple(notes)


def launch_command(report: TuneReport, trial: Trial, folder: Path) -> str | None:
    """How a trial's server was started: the line that the run kept, else the flags of its launch record."""
    try:
        path = folder / "trials" / f"{trial.number}" / _COMMAND_FILE
        with path.open(encoding="utf-8", errors="replace") as file:
            kept = file.read(_LONGEST_COMMAND).strip()
    except OSError:
        kept = ""
    if kept or trial.launch is None:
        return kept or None
    return serve_command(report.problem.model, trial.launch.settings, report.problem.device)


def _has_fixed_lengths(workload: Any) -> bool:
    return len(workload["samples"]) == 1 and not workload["shared_prefix_tokens"] and workload["turns"] == 1


def _subject(report: TuneReport) -> Iterator[str]:
    problem = report.problem
    if problem.prove_low_end:
        yield "--demo"
    else:
        yield from ("--model", problem.model)
    yield from ("--device", problem.device)
    if problem.device == "cpu":
        yield from ("--gpu-memory-gib", f"{problem.card_bytes / GIB:.12g}")


def _target(report: TuneReport) -> Iterator[str]:
    problem, workload = report.problem, report.header["context"]["workload"]
    yield from ("--target-concurrency", f"{problem.target_concurrency}")
    if _has_fixed_lengths(workload):
        input_len, output_len = workload["samples"][0][:2]
        yield from ("--input-len", f"{input_len}", "--output-len", f"{output_len}")
    else:
        yield from ("--workload", "workload.yaml")
    for name in ("ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms", "max_preemptions"):
        limit = getattr(problem.constraints, name)
        if limit is not None:
            yield from (f"--{name.replace('_', '-')}", f"{limit:g}")
    if problem.constraints.min_headroom_bytes is not None:
        yield from ("--min-headroom-gib", f"{problem.constraints.min_headroom_bytes / GIB:.12g}")


def _search(report: TuneReport) -> Iterator[str]:
    problem, budget = report.problem, report.header["budget"]
    if problem.objective != "target":
        yield from ("--objective", problem.objective)
    if problem.strategy != "guided":
        yield from ("--strategy", problem.strategy)
    space = problem.space
    lists = (
        ("--gpu-memory-utilization", space.utilization),
        ("--kv-cache-dtype", space.kv_cache_dtype),
        ("--block-size", space.block_size),
        ("--max-num-seqs", space.max_num_seqs),
    )
    for flag, values in lists:
        for value in values:
            yield from (flag, f"{value}")
    yield from ("--tolerance", f"{problem.tolerance:g}", "--margin", f"{problem.margin:g}")
    yield from ("--max-launches", f"{budget['max_launches']}", "--max-minutes", f"{budget['max_minutes']:g}")
    yield from ("--seed", f"{problem.seed}")
