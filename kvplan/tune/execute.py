"""One real trial: vLLM started, loaded, measured and stopped; its log, samples and requests kept."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.calibration.store import remember
from kvplan.engine import gpu as nvml
from kvplan.engine.plan import LaunchPlan, environment, printable_command
from kvplan.engine.server import EngineDiedError, EngineStartError, running_engine
from kvplan.errors import FailureClass, KvplanError, LoadError
from kvplan.load.cores import client_off
from kvplan.load.measure import measure_load
from kvplan.load.phase import GAVE_UP, Limits
from kvplan.load.records import Endpoint
from kvplan.quality.prober import sample_quality
from kvplan.tune.answers import is_looked_at, is_reference
from kvplan.tune.repeats import next_load
from kvplan.tune.trial import LoadResult, Trial, status_of
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.config.serving import ServingConfig
    from kvplan.engine.server import Engine, EngineEvent
    from kvplan.launch import Launch
    from kvplan.load.measure import Measurement
    from kvplan.load.records import Progress, RequestRecord
    from kvplan.load.workload import Workload
    from kvplan.quality.sample import QualitySample
    from kvplan.tune.problem import Problem
    from kvplan.tune.run import Watcher
    from kvplan.tune.trial import LoadLevel, TrialSpec

MEMORY_WAIT_S: Final = 120.0
_WORKER: Final = "VLLM::Worker"
"""How vLLM names the process that holds weights and KV cache (v1/executor/multiproc_executor.py, 0.32.0)."""


@dataclass(slots=True)
class EngineExecutor:
    """Makes trials of one run on this machine."""

    problem: Problem
    workload: Workload
    folder: Path
    """The run's folder."""
    watcher: Watcher | None
    """None shows nothing."""
    gpu: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    ready_timeout_s: float = 900.0
    launches: Path | None = None
    """The store that every real launch is added to; None keeps none (dry runs, tests)."""
    limits: Limits = field(default_factory=Limits)
    """When a request is given up: what ends a load that vLLM answers no more."""
    _started: float | None = field(default=None, init=False)
    _waiting_since: float | None = field(default=None, init=False)

    def plan(self, number: int, spec: TrialSpec) -> LaunchPlan:
        """The launch of a trial."""
        return LaunchPlan(
            model=self.problem.model,
            settings=launched_settings(spec.settings, self.problem.device),
            device=self.problem.device,
            work_dir=self.folder / "trials" / f"{number}",
            card_bytes=self.problem.card_bytes,
            gpu=self.gpu,
            gpu_uuids=self.gpu_uuids,
            ready_timeout_s=self.ready_timeout_s,
            served_model_name=f"kvplan-trial-{number}",
        )

    def command(self, number: int, spec: TrialSpec) -> str:
        """The launch as a shell would take it; secrets are masked."""
        return printable_command(self.plan(number, spec))

    def execute(self, number: int, spec: TrialSpec) -> Trial:
        """Launch, load, stop. A failure of vLLM is in the trial, not raised.

        Raises:
            KvplanError: nothing can be launched or kept at all (no vLLM, no memory, no card any more, a full
                disk); nothing of it is running.
            KeyboardInterrupt: passed on, after vLLM was stopped.
        """
        try:
            return self._execute(number, spec)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise KvplanError(
                f"the trial's files could not be written: {error.strerror or error}{where}",
                self._how_to_go_on(),
            ) from error

    def _execute(self, number: int, spec: TrialSpec) -> Trial:
        began = time.monotonic()
        self._started = self._waiting_since = None
        plan = self.plan(number, spec)
        shutil.rmtree(plan.work_dir, ignore_errors=True)  # what an interrupted attempt left
        plan.work_dir.mkdir(parents=True)
        (plan.work_dir / "command.txt").write_text(self.command(number, spec) + "\n")
        if self.problem.device == "cpu":
            wait_for_memory(self.problem.card_bytes, MEMORY_WAIT_S)
        else:
            self._require_card()
        session = _Session(self, plan.work_dir, spec)
        failure, evidence = None, None
        try:
            with running_engine(plan, on_event=self._on_event) as engine:
                session.run(engine)
            if session.broken is not None:
                failure, evidence = session.broken
        except (EngineStartError, EngineDiedError) as error:
            why = error.decisive_line or error.message
            if session.quality is None:
                session.launch, failure, evidence = error.launch, error.failure, why
            else:
                # The loads were answered whole: dying of the questions after them is no fault of settings.
                session.quality = dataclasses.replace(
                    session.quality, error=f"vLLM died of the questions: {why}"
                )
        except LoadError as error:
            failure, evidence = FailureClass.UNKNOWN, error.message
        self._remember(session.launch)
        return Trial(
            number=number,
            spec=spec,
            status=status_of(failure),
            launch=session.launch,
            loads=tuple(session.loads),
            failure=failure,
            evidence=evidence,
            kv_cache_bytes=session.kv_cache_bytes or spec.settings.kv_cache_memory_bytes,
            non_kv_bytes=session.non_kv_bytes,
            wall_s=round(time.monotonic() - (self._started or began), 3),
            waited_s=self._waited_s(),
            quality=session.quality,
        )

    def _waited_s(self) -> float:
        """Seconds that somebody else's engine kept the device."""
        if self._started is None or self._waiting_since is None:
            return 0.0
        return round(self._started - self._waiting_since, 3)

    def _require_card(self) -> None:
        """A run on cards began with all of them there: one that is gone is no failure of a setting.

        Raises:
            KvplanError: NVML does not answer for a card.
        """
        try:
            nvml.gpus(self.gpu_uuids)
        except nvml.GpuLostError as error:
            raise KvplanError(
                f"the GPU does not answer any more ({error})",
                "nvidia-smi and dmesg (Xid) tell why; when it is back: " + self._how_to_go_on(),
            ) from error

    def _how_to_go_on(self) -> str:
        return f"what finished is kept: kvplan tune --resume {self.folder}"

    def _remember(self, launch: Launch | None) -> None:
        """Let later estimates learn from this launch; a store that cannot be written stops no trial."""
        if launch is None or self.launches is None:
            return
        try:
            remember(launch, self.launches)
        except KvplanError as error:
            self.tell(error.message)

    def _on_event(self, event: EngineEvent) -> None:
        if event.kind == "waiting" and self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if event.kind == "starting":
            # Waiting for somebody else's engine is no time of this trial.
            self._started = time.monotonic()
        kind = event.kind.replace("_", " ")
        self.tell(event.text if event.kind == "waiting" else f"{kind}: {event.text}".rstrip(": "))

    def tell(self, text: str) -> None:
        """What the trial is doing now, to whoever watches."""
        if self.watcher is not None:
            self.watcher.phase(text)


