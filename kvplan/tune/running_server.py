"""A server that already runs, measured: nothing is launched or stopped, every load is in the journal."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.errors import InputError, LoadError
from kvplan.load.bench import interruptible
from kvplan.load.measure import measure_load
from kvplan.load.phase import Limits
from kvplan.load.prompts import safe_token_ids
from kvplan.load.server_info import ask_server, require_served, served_names
from kvplan.tune.identity import workload_from_record, workload_record
from kvplan.tune.journal import difference, new_journal, reopened_journal
from kvplan.tune.load_point import LoadPoint, load_point
from kvplan.tune.load_sweep import Goal, next_load
from kvplan.tune.problem import Constraints
from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kvplan.load.records import Endpoint, Progress
    from kvplan.load.server_info import ServerInfo
    from kvplan.load.workload import Workload
    from kvplan.tune.journal import Journal, JournalContents

KIND: Final = "server"
"""`what` of the journal's first line."""
MAX_MINUTES: Final = 30.0
_WAVES: Final = 3
_FEWEST_REQUESTS: Final = 8
_TELL_EVERY_S: Final = 10.0
_LABEL_SHOWN: Final = 200
_MOST_LABELS: Final = 200


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """What the user gave; None is "not given"."""

    endpoint: Endpoint
    """Its model is empty where none was named: then the server must serve one only."""
    workload: Workload | None
    target_users: int | None = None
    constraints: Constraints = field(default_factory=Constraints)
    max_minutes: float | None = None
    seed: int | None = None
    vocab_size: int | None = None
    max_num_seqs: int | None = None


def measure_server(request: ServerRequest, runs_dir: Path, tell: Callable[[str], None]) -> Path:
    """A new run, to its end; gives its folder.

    Raises:
        InputError: the workload is missing, or the model's name is.
        LoadError: the server does not answer as one that can be measured.
        KeyboardInterrupt: interrupted; what was measured is in the journal.
    """
    workload = request.workload
    if workload is None:
        raise InputError(
            "the length of the requests is not known", "give --input-len and --output-len, or --workload"
        )
    endpoint, info = asyncio.run(_known(request.endpoint))
    _refuse_too_long(info, endpoint, workload)
    header = {
        "what": KIND,
        "kvplan_version": __version__,
        "url": endpoint.base_url,
        "context": _context(endpoint, info, workload),
        "problem": {
            "target_users": request.target_users or workload.concurrency,
            "constraints": dataclasses.asdict(request.constraints),
            "seed": request.seed or 0,
            "vocab_size": request.vocab_size,
            "max_num_seqs": request.max_num_seqs,
        },
        "budget": {"max_minutes": request.max_minutes or MAX_MINUTES},
        "busy_before": None if info.metrics is None else info.metrics.running,
        "has_metrics": info.metrics is not None,
    }
    with new_journal(runs_dir, header) as journal:
        _sweep(journal, endpoint, workload, request, tell)
        return journal.folder


def measure_on(folder: Path, request: ServerRequest, tell: Callable[[str], None]) -> Path:
    """A run that was begun before, to its end; no load that was measured is repeated.

    Raises:
        InputError: the server, its settings, the workload, the target or a limit are not those that it was
            begun with.
        LoadError, KeyboardInterrupt: as for `measure_server`.
    """
    with reopened_journal(folder) as journal:
        header = journal.contents.header
        _refuse_other_limits(journal.run_id, header["problem"], request)
        workload = request.workload or workload_from_record(header["context"]["workload"])
        named = dataclasses.replace(
            request.endpoint, model=request.endpoint.model or header["context"]["model"]["served"]
        )
        endpoint, info = asyncio.run(_known(named))
        now = {"url": endpoint.base_url, "context": _context(endpoint, info, workload)}
        found = difference({"url": header["url"], "context": header["context"]}, now)
        if found:
            raise InputError(
                f"run {journal.run_id} measured something else: " + "; ".join(found[:4]),
                "start a new run, or resume it on the server that it was begun with",
            )
        budget = {"max_minutes": request.max_minutes or header["budget"]["max_minutes"]}
        journal.append("resumed", budget=budget)
        _sweep(journal, endpoint, workload, request, tell, budget["max_minutes"])
        return folder


