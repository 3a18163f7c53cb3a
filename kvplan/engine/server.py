"""A running vLLM as a context manager: started, ready, watched, and gone afterwards whatever happened."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from kvplan.engine.cgroup import MemoryCgroup
from kvplan.engine.guarded import GuardedProcess
from kvplan.engine.lock import HeldLock, device_lock
from kvplan.engine.log import Failure, LogReader, LogWatch
from kvplan.engine.memory_sampler import MemorySampler
from kvplan.engine.plan import LaunchPlan, argv, own_environment
from kvplan.errors import EngineError, FailureClass, InputError, MissingDependencyError
from kvplan.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_POLL_S: Final = 0.1
_SETTLE_S: Final = 3.0
"""After a fatal line: how long the rest of the traceback may take."""
_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something to tell whoever waits."""

    kind: Literal["waiting", "cleaned_up", "starting", "phase", "ready", "stopping", "stopped"]
    text: str
    elapsed_s: float = 0.0


@dataclass
class EngineStartError(EngineError):
    """vLLM did not become ready."""

    launch: Launch | None = None


@dataclass
class EngineDiedError(EngineError):
    """vLLM was ready, and then failed."""

    launch: Launch | None = None


class Engine:
    """One vLLM server of ours."""

    def __init__(
        self, plan: LaunchPlan, port: int, lock: HeldLock, on_event: Callable[[EngineEvent], None]
    ) -> None:
        self.plan = plan
        self.port = port
        self.base_url = f"http://127.0.0.1:{port}"
        self.api_key = plan.api_key
        self.served_model_name = plan.served_model_name
        self.ready_s: float | None = None
        self._on_event = on_event
        self._failed: EngineError | None = None
        self._settled: float | None = None
        self._log = LogReader(plan.log_path)
        self._watch = LogWatch()
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._cgroup = (
            MemoryCgroup.create(plan.card_bytes) if plan.device == "cpu" and plan.card_bytes else None
        )
        plan.work_dir.mkdir(parents=True, exist_ok=True)
        plan.log_path.write_bytes(b"")
        self._start = time.monotonic()
        self._process = GuardedProcess(
            argv(plan, port),
            os.environ | own_environment(plan),
            plan.log_path,
            lock=lock,
            cgroup=self._cgroup,
        )
        self._tell("starting", f"vLLM on port {port}, log {plan.log_path}")
        self._sampler = MemorySampler(plan, self._process.guard_pid, self._cgroup)

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
        """The record of this launch as it stands."""
        return self._record(None)

    def pids(self) -> list[int]:
        """All live processes of this vLLM."""
        return self._sampler.pids()

    def peak_bytes(self) -> int | None:
        """Highest memory use that was sampled so far; None before the first sample."""
        return self._sampler.peak_bytes

    def used_bytes(self) -> int | None:
        """Memory use now."""
        return self._sampler.sample_now()

    def samples(self) -> list[tuple[float, int]]:
        """(seconds since the start, bytes), oldest first."""
        return self._sampler.samples()

    def check(self) -> None:
        """Look at process, log and memory now.

        Raises:
            EngineDiedError: it has failed since it was ready.
            EngineStartError: it has failed before.
        """
        if self._failed is not None:
            raise self._failed
        failure = self._look()
        if failure is not None:
            self._failed = self._error(failure)
            raise self._failed

    def wait_ready(self) -> None:
        """Wait until vLLM answers under our name.

        Raises:
            EngineStartError: it failed, or was not ready in time.
        """
        deadline = self._start + self.plan.ready_timeout_s
        phase = None
        while not self._is_ready():
            self.check()
            if self._watch.phase != phase:
                phase = self._watch.phase
                self._tell("phase", phase or "")
            if time.monotonic() > deadline:
                self._failed = self._error(self._timeout())
                raise self._failed
            time.sleep(_POLL_S)
        self.check()
        self.ready_s = time.monotonic() - self._start
        self._process.tell_ready()
        self._tell("ready", f"after {self.ready_s:.1f} s")

    def stop(self) -> None:
        """End it; nothing of it is left when this returns."""
        self._tell("stopping", "")
        self._sampler.stop()
        self._process.stop(_GRACE_S if self.ready_s is not None and self._failed is None else 0.0)
        if self._cgroup is not None:
            self._cgroup.remove()
        self._tell("stopped", "")

    def _look(self) -> Failure | None:
        self._process.poll()
        for line in self._log.new_lines():
            self._watch.feed(line)
        now = time.monotonic()
        over_limit = self._sampler.over_limit
        if self._kernel_kills():
            return self._killed("the kernel killed a process of vLLM for memory")
        if over_limit is not None:
            return self._killed(over_limit)
        dead = self._process.exit_status is not None or self._process.error is not None
        if not dead and self._watch.fatal_line is None:
            return None
        # The lines that tell why may come after the one that tells that it is over.
        if self._settled is None:
            self._settled = now + (0.3 if dead else _SETTLE_S)
        if now < self._settled:
            time.sleep(min(_POLL_S, self._settled - now))
            return self._look()
        for line in self._log.last_lines():
            self._watch.feed(line)
        return self._after_death()

    def _after_death(self) -> Failure:
        told = self._watch.failure()
        if told is not None and told.failure is not FailureClass.UNKNOWN:
            return told
        status = self._process.exit_status
        if self._kernel_kills():
            return self._killed("the kernel killed a process of vLLM for memory")
        if status == -9:
            return self._killed("vLLM was killed by SIGKILL")
        if told is not None:
            return told
        text = self._process.error or f"vLLM exited with status {status}"
        return Failure(FailureClass.UNKNOWN, self._watch.phase, text)

    def _kernel_kills(self) -> int:
        return (self._cgroup.oom_kill_count() or 0) if self._cgroup is not None else 0

    def _killed(self, text: str) -> Failure:
        return Failure(FailureClass.KILLED, "serving" if self.ready_s else self._watch.phase, text)

    def _timeout(self) -> Failure:
        told = self._watch.failure()
        line = None if told is None else told.decisive_line
        return Failure(FailureClass.TIMEOUT, self._watch.phase, line)

    def _is_ready(self) -> bool:
        import httpx  # noqa: PLC0415

        headers = {"Authorization": f"Bearer {self.api_key}"}
        try:
            with httpx.Client(base_url=self.base_url, timeout=2.0, trust_env=False) as client:
                if client.get("/health").status_code != 200:
                    return False
                models = client.get("/v1/models", headers=headers)
                names = [model["id"] for model in models.json()["data"]] if models.status_code == 200 else []
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False
        return self.served_model_name in names

    def _error(self, failure: Failure) -> EngineError:
        launch = self._record(failure)
        kind = EngineStartError if self.ready_s is None else EngineDiedError
        when = "did not start" if self.ready_s is None else "failed while serving"
        return kind(
            message=f"vLLM {when}: {failure.failure} ({failure.decisive_line or 'its log does not say why'})",
            hint=f"the whole log is {self.plan.log_path}",
            failure=failure.failure,
            decisive_line=failure.decisive_line,
            log_path=str(self.plan.log_path),
            launch=launch,
        )

    def _record(self, failure: Failure | None) -> Launch:
        launch = Launch(
            outcome="started" if failure is None else "failed",
            settings=self.plan.settings.given(),
            device=self.plan.device,
            model=self.plan.model,
            gpu=self.plan.gpu,
            gpu_total_bytes=self.plan.card_bytes,
            memory_limit=self.memory_limit,
            oom_kill_count=None if self._cgroup is None else self._cgroup.oom_kill_count(),
            facts=self._watch.facts(),
            ready_s=self.ready_s,
            peak_bytes=self.peak_bytes(),
            log_path=str(self.plan.log_path),
            started_at=self._started_at,
        )
        if failure is None:
            return launch
        return dataclasses.replace(
            launch,
            failure=failure.failure,
            phase=failure.phase,
            decisive_line=failure.decisive_line,
            exit_status=self._process.exit_status,
        )

    def _tell(self, kind: EngineEvent.kind, text: str) -> None:
        self._on_event(EngineEvent(kind, text, time.monotonic() - self._start))


