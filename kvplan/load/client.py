"""The load client: N users (or arrivals of their own) who stream answers from a running server."""

from __future__ import annotations

import contextlib
import gc
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from kvplan.errors import InputError
from kvplan.load.phase import Callbacks, Check, Limits, Phase
from kvplan.load.prompts import PromptSource
from kvplan.load.records import ClientHealth, Endpoint, LoadResult, Progress, RequestRecord
from kvplan.load.server_metrics import MetricsWatch, watch_metrics
from kvplan.load.session import open_session, ordinary_token_ids
from kvplan.load.supply import Supply
from kvplan.load.warm_up import MOST_WAVES, has_settled, median_gap_s, wave_of
from kvplan.load.workload import Arrivals, ClosedLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    import aiohttp

    from kvplan.load.workload import Workload

_NO_LIMITS = Limits()


async def run_load(
    endpoint: Endpoint,
    workload: Workload,
    *,
    concurrency: int | None = None,
    num_requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    warmup_requests: int | None = None,
    token_ids: Sequence[int] | None = None,
    salt: int | None = None,
    limits: Limits = _NO_LIMITS,
    on_progress: Callable[[Progress], None] | None = None,
    on_record: Callable[[RequestRecord], None] | None = None,
    check: Check | None = None,
    watch: MetricsWatch | None = None,
) -> LoadResult:
    """Load a running server and return what every request took.

    Args:
        endpoint: the server.
        workload: lengths, arrivals, conversations.
        concurrency: users of a closed loop; None leaves it to the workload's own arrivals.
        num_requests: how many requests; this or `duration_s`.
        duration_s: for how long requests are sent; the answers then in flight are waited for.
        seed: order of the lengths, and the prompts.
        warmup_requests: sent first by as many users, and kept apart; None sends waves with short answers
            until the server's speed no longer rises.
        token_ids: ids that prompts are made of; None asks the server's `/tokenize` for ordinary ones.
        salt: draws other prompts for the same seed; None is a new one, so that nothing is in the cache yet.
        limits: when a request is given up.
        on_progress: called about four times a second.
        on_record: called with each request as it ends, so that nothing is lost when the caller is cancelled.
        check: the reason that it gives, if it gives one, ends the load; what has ended is in the result.
            What it raises ends the load too, and is raised.
        watch: filled with the server's /metrics, sampled during the part that counts.

    Raises:
        InputError: no number of users, or not exactly one of `num_requests` and `duration_s`.
        LoadError: the server does not answer, or has no `/tokenize` and no `token_ids` were given.
        MissingDependencyError: aiohttp is not installed.
    """
    if (num_requests is None) == (duration_s is None):
        raise InputError("a load has either a number of requests or a duration", "give one of the two")
    arrivals = _arrivals(workload, concurrency)
    users = arrivals.users if isinstance(arrivals, ClosedLoop) else None
    salt = secrets.randbits(32) if salt is None else salt
    async with open_session(endpoint) as session, _still_heap():
        if token_ids is None:
            token_ids = await ordinary_token_ids(session, endpoint)
        stage = _Stage(session, endpoint, token_ids, workload, seed, salt, limits)
        try:
            waves = await stage.warm_up(users or 1, warmup_requests, Callbacks(on_progress, None, check))
            phase = stage.phase(Callbacks(on_progress, on_record, check))
            phase.stopped = waves[-1].stopped if waves else None
            if phase.stopped is None:
                supply = Supply(workload, phase.prompts, seed, num_requests, duration_s)
                async with watch_metrics(session, endpoint, watch):
                    await phase.run(supply, arrivals, seed)
        except BaseExceptionGroup as group:
            _raise_first(group)
    if watch is not None:
        watch.origin_s = phase.origin_s
    return LoadResult(
        records=tuple(phase.records),
        warmup_records=tuple(record for wave in waves for record in wave.records),
        duration_s=phase.duration_s,
        concurrency=users,
        seed=seed,
        salt=salt,
        client=_health(phase),
        steady_s=_steady(phase),
        all_busy_until_s=phase.steady_to_s,
        warmup_waves_ms=tuple(_ms(median_gap_s(wave.records)) for wave in waves),
        unfinished=phase.unfinished,
        stopped=phase.stopped,
    )


def _arrivals(workload: Workload, concurrency: int | None) -> Arrivals:
    """The workload's own arrivals, or a closed loop of that many users."""
    if not isinstance(workload.arrivals, ClosedLoop):
        return workload.arrivals if concurrency is None else ClosedLoop(concurrency)
    users = workload.arrivals.users if concurrency is None else concurrency
    if users is None:
        raise InputError("nothing says how many users the load has", "give --concurrency")
    return ClosedLoop(users, workload.arrivals.think_time_s)


@contextlib.asynccontextmanager
async def _still_heap() -> AsyncIterator[None]:
    """No collection goes over what is there already: it would be measured as the server's delay."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class _Stage:
    """What every phase of one load has in common."""

    session: aiohttp.ClientSession
    endpoint: Endpoint
    token_ids: Sequence[int]
    workload: Workload
    seed: int
    salt: int
    limits: Limits

    def phase(self, callbacks: Callbacks, wave: int | None = None) -> Phase:
        """A phase with prompts of its own; `wave` counts those of the warm-up."""
        salt = self.salt if wave is None else -1 - wave - self.salt * MOST_WAVES
        prompts = PromptSource(self.token_ids, self.seed, salt, self.workload.shared_prefix_tokens)
        return Phase(
            self.session,
            self.endpoint,
            prompts,
            self.limits,
            callbacks,
            warming_up=wave is not None,
            logprobs=self.workload.logprobs,
        )

    async def warm_up(self, users: int, num_requests: int | None, callbacks: Callbacks) -> list[Phase]:
        """The phases of the warm-up: one of that many requests, or waves until the speed has settled."""
        waves: list[Phase] = []
        while num_requests != 0:
            wave = self.phase(callbacks, wave=len(waves))
            workload = wave_of(self.workload, users) if num_requests is None else self.workload
            supply = Supply(workload, wave.prompts, self.seed, num_requests or users)
            await wave.run(supply, ClosedLoop(users), self.seed)
            waves.append(wave)
            settled = has_settled([median_gap_s(done.records) for done in waves])
            if num_requests is not None or settled or wave.stopped or len(waves) == MOST_WAVES:
                break
        return waves


def _raise_first(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise what `check` or another callback raised, without the task groups around it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    raise error from None


def _health(phase: Phase) -> ClientHealth:
    lags_ms = sorted(1000 * lag for lag in phase.lags_s) or [0.0]
    return ClientHealth(
        cpu_share=phase.cpu_s / phase.duration_s if phase.duration_s else 0.0,
        loop_lag_p50_ms=lags_ms[len(lags_ms) // 2],
        loop_lag_p99_ms=lags_ms[min(len(lags_ms) - 1, int(len(lags_ms) * 0.99))],
        loop_lag_max_ms=lags_ms[-1],
    )


def _steady(phase: Phase) -> tuple[float, float] | None:
    if phase.steady_from_s is None or phase.steady_to_s is None or phase.steady_to_s <= phase.steady_from_s:
        return None
    return phase.steady_from_s, phase.steady_to_s


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
