"""The ladder's Transformers steps: generation in a process behind a guard, as vLLM is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.engine.cgroup import MemoryCgroup
from kvplan.engine.gpu import GpuLostError, gpus
from kvplan.engine.guarded import GuardedProcess
from kvplan.engine.lock import device_lock
from kvplan.engine.memory_sampler import MemorySampler
from kvplan.engine.plan import environment
from kvplan.errors import FailureClass
from kvplan.load.cores import parse_cores
from kvplan.tune.ladder_result import RungResult
from kvplan.tune.load_point import LoadPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvplan.engine.plan import LaunchPlan
    from kvplan.tune.ladder import Rung, Scale

CHILD: Final = (sys.executable, "-m", "kvplan.tune.transformers_child")
"""What generates; a JSON file is its argument."""
_LOADING_S: Final = 300.0
"""For importing Transformers and loading the weights, beside the time to generate."""
_POLL_S: Final = 0.1
_LOG_SHOWN: Final = 300
_ROUNDS: Final = 3
"""Batches with a cache; without one a single batch takes long enough."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What to generate, where."""

    plan: LaunchPlan
    """Model, device, card, folder and environment, as for a launch of vLLM."""
    rung: Rung
    scale: Scale
    generate_s: float
    """Longest that it may generate."""
    seed: int = 0
    dtype: str | None = None
    command: tuple[str, ...] = CHILD

    def spec(self, result_path: Path) -> dict[str, Any]:
        """What the child is told."""
        model, scale = self.plan.model, self.scale
        bound = environment(self.plan).get("VLLM_CPU_OMP_THREADS_BIND")
        return {
            "model": str(Path(model).resolve()) if Path(model).is_dir() else model,
            "device": scale.device,
            "dtype": self.dtype,
            "use_cache": self.rung.use_cache,
            "users": scale.users,
            "input_len": scale.input_len,
            "output_len": scale.output_len,
            "rounds": _ROUNDS if self.rung.use_cache else 1,
            "deadline_s": self.generate_s,
            "seed": self.seed,
            # The cores that vLLM's worker has, no more.
            "cpus": sorted(parse_cores(bound or "")) if scale.device == "cpu" else [],
            "result_path": str(result_path.resolve()),
        }


def generate(work: Generation, tell: Callable[[str], None]) -> RungResult:
    """Generate behind a guard of its own and, on CPU, in a memory cgroup of its own.

    A failure is in the result, not raised.

    Args:
        work: what to generate.
        tell: told what is waited for.
    """
    plan, scale = work.plan, work.scale
    result_path, spec_path = plan.work_dir / "result.json", plan.work_dir / "spec.json"
    spec_path.write_text(json.dumps(work.spec(result_path)))
    plan.log_path.write_bytes(b"\n")
    command = [*work.command, str(spec_path.resolve())]
    settings = {"use_cache": work.rung.use_cache, "batch_size": scale.users}
    made = RungResult(work.rung.name, settings, " ".join(command), log_path=str(plan.log_path))
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(device_lock(_cards(plan), wait_s=math.inf, on_wait=tell))
        began = time.monotonic()
        cgroup = None
        if plan.device == "cpu" and plan.card_bytes is not None:
            cgroup = MemoryCgroup.create(plan.card_bytes)
        if cgroup is not None:
            stack.callback(cgroup.remove)
        process = GuardedProcess(command, environment(plan), plan.log_path, lock=lock, cgroup=cgroup)
        stack.callback(process.stop, 0.0)
        sampler = MemorySampler(plan, process.guard_pid, cgroup, process.ask_to_stop)
        stack.callback(sampler.stop)
        in_time = _wait(process, _LOADING_S + work.generate_s)
        kills = None if cgroup is None else cgroup.oom_kill_count()
        failure, evidence = _failure(process, sampler, kills, plan.log_path, in_time=in_time)
        peak = sampler.peak_bytes
    made = dataclasses.replace(made, peak_memory_bytes=peak, wall_s=round(time.monotonic() - began, 3))
    if failure is None and not result_path.is_file():
        failure, evidence = FailureClass.UNKNOWN, "it ended well and left no result"
    if failure is not None:
        return dataclasses.replace(made, failure=failure, evidence=evidence)
    return _generated(made, scale, json.loads(result_path.read_text()), work.generate_s)


def _cards(plan: LaunchPlan) -> list[str | None]:
    if plan.device == "cpu":
        return [None]
    try:
        return [card.uuid for card in gpus(plan.gpu_uuids)] or [None]
    except GpuLostError:
        return [None]


def _generated(made: RungResult, scale: Scale, result: Mapping[str, Any], generate_s: float) -> RungResult:
    versions = f"Transformers {result['transformers']}, torch {result['torch']}"
    notes = [f"{versions}, {result['dtype']}, {result['attention']} attention"]
    rounds = [times for times in result["token_times_s"] if times]
    whole = [times for times in rounds if len(times) == scale.output_len]
    counted = whole or rounds[:1]
    if not counted:
        return dataclasses.replace(
            made, failure=FailureClass.TIMEOUT, evidence=f"no token came in {generate_s:g} s"
        )
    if not whole:
        notes.append(
            f"stopped after {len(counted[0])} of {scale.output_len} answer tokens ({generate_s:g} s): later "
            "ones would be slower"
        )
    point = _batch_point(scale.users, scale.input_len, counted, made.peak_memory_bytes)
    return dataclasses.replace(made, loads={"own": point}, notes=tuple(notes))


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