@contextlib.contextmanager
def running_engine(
    plan: LaunchPlan,
    *,
    on_event: Callable[[EngineEvent], None] | None = None,
    lock_wait_s: float = math.inf,
) -> Iterator[Engine]:
    """vLLM, ready to serve; when the block is left, by whatever way, nothing of it is left.

    Raises:
        EngineStartError: it did not become ready; carries the launch record.
        EngineDiedError: it failed while the block ran (also when the block left with another error).
        EngineBusyError: another engine holds the device longer than `lock_wait_s`.
        InputError: the port that was asked for is in use.
        MissingDependencyError: no vLLM, or one that can't be imported.
    """
    tell = on_event or (lambda _: None)
    with device_lock(
        plan.gpu_uuids or (None,),
        wait_s=lock_wait_s,
        on_wait=lambda text: tell(EngineEvent("waiting", text)),
        on_clean_up=lambda text: tell(EngineEvent("cleaned_up", text)),
    ) as lock:
        engine = Engine(plan, choose_port(plan.port), lock, tell)
        try:
            engine.wait_ready()
            try:
                yield engine
            except Exception:
                engine.check()
                raise
            engine.check()
        finally:
            engine.stop()


def choose_port(wanted: int | None) -> int:
    """A free port on the loopback, or the wanted one.

    Raises:
        InputError: the wanted one is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except OSError as error:
            raise InputError(
                f"port {wanted} can't be used: {error.strerror}",
                "name another one, or none: a free one is chosen",
            ) from error
        return int(probe.getsockname()[1])
