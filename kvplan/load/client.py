"""The load client: N users (or arrivals of their own) who stream answers from a running server."""

from __future__ import annotations

import contextlib
import json
import secrets
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvplan.errors import InputError, LoadError, MissingDependencyError
from kvplan.load.phase import Callbacks, Check, Limits, Phase
from kvplan.load.prompts import PromptSource, sample_text
from kvplan.load.records import ClientHealth, Endpoint, LoadResult, Progress, RequestRecord
from kvplan.load.stream import error_text
from kvplan.load.supply import Supply
from kvplan.load.workload import ClosedLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    import aiohttp

    from kvplan.load.workload import Workload

_CONNECT_TIMEOUT_S = 10.0
_KEEP_ALIVE_S = 4.0
"""Below uvicorn's 5 s, so that no request is sent on a connection that the server is just closing."""


async def run_load(
    endpoint: Endpoint,
    workload: Workload,
    *,
    concurrency: int | None = None,
    num_requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    warmup_requests: int = 0,
    token_ids: Sequence[int] | None = None,
    salt: int | None = None,
    limits: Limits = Limits(),  # noqa: B008  frozen
    on_progress: Callable[[Progress], None] | None = None,
    on_record: Callable[[RequestRecord], None] | None = None,
    check: Check | None = None,
) -> LoadResult:
    """Load a running server and return what every request took.

    Args:
        endpoint: the server.
        workload: lengths, arrivals, conversations.
        concurrency: users of a closed loop; None leaves it to the workload's own arrivals.
        num_requests: how many requests; this or `duration_s`.
        duration_s: for how long requests are sent; the answers then in flight are waited for.
        seed: order of the lengths, and the prompts.
        warmup_requests: sent first by the same users, and kept apart.
        token_ids: ids that prompts are made of; None asks the server's `/tokenize` for ordinary ones.
        salt: draws other prompts for the same seed; None is a new one, so that nothing is in the cache yet.
        limits: when a request is given up.
        on_progress: called about four times a second.
        on_record: called with each request as it ends, so that nothing is lost when the caller is cancelled.
        check: the reason that it gives, if it gives one, ends the load; what has ended is in the result.

    Raises:
        InputError: no number of users, or not exactly one of `num_requests` and `duration_s`.
        LoadError: the server does not answer, or has no `/tokenize` and no `token_ids` were given.
        MissingDependencyError: aiohttp is not installed.
    """
    if (num_requests is None) == (duration_s is None):
        raise InputError("a load has either a number of requests or a duration", "give one of the two")
    users = concurrency if concurrency is not None else workload.concurrency
    closed = concurrency is not None or isinstance(workload.arrivals, ClosedLoop)
    if closed and users is None:
        raise InputError("nothing says how many users the load has", "give --concurrency")
    think_time_s = workload.arrivals.think_time_s if isinstance(workload.arrivals, ClosedLoop) else 0.0
    arrivals = ClosedLoop(users, think_time_s) if closed else workload.arrivals
    salt = secrets.randbits(32) if salt is None else salt
    callbacks = Callbacks(on_progress, on_record, check)
    async with open_session(endpoint) as session:
        if token_ids is None:
            token_ids = await ordinary_token_ids(session, endpoint)
        prefix = workload.shared_prefix_tokens
        warm_prompts = PromptSource(token_ids, seed, ~salt, prefix)
        warm_up = Phase(
            session, endpoint, warm_prompts, limits, Callbacks(on_progress, None, check), warming_up=True
        )
        if warmup_requests:
            supply = Supply(workload, warm_prompts, seed, num_requests=warmup_requests)
            await warm_up.run(supply, ClosedLoop(users or warmup_requests), seed)
        prompts = PromptSource(token_ids, seed, salt, prefix)
        phase = Phase(session, endpoint, prompts, limits, callbacks, stopped=warm_up.stopped)
        if phase.stopped is None:
            await phase.run(Supply(workload, prompts, seed, num_requests, duration_s), arrivals, seed)
    return LoadResult(
        records=tuple(phase.records),
        warmup_records=tuple(warm_up.records),
        duration_s=phase.duration_s,
        concurrency=users if closed else None,
        seed=seed,
        salt=salt,
        client=_health(phase),
        steady_s=_steady(phase),
        unfinished=phase.unfinished,
        stopped=phase.stopped,
    )


@contextlib.asynccontextmanager
async def open_session(endpoint: Endpoint) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with the endpoint's key, any number of connections and no timeout but that of connecting."""
    try:
        import aiohttp
    except ImportError as error:
        raise MissingDependencyError(
            "the load client needs aiohttp", "pip install 'kvplan-tuner[tune]'"
        ) from error
    # A proxy between the client and a server on this machine would be measured too.
    local = urlsplit(endpoint.base_url).hostname in {"127.0.0.1", "localhost", "::1"}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ssl=endpoint.verify_tls)
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout, trust_env=not local
    ) as session:
        yield session


async def ordinary_token_ids(session: aiohttp.ClientSession, endpoint: Endpoint) -> list[int]:
    """Ids of ordinary tokens: those of random words, by the server's own tokenizer (vLLM's `/tokenize`).

    Raises:
        LoadError: nothing answers there, or it cannot tokenize.
    """
    import aiohttp

    url = f"{endpoint.base_url.rstrip('/')}/tokenize"
    body = {"model": endpoint.model, "prompt": sample_text(), "add_special_tokens": False}
    try:
        async with session.post(url, json=body) as response:
            answer = await response.read()
            if response.status == 200:
                return sorted(set(json.loads(answer)["tokens"]))
            complaint = f"{response.status}: {error_text(answer)}"
    except (aiohttp.ClientError, OSError) as error:
        raise LoadError(f"no answer from {endpoint.base_url}: {error}", "is the server up?") from error
    except (ValueError, KeyError, TypeError) as error:
        complaint = f"without a list of tokens ({error!r})"
    raise LoadError(
        f"{url} answered {complaint}",
        "--model must be the served name; for a server that cannot tokenize give --vocab-size",
    )


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
