"""One step of the ladder, really made: started, loaded, measured, gone. What fails is a row, not an error."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.calibration.store import remember
from kvplan.engine.cgroup import MemoryCgroup
from kvplan.engine.gpu import GpuLostError, gpus
from kvplan.engine.guarded import GuardedProcess
from kvplan.engine.lock import device_lock
from kvplan.engine.memory_sampler import MemorySampler
from kvplan.engine.plan import LaunchPlan, environment, printable_command
from kvplan.engine.server import EngineDiedError, EngineStartError, running_engine
from kvplan.errors import FailureClass, KvplanError, LoadError
from kvplan.load.cores import client_off, parse_cores
from kvplan.load.measure import measure_load
from kvplan.load.records import Endpoint
from kvplan.tune.execute import launched_settings, wait_for_memory
from kvplan.tune.load_point import LoadPoint, load_point
from kvplan.tune.problem import settings_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvplan.engine.server import Engine, EngineEvent
    from kvplan.launch import Launch
    from kvplan.tune.ladder import Load, Rung, Scale

_MEMORY_WAIT_S: Final = 120.0
_LOADING_S: Final = 300.0
"""For importing Transformers and loading the weights, beside the time to generate."""
_GRACE_S: Final = 2.0
_POLL_S: Final = 0.1
_LOG_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class RungResult:
    """What one step gave. None is unknown, never 0."""

    name: str
    settings: Mapping[str, Any]
    """vLLM's flags, or use_cache of Transformers."""
    command: str
    loads: Mapping[str, LoadPoint] = field(default_factory=dict)
    """Load name -> what it gave."""
    failure: FailureClass | None = None
    evidence: str | None = None
    peak_memory_bytes: int | None = None
    kv_cache_tokens: int | None = None
    ready_s: float | None = None
    wall_s: float = 0.0
    log_path: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_explained(self) -> bool:
        """Whether asking again would give the same: it worked, or failed for a reason that is known."""
        return self.failure not in {FailureClass.TIMEOUT, FailureClass.UNKNOWN}

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> RungResult:
        """Back from JSON; keys that a newer kvplan added are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in record.items() if name in known}
        values["loads"] = {name: LoadPoint.from_dict(load) for name, load in record["loads"].items()}
        values["failure"] = None if record["failure"] is None else FailureClass(record["failure"])
        return cls(**values | {"notes": tuple(record.get("notes", ()))})


@dataclass(slots=True)
class RungMaker:
    """Makes the steps of one ladder on this machine."""

    model: str
    scale: Scale
    card_bytes: int
    folder: Path
    """The run's folder."""
    tell: Callable[[str], None]
    seed: int = 0
    dtype: str | None = None
    gpu: str | None = None
    generate_s: float = 120.0
    """Longest that Transformers may generate."""
    ready_timeout_s: float = 900.0
    launches: Path | None = None
    """The store that every real launch is added to; None keeps none."""

    def make(self, rung: Rung) -> RungResult:
        """One step.

        Raises:
            KvplanError: nothing could be started at all; nothing of it is running.
            KeyboardInterrupt: passed on, after what was started was stopped.
        """
        folder = self.folder / "rungs" / rung.name
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted attempt left
        folder.mkdir(parents=True)
        if self.scale.device == "cpu":
            wait_for_memory(self.card_bytes, _MEMORY_WAIT_S)
        began = time.monotonic()
        make = self._transformers if rung.engine == "transformers" else self._vllm
        return dataclasses.replace(make(rung, folder), wall_s=round(time.monotonic() - began, 3))

    def _plan(self, rung: Rung, folder: Path) -> LaunchPlan:
        return LaunchPlan(
            model=self.model,
            settings=launched_settings(settings_from_dict(dict(rung.flags)), self.scale.device),
            device=self.scale.device,
            work_dir=folder,
            card_bytes=self.card_bytes,
            gpu=self.gpu,
            ready_timeout_s=self.ready_timeout_s,
            served_model_name=f"kvplan-ladder-{rung.name}",
        )

    # vLLM

    def _vllm(self, rung: Rung, folder: Path) -> RungResult:
        plan = self._plan(rung, folder)
        made = RungResult(rung.name, dict(rung.flags), printable_command(plan), log_path=str(plan.log_path))
        loads: dict[str, LoadPoint] = {}
        try:
            with running_engine(plan, on_event=self._on_event) as engine:
                for load in self.scale.loads():
                    loads[load.name] = self._load(engine, load, is_first=not loads)
                launch = engine.launch
        except (EngineStartError, EngineDiedError) as error:
            self._remember(error.launch)
            return dataclasses.replace(
                made,
                loads=loads,
                failure=error.failure,
                evidence=error.decisive_line or error.message,
                peak_memory_bytes=error.launch.peak_bytes,
                kv_cache_tokens=error.launch.facts.kv_cache_tokens,
            )
        except LoadError as error:
            return dataclasses.replace(
                made, loads=loads, failure=FailureClass.UNKNOWN, evidence=error.message
            )
        self._remember(launch)
        return dataclasses.replace(
            made,
            loads=loads,
            peak_memory_bytes=launch.peak_bytes,
            kv_cache_tokens=launch.facts.kv_cache_tokens,
            ready_s=launch.ready_s,
        )

    def _remember(self, launch: Launch) -> None:
        """Let later estimates learn from it; a store that cannot be written stops nothing."""
        if self.launches is not None:
            with contextlib.suppress(KvplanError):
                remember(launch, self.launches)

    def _load(self, engine: Engine, load: Load, *, is_first: bool) -> LoadPoint:
        self.tell(f"    {load.title}")
        before = len(engine.memory_series())
        bound = environment(engine.plan).get("VLLM_CPU_OMP_THREADS_BIND")
        with client_off(bound):
            measurement = asyncio.run(
                measure_load(
                    Endpoint(engine.base_url, engine.served_model_name, engine.api_key),
                    load.workload,
                    concurrency=load.users,
                    num_requests=load.num_requests,
                    seed=self.seed,
                    warmup_requests=None if is_first else 0,
                    max_num_seqs=engine.plan.settings.max_num_seqs,
                    check=engine.check,
                )
            )
        peak = max((used for _, used in engine.memory_series()[before:]), default=None)
        point = load_point(load.users, measurement, peak)
        rate = "n/a" if point.output_throughput is None else f"{point.output_throughput:,.0f}"
        self.tell(f"      {rate} output tokens/s")
        return point

    def _on_event(self, event: EngineEvent) -> None:
        if event.kind in {"waiting", "cleaned_up", "memory_held", "ready"}:
            self.tell(f"    {event.kind.replace('_', ' ')}: {event.text}")

    # Transformers

    def _transformers(self, rung: Rung, folder: Path) -> RungResult:
        """Behind a guard of its own, in a memory cgroup of its own, as vLLM is."""
        plan = self._plan(rung, folder)
        result_path, spec_path = folder / "result.json", folder / "spec.json"
        settings = {"use_cache": rung.use_cache, "batch_size": self.scale.users}
        spec_path.write_text(json.dumps(self._spec(rung, result_path, plan)))
        command = [sys.executable, "-m", "kvplan.tune.transformers_child", str(spec_path.resolve())]
        made = RungResult(rung.name, settings, " ".join(command), log_path=str(plan.log_path))
        plan.log_path.write_bytes(b"\n")
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(
                device_lock(self._cards(), wait_s=math.inf, on_wait=lambda text: self.tell(f"    {text}"))
            )
            cgroup = MemoryCgroup.create(self.card_bytes) if self.scale.device == "cpu" else None
            if cgroup is not None:
                stack.callback(cgroup.remove)
            process = GuardedProcess(command, environment(plan), plan.log_path, lock=lock, cgroup=cgroup)
            stack.callback(process.stop, 0.0)
            sampler = MemorySampler(plan, process.guard_pid, cgroup, process.ask_to_stop)
            stack.callback(sampler.stop)
            in_time = _wait(process, _LOADING_S + self.generate_s)
            kills = None if cgroup is None else cgroup.oom_kill_count()
            failure, evidence = _failure(process, sampler, kills, plan.log_path, in_time=in_time)
            peak = sampler.peak_bytes
        if failure is None and not result_path.is_file():
            failure, evidence = FailureClass.UNKNOWN, "it ended well and left no result"
        if failure is not None:
            return dataclasses.replace(made, failure=failure, evidence=evidence, peak_memory_bytes=peak)
        return self._generated(made, json.loads(result_path.read_text()), peak)

    def _spec(self, rung: Rung, result_path: Path, plan: LaunchPlan) -> dict[str, Any]:
        bound = environment(plan).get("VLLM_CPU_OMP_THREADS_BIND")
        return {
            "model": str(Path(self.model).resolve()) if Path(self.model).is_dir() else self.model,
            "device": self.scale.device,
            "dtype": self.dtype,
            "use_cache": rung.use_cache,
            "users": self.scale.users,
            "input_len": self.scale.input_len,
            "output_len": self.scale.output_len,
            "rounds": 3 if rung.use_cache else 1,
            "deadline_s": self.generate_s,
            "seed": self.seed,
            # The cores that vLLM's worker has, no more.
            "cpus": sorted(parse_cores(bound or "")) if self.scale.device == "cpu" else [],
            "result_path": str(result_path.resolve()),
        }

    def _cards(self) -> list[str | None]:
        if self.scale.device == "cpu":
            return [None]
        try:
            return [card.uuid for card in gpus(())] or [None]
        except GpuLostError:
            return [None]

    def _generated(self, made: RungResult, result: Mapping[str, Any], peak: int | None) -> RungResult:
        versions = f"Transformers {result['transformers']}, torch {result['torch']}"
        notes = [f"{versions}, {result['dtype']}, {result['attention']} attention"]
        rounds = [times for times in result["token_times_s"] if times]
        whole = [times for times in rounds if len(times) == self.scale.output_len]
        counted = whole or rounds[:1]
        if not counted:
            return dataclasses.replace(
                made, failure=FailureClass.TIMEOUT, evidence=f"no token came in {self.generate_s:g} s"
            )
        if not whole:
            notes.append(
                f"stopped after {len(counted[0])} of {self.scale.output_len} answer tokens "
                f"({self.generate_s:g} s): later ones would be slower"
            )
        return dataclasses.replace(
            made,
            loads={"own": _batch_point(self.scale.users, self.scale.input_len, counted, peak)},
            peak_memory_bytes=peak,
            notes=tuple(notes),
        )