def _refuse_other_limits(run: str, problem: Mapping[str, Any], request: ServerRequest) -> None:
    """What is given beside --resume and is not the run's own would be ignored: a run is judged by one goal.

    Raises:
        InputError: with each difference.
    """
    asked = {
        "target_concurrency": (request.target_users, problem["target_users"]),
        "seed": (request.seed, problem["seed"]),
        "vocab_size": (request.vocab_size, problem.get("vocab_size", request.vocab_size)),
        "max_num_seqs": (request.max_num_seqs, problem.get("max_num_seqs", request.max_num_seqs)),
        **{
            name: (value, problem["constraints"].get(name))
            for name, value in dataclasses.asdict(request.constraints).items()
        },
    }
    found = [
        f"--{name.replace('_', '-')}: {'none' if then is None else f'{then:g}'} in the run, {now:g} now"
        for name, (now, then) in asked.items()
        if now is not None and now != then
    ]
    if found:
        raise InputError(
            f"run {run} was begun with other limits: " + "; ".join(found),
            "leave them out to go on with it, or start a new run with them",
        )


def goal_of(header: Mapping[str, Any]) -> Goal:
    """What the loads of a run are judged by."""
    problem = header["problem"]
    return Goal(Constraints(**problem["constraints"]), problem["target_users"])


def points_of(contents: JournalContents) -> tuple[LoadPoint, ...]:
    """The loads that a journal holds, rising; of a load that was measured again the last one."""
    points = (LoadPoint.from_dict(line["point"]) for line in contents.lines if line["kind"] == "load")
    return tuple(point for _, point in sorted({point.users: point for point in points}.items()))


async def _known(endpoint: Endpoint) -> tuple[Endpoint, ServerInfo]:
    """The server with a model's name, after it let us in."""
    info = await ask_server(endpoint)
    if endpoint.model:
        require_served(info, endpoint)
        return endpoint, info
    if info.models is None or len(info.models) != 1:
        says = "does not list its models" if info.models is None else f"serves {served_names(info)}"
        raise InputError(f"{endpoint.base_url} {says}", "say with --model which one to load")
    return dataclasses.replace(endpoint, model=info.models[0].name), info


def _refuse_too_long(info: ServerInfo, endpoint: Endpoint, workload: Workload) -> None:
    served = info.model(endpoint.model)
    longest = None if served is None else served.max_model_len
    if longest is not None and workload.longest_total_len > longest:
        raise InputError(
            f"the workload's longest request has {workload.longest_total_len:,} tokens, the server's "
            f"max_model_len is {longest:,}",
            "shorten --input-len or --output-len",
        )


def _context(endpoint: Endpoint, info: ServerInfo, workload: Workload) -> dict[str, Any]:
    """What one run never mixes. Keys are those of a tuning run's, where they mean the same."""
    served = info.model(endpoint.model)
    cache = {} if info.metrics is None else dict(info.metrics.cache_config)
    return {
        "model": {
            "served": endpoint.model,
            "max_model_len": None if served is None else served.max_model_len,
        },
        "machine": {"url": endpoint.base_url},
        "vllm_version": info.version,
        "cache_config": {
            name[:_LABEL_SHOWN]: value[:_LABEL_SHOWN] for name, value in list(cache.items())[:_MOST_LABELS]
        },
        "workload": workload_record(workload),
    }


