"""A vLLM server as a context manager: started, ready, and gone afterwards whatever happened."""

from __future__ import annotations

import contextlib
import math
import random
import socket
from typing import TYPE_CHECKING, Final

from kvplan.engine import gpu
from kvplan.engine.cgroup import MemoryCgroup
from kvplan.engine.guarded import GuardedProcess
from kvplan.engine.lock import HeldLock, device_lock
from kvplan.engine.plan import LaunchPlan, argv, environment
from kvplan.engine.preflight import require_vllm
from kvplan.engine.running import Engine, EngineDiedError, EngineEvent, EngineStartError
from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Engine", "EngineDiedError", "EngineEvent", "EngineStartError", "choose_port", "running_engine"]

_DYING_S: Final = 1.0
_FREE_TIMEOUT_S: Final = 60.0
_PORTS: Final = range(20_000, 30_000)
"""Below the range from which Linux takes ports for outgoing connections, so that none is taken between our
look and vLLM's bind, many seconds later."""


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
        EngineDiedError: it failed while the block ran, whatever error the block itself left with.
        EngineBusyError: another engine holds the device longer than `lock_wait_s`.
        InputError: the port that was asked for is in use.
        MissingDependencyError: no vLLM, or one that can't be imported.
    """
    require_vllm(plan)
    tell = on_event or (lambda _: None)
    cards = _cards(plan)
    with device_lock(
        [card.uuid for card in cards] or [None],
        wait_s=lock_wait_s,
        on_wait=lambda text: tell(EngineEvent("waiting", text)),
        on_clean_up=lambda text: tell(EngineEvent("cleaned_up", text)),
    ) as lock:
        before = _cards(plan)
        with _started(plan, lock, tell) as engine:
            engine.wait_ready()
            try:
                yield engine
            except Exception:
                # A client sees a broken connection before the process behind it has quite died.
                engine.check_for(_DYING_S)
                raise
            engine.check()
        _wait_for_memory(before, tell)


@contextlib.contextmanager
def _started(plan: LaunchPlan, lock: HeldLock, tell: Callable[[EngineEvent], None]) -> Iterator[Engine]:
    port = choose_port(plan.port)
    _prepare(plan)
    with contextlib.ExitStack() as stack:
        cgroup = None
        if plan.device == "cpu" and plan.card_bytes is not None:
            cgroup = MemoryCgroup.create(plan.card_bytes)
        if cgroup is not None:
            stack.callback(cgroup.remove)
        process = GuardedProcess(argv(plan, port), environment(plan), plan.log_path, lock=lock, cgroup=cgroup)
        stack.callback(
            process.stop, 0.0
        )  # for an interrupt before there is an engine; else it is done by then
        engine = Engine(plan, port, process, cgroup, tell)
        stack.callback(engine.stop)
        yield engine


def _prepare(plan: LaunchPlan) -> None:
    """An empty log in the trial's folder.

    Raises:
        InputError: the folder can't be written to, or the disk is full.
    """
    try:
        plan.work_dir.mkdir(parents=True, exist_ok=True)
        plan.log_path.write_bytes(b"\n")
    except OSError as error:
        raise InputError(f"{plan.log_path}: {error.strerror}", "name a folder on a disk with room") from error


def choose_port(wanted: int | None = None) -> int:
    """A free port on the loopback, or the wanted one.

    Raises:
        InputError: the wanted one can't be used, or none is free.
    """
    # Not seeded: two kvplans must not try the same ones in the same order.
    candidates = [wanted] if wanted is not None else random.SystemRandom().sample(_PORTS, 100)
    for port in candidates:
        with socket.socket() as probe:
            # As vLLM does: a port whose last connections are still fading (TIME_WAIT) can be used.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                reason = error.strerror
            else:
                return port
    what = "no free port was found" if wanted is None else f"port {wanted} can't be used"
    raise InputError(f"{what}: {reason}", "name another one, or none: a free one is chosen")


def _cards(plan: LaunchPlan) -> list[gpu.GpuMemory]:
    """The plan's cards as they are now; none on CPU, and none where NVML does not answer."""
    if plan.device == "cpu":
        return []
    try:
        return gpu.gpus(plan.gpu_uuids)
    except gpu.GpuLostError:
        return []


def _wait_for_memory(before: list[gpu.GpuMemory], tell: Callable[[EngineEvent], None]) -> None:
    if not before:
        return
    try:
        held = gpu.wait_until_free(before, timeout_s=_FREE_TIMEOUT_S)
    except gpu.GpuLostError as error:
        tell(EngineEvent("memory_held", f"the GPU does not answer any more: {error}"))
        return
    if held:
        tell(EngineEvent("memory_held", f"{held} bytes of GPU memory are still held by someone"))
