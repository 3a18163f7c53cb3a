"""Several measurements of one running server, one after the other; Ctrl-C keeps what was measured."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.load.measure import Measurement, measure_load
from kvplan.load.phase import Limits
from kvplan.load.prompts import safe_token_ids
from kvplan.load.server_info import ask_server, require_served
from kvplan.load.workload import ClosedLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvplan.load.records import Endpoint, Progress
    from kvplan.load.workload import Workload

_REQUESTS_PER_USER = 4
_TELL_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to measure."""

    endpoint: Endpoint
    workload: Workload
    concurrencies: tuple[int, ...] = ()
    """Users of each load; empty leaves it to the workload."""
    num_requests: int | None = None
    """Of each load; None (without a duration) is four a user."""
    duration_s: float | None = None
    warmup_requests: int | None = None
    seed: int = 0
    vocab_size: int | None = None
    max_num_seqs: int | None = None
    stall_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """What was measured."""

    measurements: tuple[Measurement, ...]
    interrupted: bool


async def run_bench(plan: BenchPlan, tell: Callable[[str], None]) -> BenchOutcome:
    """Measure every number of users of the plan on the running server.

    The first Ctrl-C ends the load that runs and the sweep, and keeps what was answered until then.

    Args:
        plan: what to measure.
        tell: told what happens, a line at a time.

    Raises:
        InputError: the plan contradicts itself.
        LoadError: the server does not answer.
    """
    if plan.num_requests is not None and plan.duration_s is not None:
        raise InputError("--num-requests and --duration both say when to stop", "give one of them")
    if any(users < 1 for users in plan.concurrencies):
        raise InputError("--concurrency below 1", "give at least one user")
    require_served(await ask_server(plan.endpoint), plan.endpoint)
    measurements: list[Measurement] = []
    with interruptible() as interrupted:
        for users in plan.concurrencies or (None,):
            measurement = await _measure(plan, users, tell, interrupted)
            if measurement.summary.completed or not interrupted.is_set():
                measurements.append(measurement)
            if interrupted.is_set():
                break
        return BenchOutcome(tuple(measurements), interrupted.is_set())


async def _measure(
    plan: BenchPlan, users: int | None, tell: Callable[[str], None], interrupted: asyncio.Event
) -> Measurement:
    closed = isinstance(plan.workload.arrivals, ClosedLoop)
    count = plan.num_requests
    if count is None and plan.duration_s is None:
        seats = users or plan.workload.concurrency
        if closed and seats is None:
            raise InputError("nothing says how many users the load has", "give --concurrency")
        count = _REQUESTS_PER_USER * (seats or 25)
    told = time.monotonic()

    def on_progress(progress: Progress) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_EVERY_S:
            told = time.monotonic()
            phase = "warm-up" if progress.warming_up else "load"
            tell(
                f"{phase} {users or ''}: {progress.completed} answered, {progress.failed} failed, "
                f"{progress.in_flight} in flight, {progress.elapsed_s:.0f} s"
            )

    return await measure_load(
        plan.endpoint,
        plan.workload,
        concurrency=users,
        num_requests=count,
        duration_s=plan.duration_s,
        seed=plan.seed,
        warmup_requests=plan.warmup_requests,
        max_num_seqs=plan.max_num_seqs,
        token_ids=None if plan.vocab_size is None else safe_token_ids(plan.vocab_size),
        limits=Limits(stall_timeout_s=plan.stall_timeout_s),
        on_progress=on_progress,
        check=lambda: "interrupted" if interrupted.is_set() else None,
    )


@contextlib.contextmanager
def interruptible() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second one does what it always does."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        event.set()
        restore()

    def restore() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        yield event
    finally:
        restore()
