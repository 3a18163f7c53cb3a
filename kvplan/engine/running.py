"""Engine: one running vLLM of ours, watched. Made by `kvplan.engine.server.running_engine`."""

from __future__ import annotations

import dataclasses
import datetime as dt
import textwrap
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import httpx

from kvplan.engine.interrupts import raise_if_interrupted
from kvplan.engine.memory_sampler import MemorySampler
from kvplan.engine.metrics import MetricsSnapshot, scrape
from kvplan.engine.watch import EngineWatch
from kvplan.errors import EngineError
from kvplan.launch import Launch, StartupFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.engine.cgroup import MemoryCgroup
    from kvplan.engine.guarded import GuardedProcess
    from kvplan.engine.log import Failure
    from kvplan.engine.plan import LaunchPlan

_POLL_S: Final = 0.1
_PROBE_TIMEOUT_S: Final = 5.0
_GRACE_S: Final = 2.0
_MAX_WHY: Final = 300
"""Characters of the decisive line in the message; the record has all of it."""

EventKind = Literal[
    "waiting", "cleaned_up", "starting", "phase", "ready", "stopping", "stopped", "memory_held"
]


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something to tell whoever waits."""

    kind: EventKind
    text: str
    elapsed_s: float = 0.0


@dataclass
class EngineStartError(EngineError):
    """vLLM did not become ready."""

    launch: Launch = field(kw_only=True)


@dataclass
class EngineDiedError(EngineError):
    """vLLM was ready, and then failed."""

    launch: Launch = field(kw_only=True)


class Engine:
    """One vLLM server of ours. Made by `running_engine`."""

    def __init__(
        self,
        plan: LaunchPlan,
        port: int,
        process: GuardedProcess,
        cgroup: MemoryCgroup | None,
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self.plan = plan
        self.base_url = f"http://127.0.0.1:{port}"
        self.api_key = plan.api_key
        self.served_model_name = plan.served_model_name
        self.ready_s: float | None = None
        headers = {"Authorization": f"Bearer {plan.api_key}"}
        self._http = httpx.Client(base_url=self.base_url, trust_env=False, headers=headers)
        self._on_event = on_event
        self._failed: EngineStartError | EngineDiedError | None = None
        self._looking = threading.Lock()
        self._scraped = StartupFacts()
        self._started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self._start = time.monotonic()
        self._cgroup = cgroup
        self._process = process
        self._sampler = MemorySampler(plan, process.guard_pid, cgroup, process.ask_to_stop)
        self._watch = EngineWatch(plan.log_path, process, self._sampler, cgroup)
        self._tell("starting", f"vLLM on port {port}, log {plan.log_path}")

    @property
    def memory_limit(self) -> Literal["gpu", "cgroup", "rss", "none"]:
        """What bounds the memory of this launch."""
        if self.plan.device == "cuda":
            return "gpu"
        if self._cgroup is not None:
            return "cgroup"
        return "none" if self.plan.card_bytes is None else "rss"

    @property
    def launch(self) -> Launch:
        """The record of this launch as it stands now."""
        return self._record() if self._failed is None else self._failed.launch

    def pids(self) -> list[int]:
        """All live processes of this vLLM."""
        return self._sampler.pids()

    def used_bytes(self) -> int | None:
        """Memory in use now; None where nothing can tell."""
        return self._sampler.sample_now()

    def peak_bytes(self) -> int | None:
        """Highest memory use that was sampled so far; None before the first sample."""
        return self._sampler.peak_bytes

    def memory_series(self) -> list[tuple[float, int]]:
        """(seconds since the start, bytes in use), oldest first."""
        return self._sampler.samples()

    def metrics(self) -> MetricsSnapshot | None:
        """What /metrics says now; None if it does not answer."""
        return scrape(self.base_url, self.api_key)

    def answers(self, timeout_s: float = _PROBE_TIMEOUT_S) -> bool:
        """Whether our server answers at all: a hang under load shows here, and nowhere else."""
        return self._probe(timeout_s)

    def check(self) -> None:
        """Look at process, log and memory now; cheap enough for several times a second, from any thread.

        Raises:
            EngineDiedError: it has failed since it was ready.
            EngineStartError: it has failed before.
            KeyboardInterrupt: somebody wants kvplan to end.
        """
        raise_if_interrupted()
        with self._looking:
            if self._failed is None and (failure := self._watch.look()) is not None:
                self._failed = self._error(failure)
        if self._failed is not None:
            raise self._failed

    def check_for(self, seconds: float) -> None:
        """Look again and again for so long.

        Raises:
            EngineDiedError: as `check` does.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_S)

    def wait_ready(self) -> None:
        """Wait until vLLM answers under our name.

        Raises:
            EngineStartError: it failed, or was not ready in time.
        """
        deadline = self._start + self.plan.ready_timeout_s
        phase = None
        while True:
            self.check()
            if self._probe(min(_PROBE_TIMEOUT_S, max(0.1, deadline - time.monotonic()))):
                break
            if self._watch.phase != phase:
                phase = self._watch.phase
                self._tell("phase", phase or "")
            if time.monotonic() > deadline:
                self._failed = self._error(self._watch.timed_out())
                raise self._failed
            time.sleep(_POLL_S)
        self.check()
        self.ready_s = time.monotonic() - self._start
        self._watch.ready = True
        self._process.tell_ready()
        self._scraped = _facts_of(self.metrics())
        self._tell("ready", f"after {self.ready_s:.1f} s")

    def stop(self) -> None:
        """End it; nothing of it is left when this returns."""
        self._tell("stopping", "")
        well = self.ready_s is not None and self._failed is None
        try:
            self._process.stop(_GRACE_S if well else 0.0)
        finally:
            self._sampler.stop()
            self._http.close()
        self._tell("stopped", "")

    def _probe(self, timeout_s: float) -> bool:
        """/health is 200 and /v1/models knows our name: another server on the port does not pass for ours."""
        try:
            if self._http.get("/health", timeout=timeout_s).status_code != httpx.codes.OK:
                return False
            answer = self._http.get("/v1/models", timeout=timeout_s).json()
        except (httpx.HTTPError, ValueError):
            return False
        models = answer.get("data") if isinstance(answer, dict) else None
        names = [model.get("id") for model in models or () if isinstance(model, dict)]
        return self.served_model_name in names

    def _error(self, failure: Failure) -> EngineStartError | EngineDiedError:
        why = textwrap.shorten(
            failure.decisive_line or "its log does not say why", _MAX_WHY, placeholder=" …"
        )
        kind: type[EngineStartError | EngineDiedError] = (
            EngineStartError if self.ready_s is None else EngineDiedError
        )
        when = "did not start" if self.ready_s is None else "failed while serving"
        return kind(
            message=f"vLLM {when}: {failure.failure} ({why})",
            hint=f"the whole log is {self.plan.log_path}",
            failure=failure.failure,
            decisive_line=failure.decisive_line,
            log_path=str(self.plan.log_path),
            launch=dataclasses.replace(
                self._record(),
                outcome="failed",
                failure=failure.failure,
                phase=failure.phase,
                decisive_line=failure.decisive_line,
                exit_status=self._process.exit_status,
            ),
        )

    def _record(self) -> Launch:
        return Launch(
            outcome="started",
            settings=self.plan.settings.given(),
            device=self.plan.device,
            model=self.plan.model,
            gpu=self.plan.gpu,
            gpu_total_bytes=self.plan.card_bytes,
            memory_limit=self.memory_limit,
            oom_kill_count=self._watch.kernel_kills(),
            facts=_filled(self._watch.facts, self._scraped),
            ready_s=self.ready_s,
            peak_bytes=self.peak_bytes(),
            log_path=str(self.plan.log_path),
            started_at=self._started_at,
        )

    def _tell(self, kind: EventKind, text: str) -> None:
        self._on_event(EngineEvent(kind, text, time.monotonic() - self._start))


def _facts_of(metrics: MetricsSnapshot | None) -> StartupFacts:
    """What only /metrics tells: the log of V1 names neither the blocks nor their size."""
    if metrics is None:
        return StartupFacts()
    block_size = metrics.cache_int("effective_attention_block_size") or metrics.cache_int("block_size")
    return StartupFacts(num_gpu_blocks=metrics.cache_int("num_gpu_blocks"), block_size=block_size)


def _filled(facts: StartupFacts, others: StartupFacts) -> StartupFacts:
    missing: dict[str, Any] = {
        fact.name: getattr(others, fact.name)
        for fact in dataclasses.fields(facts)
        if getattr(facts, fact.name) is None
    }
    return dataclasses.replace(facts, **missing)