def _sweep(
    journal: Journal,
    endpoint: Endpoint,
    workload: Workload,
    request: ServerRequest,
    tell: Callable[[str], None],
    max_minutes: float | None = None,
) -> None:
    """Load after load until the answers say that it is enough, or the budget is spent."""
    header = journal.contents.header
    goal = goal_of(header)
    # What the budget cut off is asked again.
    points = [point for point in points_of(journal.contents) if point.stopped is None]
    minutes = max_minutes or header["budget"]["max_minutes"]
    problem = header["problem"]
    request = dataclasses.replace(
        request,
        vocab_size=request.vocab_size or problem.get("vocab_size"),
        max_num_seqs=request.max_num_seqs or problem.get("max_num_seqs"),
    )
    deadline = time.monotonic() + 60 * minutes - sum(p.duration_s or 0.0 for p in points)

    def tell_line(text: str) -> None:
        # Names and complaints are the server's: a line end in one would forge a line of ours.
        tell(visible(text))

    loads = _Loads(endpoint, workload, request, problem["seed"], deadline, tell_line)
    tell_line(
        f"run {journal.run_id}: {endpoint.model} at {endpoint.base_url}, {workload.name}; loads of rising "
        f"size, at most {minutes:g} min; nothing is launched or stopped"
    )
    ended = None
    while ended is None:
        step = next_load(goal, points)
        left_s = deadline - time.monotonic()
        if step.users is None:
            ended = step.why
        elif points and (left_s <= 0 or _expected_s(points, step.users) > left_s):
            ended = (
                f"the budget of {minutes:g} min does not hold a load of {step.users} users (--max-minutes)"
            )
        else:
            point = loads.measure(step.users, is_first=loads.count == 0)
            points.append(point)
            journal.append("load", point=point.as_dict(), why=step.why)
    journal.append("outcome", finished=True, why=ended)


def _expected_s(points: list[LoadPoint], users: int) -> float:
    """Seconds that a load should take if throughput no longer grows: pessimistic below the knee."""
    last = max(points, key=lambda p: p.users)
    return (last.duration_s or 0.0) * max(1.0, _num_requests(users) / _num_requests(last.users))


def _num_requests(users: int) -> int:
    return max(_FEWEST_REQUESTS, _WAVES * users)


@dataclass(slots=True)
class _Loads:
    """Puts loads on the server, one after the other."""

    endpoint: Endpoint
    workload: Workload
    request: ServerRequest
    seed: int
    deadline: float
    tell: Callable[[str], None]
    count: int = 0
    _told: float = 0.0

    def measure(self, users: int, *, is_first: bool) -> LoadPoint:
        """One load.

        Raises:
            KeyboardInterrupt: Ctrl-C or SIGTERM; the load is not kept.
            LoadError: nothing at all was answered by the first one.
        """
        self.count += 1
        point, was_interrupted = asyncio.run(self._measure(users, is_first=is_first))
        if was_interrupted:
            raise KeyboardInterrupt
        if is_first and not point.completed and point.stopped is None:
            raise LoadError(
                f"no request was answered: {point.error or 'the load was stopped'}",
                "look at the server's own log",
            )
        rate = "n/a" if point.output_throughput is None else f"{point.output_throughput:,.0f}"
        tail = f", stopped: {point.stopped}" if point.stopped else ""
        self.tell(f"  {users} users: {rate} output tokens/s, {point.failed} failed{tail}")
        return point

    async def _measure(self, users: int, *, is_first: bool) -> tuple[LoadPoint, bool]:
        request = self.request
        with interruptible() as interrupted:

            def check() -> str | None:
                if interrupted.is_set():
                    return "interrupted"
                return "the budget is spent (--max-minutes)" if time.monotonic() > self.deadline else None

            measurement = await measure_load(
                self.endpoint,
                self.workload,
                concurrency=users,
                num_requests=_num_requests(users),
                seed=self.seed,
                # The first load finds the server as it is; later ones find it warm.
                warmup_requests=None if is_first else 0,
                max_num_seqs=request.max_num_seqs,
                token_ids=None if request.vocab_size is None else safe_token_ids(request.vocab_size),
                limits=Limits(stall_timeout_s=120.0),
                on_progress=self._on_progress,
                check=check,
            )
            return load_point(users, measurement), interrupted.is_set()

    def _on_progress(self, progress: Progress) -> None:
        if time.monotonic() - self._told >= _TELL_EVERY_S:
            self._told = time.monotonic()
            phase = "warming up" if progress.warming_up else "loading"
            self.tell(
                f"    {phase}: {progress.completed} answered, {progress.in_flight} in flight, "
                f"{progress.elapsed_s:.0f} s"
            )
