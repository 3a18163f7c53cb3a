"""One phase of a load (warm-up, or the part that counts): users or arrivals, and what watches over them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvplan.load.exchange import Exchange
from kvplan.load.records import Endpoint, Progress, RequestRecord
from kvplan.load.supply import arrival_times
from kvplan.load.workload import Arrivals, ClosedLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    import aiohttp

    from kvplan.load.prompts import PromptSource
    from kvplan.load.supply import Conversation, Supply

Check = Callable[[], str | None]
"""Asked about four times a second while a load runs: a reason to stop it (the server died), or None."""

GAVE_UP: Final = ("took longer than", "stalled:")
"""How the errors of requests begin that the watchdog gave up: the server hangs."""
_TICK_S: Final = 0.25
_LAG_PROBE_S: Final = 0.01
_FAILURES_IN_A_ROW: Final = 20
_LONGEST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """When a request is given up."""

    request_timeout_s: float = 1800.0
    """One limit for the whole request."""
    stall_timeout_s: float = 300.0
    """Longest wait for the first token, or between two."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Whom a load talks to while it runs."""

    on_progress: Callable[[Progress], None] | None = None
    on_record: Callable[[RequestRecord], None] | None = None
    check: Check | None = None


@dataclass
class Phase:
    """The state of one phase while it runs, and what it leaves."""

    session: aiohttp.ClientSession
    endpoint: Endpoint
    prompts: PromptSource
    limits: Limits
    callbacks: Callbacks
    warming_up: bool = False
    logprobs: int | None = None
    """Log-probabilities that each request asks for at every place; None asks for none."""
    records: list[RequestRecord] = field(default_factory=list)
    """In the order in which they ended."""
    stopped: str | None = None
    unfinished: int = 0
    duration_s: float = 0.0
    cpu_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    steady_from_s: float | None = None
    steady_to_s: float | None = None
    origin_s: float = 0.0
    _work: list[asyncio.Task[None]] = field(default_factory=list)
    _in_flight: set[Exchange] = field(default_factory=set)
    _unserved: set[int] = field(default_factory=set)
    """First requests of users that have no token yet."""
    _token_events: int = 0
    _failures_in_a_row: int = 0

    async def run(self, supply: Supply, arrivals: Arrivals, seed: int) -> None:
        """Send every request of the supply and wait for the answers.

        When the caller is cancelled, everything is cancelled with it; requests that ended were given to
        `on_record` by then.
        """
        async with asyncio.TaskGroup() as watchers:
            watching = [watchers.create_task(self._watch()), watchers.create_task(self._probe_lag())]
            cpu_before = time.process_time()
            self.origin_s = time.perf_counter()
            try:
                async with asyncio.TaskGroup() as group:
                    if isinstance(arrivals, ClosedLoop):
                        self._start_users(group, supply, arrivals)
                    else:
                        self._spawn(group, self._arrive(group, supply, arrival_times(arrivals, seed)))
            finally:
                self.duration_s = self._elapsed()
                self.cpu_s = time.process_time() - cpu_before
                for task in watching:
                    task.cancel()

    def _elapsed(self) -> float:
        return time.perf_counter() - self.origin_s

    def _spawn(self, group: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> None:
        if self.stopped is None:
            self._work.append(group.create_task(work))

    def _start_users(self, group: asyncio.TaskGroup, supply: Supply, loop: ClosedLoop) -> None:
        # The first prompts are all made before the clock starts: the users shall begin at once.
        openings = [opening for _ in range(loop.users or 1) if (opening := supply.next(0.0)) is not None]
        self._unserved = {opening.number for opening in openings}
        self.origin_s = time.perf_counter()
        for opening in openings:
            self._spawn(group, self._user(supply, opening, loop.think_time_s))

    async def _user(self, supply: Supply, opening: Conversation, think_time_s: float) -> None:
        conversation: Conversation | None = opening
        while conversation is not None:
            await self._converse(conversation, think_time_s)
            conversation = supply.next(self._elapsed())
        if self.steady_to_s is None:
            self.steady_to_s = self._elapsed()

    async def _arrive(self, group: asyncio.TaskGroup, supply: Supply, times_s: Iterator[float]) -> None:
        self.steady_from_s = 0.0
        for arrival_s in times_s:
            conversation = supply.next(max(arrival_s, self._elapsed()))
            if conversation is None:
                break
            await asyncio.sleep(max(0.0, arrival_s - self._elapsed()))
            self._spawn(group, self._converse(conversation, 0.0))
        self.steady_to_s = self._elapsed()

    async def _converse(self, conversation: Conversation, think_time_s: float) -> None:
        prompt, failures = conversation.opening, 0
        last = len(conversation.turns) - 1
        for turn, lengths in enumerate(conversation.turns):
            number = conversation.number + turn
            exchange = Exchange(number, lengths, self.origin_s, self._on_tokens)
            record = await self._send(exchange, prompt, keep_answer=turn < last)
            failures = 0 if record.ok else failures + 1
            pause_s = think_time_s if record.ok else min(_LONGEST_PAUSE_S, 0.1 * 2**failures)
            if turn < last:
                history = [*prompt, *exchange.answer_ids]
                prompt = self.prompts.fresh(number + 1, conversation.turns[turn + 1].input_len, history)
            if pause_s:
                await asyncio.sleep(pause_s)

    async def _send(self, exchange: Exchange, prompt: list[int], *, keep_answer: bool) -> RequestRecord:
        self._in_flight.add(exchange)
        try:
            record = await exchange.run(
                self.session, self.endpoint, prompt, keep_answer=keep_answer, logprobs=self.logprobs
            )
        except asyncio.CancelledError:
            self.unfinished += 1
            raise
        finally:
            self._in_flight.discard(exchange)
        self._served(exchange.number)
        self.records.append(record)
        if self.callbacks.on_record is not None:
            self.callbacks.on_record(record)
        self._failures_in_a_row = 0 if record.ok else self._failures_in_a_row + 1
        if self._failures_in_a_row >= max(_FAILURES_IN_A_ROW, 2 * len(self._work)):
            self._stop(f"{self._failures_in_a_row} requests in a row failed, the last with: {record.error}")
        return record

    def _on_tokens(self, exchange: Exchange, tokens: int) -> None:
        self._token_events += tokens
        if self._unserved:
            self._served(exchange.number)

    def _served(self, number: int) -> None:
        """This request had a token, or failed; once all users' first ones did, the steady part begins."""
        if number in self._unserved:
            self._unserved.discard(number)
            if not self._unserved:
                self.steady_from_s = self._elapsed()

    def _stop(self, reason: str) -> None:
        if self.stopped is None:
            self.stopped = reason
            for task in self._work:
                task.cancel()

    async def _watch(self) -> None:
        """Four times a second: give up requests that take too long, ask the caller, tell the caller."""
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.perf_counter()
            for exchange in self._in_flight:
                if now - exchange.started_s > self.limits.request_timeout_s:
                    exchange.give_up(f"{GAVE_UP[0]} {self.limits.request_timeout_s:g} s")
                elif now - exchange.heard_s > self.limits.stall_timeout_s:
                    exchange.give_up(f"{GAVE_UP[1]} nothing came for {self.limits.stall_timeout_s:g} s")
            reason = self.callbacks.check() if self.callbacks.check is not None else None
            if reason is not None:
                self._stop(reason)
            if self.callbacks.on_progress is not None:
                self.callbacks.on_progress(self._progress())

    def _progress(self) -> Progress:
        failed = sum(not record.ok for record in self.records)
        return Progress(
            warming_up=self.warming_up,
            elapsed_s=self._elapsed(),
            completed=len(self.records) - failed,
            failed=failed,
            in_flight=len(self._in_flight),
            token_events=self._token_events,
        )

    async def _probe_lag(self) -> None:
        """How late a 10 ms timer fires is how late a chunk may have been read."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_LAG_PROBE_S)
            self.lags_s.append(max(0.0, time.perf_counter() - before - _LAG_PROBE_S))
