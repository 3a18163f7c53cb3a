"""A tuning session on this machine: a new run or one that goes on, from the first launch to the outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.calibration.store import store_path
from kvplan.config.project_file import read_project_file
from kvplan.engine.interrupts import signals_as_interrupts
from kvplan.engine.plan import printable_argv, printable_setup
from kvplan.errors import InputError
from kvplan.tune.answers import is_looked_at, is_reference
from kvplan.tune.assumed import AssumedServer
from kvplan.tune.execute import EngineExecutor
from kvplan.tune.expectations import LOAD_S, expected_start_s
from kvplan.tune.identity import installed_vllm, run_context
from kvplan.tune.journal import new_journal, refuse_mixing, reopened_journal
from kvplan.tune.replay import nothing_left
from kvplan.tune.resume import as_begun, prepare_again
from kvplan.tune.run import TuneRun
from kvplan.tune.strategies import search_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvplan.memory.hardware import GpuSpec
    from kvplan.tune.journal import Journal
    from kvplan.tune.request import TuneRequest
    from kvplan.tune.run import Watcher
    from kvplan.tune.setup import Prepared
    from kvplan.tune.trial import Trial


@dataclass(frozen=True, slots=True)
class LaunchForecast:
    """What a run is expected to launch, if memory is as the model says. The dry run; also the time left."""

    trials: tuple[Trial, ...]
    setup: str
    """The variables that every command below needs, as a shell sets them; secrets are masked."""
    commands: tuple[str, ...]
    """The launches, without the variables."""
    start_s: float
    start_source: str
    minutes: float
    """If each load is known after the fewest repeats."""
    most_minutes: float
    """If each launch's loads are repeated for as long as they may be (repeats.py)."""

    @property
    def minutes_text(self) -> str:
        """`5` or `5 to 9`."""
        least, most = f"{self.minutes:.0f}", f"{self.most_minutes:.0f}"
        return least if least == most else f"{least} to {most}"

    @property
    def mean_trial_s(self) -> float:
        """Seconds of a launch, in the middle of what is expected."""
        return 30 * (self.minutes + self.most_minutes) / max(1, len(self.trials))


_QUESTIONS_S: Final = 15.0
"""Expected seconds of the questions about a server's answers; of the reference, which is asked twice, twice.
Measured with the demo model on CPU: 12 to 14 s, and about 30 s (docs/quality.md)."""


def forecast(prepared: Prepared, runs_dir: Path) -> LaunchForecast:
    """The search, answered by the memory model instead of by vLLM."""
    assumed = prepared.assumed
    planner = prepared.planner
    server = AssumedServer(
        prepared.problem,
        prepared.rules,
        assumed.non_kv_bytes,
        assumed.unbudgeted_bytes,
        None if planner is None else planner.estimate,
    )
    search_of(
        prepared.problem,
        prepared.rules,
        server.run_trial,
        prepared.budget.max_launches,
        probe_utilization=assumed.probe_utilization,
    ).run()
    start_s, source = expected_start_s(prepared.problem, prepared.header["context"], runs_dir)
    executor = EngineExecutor(prepared.problem, prepared.workload, runs_dir / "RUN", None)
    launches = [executor.plan(trial.number, trial.spec) for trial in server.trials]
    loaded = [trial.spec for trial in server.trials if trial.survived]
    questions_s = sum(
        _QUESTIONS_S * (2 if is_reference(spec) else 1)
        for spec in loaded
        if is_looked_at(prepared.problem, spec)
    )
    seconds = start_s * len(server.trials) + LOAD_S * len(loaded) + questions_s
    # A server that is up is asked on for as long as another start would take.
    repeated = sum(1 for spec in loaded if any(level.most_repeats is not None for level in spec.levels))
    return LaunchForecast(
        trials=tuple(server.trials),
        setup=printable_setup(launches[0]),
        commands=tuple(printable_argv(launch) for launch in launches),
        start_s=start_s,
        start_source=source,
        minutes=seconds / 60,
        most_minutes=(seconds + start_s * repeated) / 60,
    )