class _Session:
    """What happens between ready and stop, and what is known when it breaks off."""

    def __init__(self, executor: EngineExecutor, folder: Path, spec: TrialSpec) -> None:
        self.loads: list[LoadResult] = []
        self.launch: Launch | None = None
        self.kv_cache_bytes: int | None = None
        self.non_kv_bytes: int | None = None
        self.broken: tuple[FailureClass, str] | None = None
        """Why the loads ended although vLLM lives: requests failed, or nothing was answered."""
        self.quality: QualitySample | None = None
        self._executor = executor
        self._folder = folder
        self._spec = spec

    def run(self, engine: Engine) -> None:
        """Measure memory, put every load on the server, keep what was seen."""
        self._account(engine)
        try:
            seed, levels = self._executor.problem.seed, self._spec.levels
            # More repeats only for as long as another start would take.
            patience_s = engine.launch.ready_s or 0.0
            while self.broken is None:
                asked = next_load(levels, self.loads, seed, patience_s)
                if asked is None:
                    break
                self._load(engine, *asked, first=not self.loads)
        finally:
            # Also when vLLM died or the user interrupted: the samples are the evidence.
            with contextlib.suppress(OSError):
                _write_lines(
                    self._folder / "memory.jsonl",
                    ({"at_s": t, "bytes": b} for t, b in engine.memory_series()),
                )
            self.launch = engine.launch
        if self.broken is None and is_looked_at(self._executor.problem, self._spec):
            # After the record of the launch: the probe's memory is not the load's.
            self._executor.tell("looking at its answers")
            endpoint = Endpoint(engine.base_url, engine.served_model_name, engine.api_key)
            longest = self._executor.problem.max_model_len
            self.quality = asyncio.run(
                sample_quality(endpoint, longest, with_repeat=is_reference(self._spec))
            )

    def _account(self, engine: Engine) -> None:
        problem, facts = self._executor.problem, engine.launch.facts
        if problem.device == "cpu":
            self.kv_cache_bytes = self._spec.settings.kv_cache_memory_bytes
            # Without a process of that name the worker is part of another: then all of them are counted.
            resident = worker_resident_bytes(engine.pids()) or engine.used_bytes()
            if resident is not None and self.kv_cache_bytes is not None:
                # vLLM fills the KV cache with zeros at start, so all of it is resident by now.
                self.non_kv_bytes = max(0, resident - self.kv_cache_bytes)
            return
        self.kv_cache_bytes = facts.available_kv_bytes
        utilization = self._spec.settings.gpu_memory_utilization
        if self.kv_cache_bytes is not None and utilization is not None:
            self.non_kv_bytes = round(problem.card_bytes * utilization) - self.kv_cache_bytes

    def _load(self, engine: Engine, level: LoadLevel, repeat: int, *, first: bool) -> None:
        executor = self._executor
        workload = executor.workload.longest() if level.kind == "soak" else executor.workload
        samples_before = len(engine.memory_series())
        executor.tell(f"{level.kind}: {level.concurrency} users")
        bound = environment(engine.plan).get("VLLM_CPU_OMP_THREADS_BIND")
        with client_off(bound), (self._folder / "requests.jsonl").open("a") as requests:

            def keep(record: RequestRecord) -> None:
                line = {"load": level.kind, "users": level.concurrency, "repeat": repeat, **record.as_dict()}
                requests.write(json.dumps(line) + "\n")

            measurement = asyncio.run(
                measure_load(
                    Endpoint(engine.base_url, engine.served_model_name, engine.api_key),
                    workload,
                    concurrency=level.concurrency,
                    num_requests=level.num_requests,
                    seed=executor.problem.seed + repeat,
                    # The first load warms the server up until its speed settles; later ones find it warm.
                    warmup_requests=None if first else 0,
                    max_num_seqs=self._spec.settings.max_num_seqs,
                    on_record=keep,
                    on_progress=self._on_progress,
                    check=engine.check,
                    limits=executor.limits,
                )
            )
        peak = max((used for _, used in engine.memory_series()[samples_before:]), default=None)
        result = load_result(level, repeat, measurement, peak)
        self.loads.append(result)
        self.broken = _breakage(measurement)
        if executor.watcher is not None:
            executor.watcher.load_ends(result)

    def _on_progress(self, progress: Progress) -> None:
        if progress.warming_up:
            self._executor.tell("warming up")