def _batch_point(users: int, input_len: int, rounds: list[list[float]], peak: int | None) -> LoadPoint:
    """Static batches as a load: all users begin and end together, so every percentile is of the rounds."""
    tokens = sum(len(times) for times in rounds) * users
    seconds = sum(times[-1] for times in rounds)
    firsts = sorted(1000 * times[0] for times in rounds)
    gaps = sorted(1000 * (t[-1] - t[0]) / (len(t) - 1) for t in rounds if len(t) > 1)
    return LoadPoint(
        users=users,
        completed=users * len(rounds),
        failed=0,
        duration_s=seconds,
        output_throughput=tokens / seconds,
        request_throughput=users * len(rounds) / seconds,
        mean_ttft_ms=sum(firsts) / len(firsts),
        p50_ttft_ms=firsts[len(firsts) // 2],
        p99_ttft_ms=firsts[-1],
        mean_tpot_ms=sum(gaps) / len(gaps) if gaps else None,
        p50_tpot_ms=gaps[len(gaps) // 2] if gaps else None,
        p99_tpot_ms=gaps[-1] if gaps else None,
        p99_e2el_ms=1000 * max(times[-1] for times in rounds),
        input_tokens=input_len * users * len(rounds),
        output_tokens=tokens,
        peak_running=users,
        peak_memory_bytes=peak,
    )


def _wait(process: GuardedProcess, timeout_s: float) -> bool:
    """Wait for its end; whether it came in time."""
    deadline = time.monotonic() + timeout_s
    while process.exit_status is None and process.error is None:
        if time.monotonic() > deadline:
            return False
        process.poll()
        time.sleep(_POLL_S)
    return True


def _failure(
    process: GuardedProcess, sampler: MemorySampler, kills: int | None, log: Path, *, in_time: bool
) -> tuple[FailureClass | None, str | None]:
    if kills:
        return FailureClass.KILLED, "the kernel killed it: out of memory in its cgroup"
    if sampler.over_limit is not None:
        return FailureClass.KILLED, sampler.over_limit
    if not in_time:
        return FailureClass.TIMEOUT, "it did not end in time"
    if process.error is not None:
        return FailureClass.UNKNOWN, process.error
    if process.exit_status == 0:
        return None, None
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")
    kind = FailureClass.OOM_SERVING if "out of memory" in last.lower() else FailureClass.UNKNOWN
    return kind, last[:_LOG_SHOWN] or f"it ended with status {process.exit_status}"