def begin(prepared: Prepared, runs_dir: Path, watch: Callable[[Path, Prepared], Watcher]) -> Path:
    """A new run, to its end; gives its folder.

    Raises:
        InputError: it is for a GPU, and none is here.
        KvplanError: it cannot go on; what finished is in the journal.
        KeyboardInterrupt: interrupted; vLLM is stopped and what finished is in the journal.
    """
    if prepared.problem.device == "cuda":
        require_gpu()
    with new_journal(runs_dir, prepared.header) as journal:
        _run(prepared, journal, watch(journal.folder, prepared))
        return journal.folder


def go_on(
    folder: Path,
    request: TuneRequest,
    watch: Callable[[Path, Prepared], Watcher],
    say: Callable[[str], None],
) -> Path:
    """A run that was begun before, to its end; nothing that finished is repeated.

    A run that is at its end already is left as it is, and that is said.

    Raises:
        InputError: settings, machine, vLLM or model differ from those that it was begun with.
        KvplanError, KeyboardInterrupt: as for `begin`.
    """
    with reopened_journal(folder) as journal:
        contents = journal.contents
        given = as_begun(request, contents.header)
        if given is not None:
            refuse_mixing(contents, given.header["problem"], given.header["context"])
        prepared = prepare_again(contents.header, request.max_launches, request.max_minutes)
        if (why := nothing_left(contents, prepared.budget)) is not None:
            say(why)
            return folder
        if given is not None:
            # Where the model lies now: on another machine than the one that the run began on, elsewhere.
            problem = dataclasses.replace(prepared.problem, model=given.problem.model)
            prepared = dataclasses.replace(prepared, problem=problem)
        refuse_mixing(contents, contents.header["problem"], _context_now(prepared))
        journal.append("resumed", budget=dataclasses.asdict(prepared.budget))
        _run(prepared, journal, watch(folder, prepared))
        return folder


def _run(prepared: Prepared, journal: Journal, watcher: Watcher) -> None:
    gpu = prepared.header["gpu"]
    on_gpu = prepared.problem.device == "cuda"
    executor = EngineExecutor(
        prepared.problem,
        prepared.workload,
        journal.folder,
        watcher,
        gpu=gpu["name"] if on_gpu else None,
        launches=store_path(read_project_file()),
    )
    run = TuneRun(
        prepared.problem,
        prepared.rules,
        journal,
        executor,
        watcher,
        prepared.budget,
        prepared.assumed.probe_utilization,
    )
    _import_what_loads_need()
    with signals_as_interrupts():
        run.run()


def _import_what_loads_need() -> None:
    """Now: an import in the middle of a load would hold up its client for a second and be measured.

    What is missing is told by whoever needs it, with the extra that brings it.
    """
    for name in ("aiohttp", "numpy", "prometheus_client.parser", "scipy.stats"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _context_now(prepared: Prepared) -> dict[str, Any]:
    from kvplan.catalog.models import find_model

    source = find_model(prepared.problem.model, offline=True)
    return run_context(
        source, _gpu_now(prepared), prepared.problem.device, prepared.workload, installed_vllm()
    )


def _gpu_now(prepared: Prepared) -> GpuSpec:
    """The card that is here; on CPU the machine's own facts say enough."""
    from kvplan.memory.hardware import cpu_spec

    if prepared.problem.device == "cpu":
        return cpu_spec(prepared.problem.card_bytes)
    from kvplan.catalog.gpus import detect_gpus, find_gpu

    found = detect_gpus()
    return found[0].spec if found else find_gpu(prepared.header["gpu"]["id"])


def require_gpu() -> None:
    """Refuse to launch for a card that is not here.

    Raises:
        InputError: NVML finds none.
    """
    from kvplan.catalog.gpus import detect_gpus

    if not detect_gpus():
        raise InputError(
            "no GPU was found here through NVML, so nothing can be launched on it",
            "--dry-run shows the plan; --device cpu --gpu-memory-gib N tunes vLLM's CPU backend",
        )