def launched_settings(settings: ServingConfig, device: str) -> ServingConfig:
    """What vLLM is given: on CPU the KV size alone, because its utilisation is of a NUMA node's total."""
    return settings if device == "cuda" else settings.with_flags(gpu_memory_utilization=None)


def load_result(level: LoadLevel, repeat: int, measurement: Measurement, peak: int | None) -> LoadResult:
    """A measurement as the search reads it."""
    summary, server = measurement.summary, measurement.server
    return LoadResult(
        level=level,
        repeat=repeat,
        completed=summary.completed,
        failed=summary.failed + summary.unfinished,
        output_throughput=summary.output_throughput,
        request_throughput=summary.request_throughput,
        p50_ttft_ms=summary.p50_ttft_ms,
        p99_ttft_ms=summary.p99_ttft_ms,
        p50_tpot_ms=summary.p50_tpot_ms,
        p99_tpot_ms=summary.p99_tpot_ms,
        p99_e2el_ms=summary.p99_e2el_ms,
        preemptions=None if server is None else server.preemptions,
        peak_running=None if server is None else server.peak_running,
        peak_waiting=None if server is None else server.peak_waiting,
        peak_kv_usage=None if server is None else server.peak_kv_cache_usage,
        waited_for_memory=None if server is None else server.waited_for_memory,
        peak_memory_bytes=peak,
        duration_s=summary.duration,
        notes=measurement.notes,
    )


def worker_resident_bytes(pids: Iterable[int]) -> int | None:
    """Resident memory of vLLM's worker (the largest of several): what vLLM itself counts on CPU.

    Source: vLLM 0.32.0 v1/worker/cpu_worker.py::determine_available_memory (psutil's rss of the worker).
    """
    found = []
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            status = Path(f"/proc/{pid}/status").read_text()
            fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            if fields["Name"].strip().startswith(_WORKER):
                found.append(int(fields["VmRSS"].split()[0]) * 1024)
    return max(found, default=None)


def wait_for_memory(needed_bytes: int, timeout_s: float) -> None:
    """Wait until the machine has as much memory available as the card is large.

    Raises:
        KvplanError: it has not, after `timeout_s`.
    """
    import psutil

    deadline = time.monotonic() + timeout_s
    while (available := int(psutil.virtual_memory().available)) < needed_bytes:
        if time.monotonic() >= deadline:
            raise KvplanError(
                f"this machine has {format_gib(available)} of memory available, the card is to be "
                f"{format_gib(needed_bytes)}",
                "end what uses it, or give a smaller --gpu-memory-gib",
            )
        time.sleep(0.5)


def _breakage(measurement: Measurement) -> tuple[FailureClass, str] | None:
    """Why a load says nothing about the settings. Where nothing came any more it is a hang, `timeout`."""
    summary = measurement.summary
    if measurement.stopped is not None:
        return FailureClass.UNKNOWN, f"the load was stopped: {measurement.stopped}"
    if summary.failed:
        text = summary.errors[0][0] if summary.errors else "no reason given"
        failure = FailureClass.TIMEOUT if text.startswith(GAVE_UP) else FailureClass.UNKNOWN
        return failure, f"{summary.failed} of {summary.failed + summary.completed} requests failed: {text}"
    return None if summary.completed else (FailureClass.UNKNOWN, "no request was answered")


def _write_lines(path: Path, lines: Iterable[object]) -> None:
    with path.open("w") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")
