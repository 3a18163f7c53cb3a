"""The load client against a local server that streams as vLLM does, and in its bad moods."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from kvplan.errors import EngineError, InputError, LoadError
from kvplan.load.client import run_load
from kvplan.load.lengths import LengthSample
from kvplan.load.phase import Limits
from kvplan.load.records import Endpoint, LoadResult, RequestRecord
from kvplan.load.workload import ClosedLoop, Poisson, Trace, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

GAP_S = 0.004
KEY = "a-key"


@dataclass
class Server:
    """Streams `max_tokens` chunks, `GAP_S` apart; `mood` spoils the answers whose number is in `spoilt`."""

    url: str = ""
    mood: str = "well"
    spoilt: range = range(1_000_000)
    requests: list[dict[str, Any]] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    in_flight: int = 0
    peak_in_flight: int = 0

    async def tokenize(self, request: web.Request) -> web.Response:
        """`/tokenize`."""
        body = await request.json()
        words = sorted(set(body["prompt"].split()))
        return web.json_response({"tokens": list(range(1000, 1000 + len(words)))})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`/v1/completions`."""
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "no key"}}, status=401)
        self.arrived_s.append(time.monotonic())
        number = len(self.requests)
        body = await request.json()
        self.requests.append(body)
        mood = self.mood if number in self.spoilt else "well"
        if mood == "refuses":
            return web.json_response({"error": {"message": "max_model_len is 8"}}, status=400)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            return await self._stream(request, body, mood)
        finally:
            self.in_flight -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any], mood: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def say(event: dict[str, Any] | str) -> None:
            text = event if isinstance(event, str) else json.dumps(event, separators=(",", ":"))
            await response.write(f"data: {text}\n\n".encode())

        for token in range(body["max_tokens"]):
            await asyncio.sleep(GAP_S)
            if token == 2 and mood == "stalls":
                await asyncio.sleep(30)
            if token == 2 and mood == "fails inside":
                await say({"error": {"message": "EngineCore encountered an issue", "code": 500}})
                break
            if token == 2 and mood == "drops":
                assert request.transport is not None
                request.transport.abort()
                return response
            choice = {"index": 0, "text": 'a "choices":[{ trap', "finish_reason": None}
            if body.get("return_token_ids"):
                choice["token_ids"] = [50_000 + token]
            await say({"id": "x", "choices": [choice]})
        if mood == "ends early":
            return response
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        await say({"id": "x", "choices": [], "usage": usage})
        await say("[DONE]")
        return response


@pytest.fixture
def server() -> Iterator[Server]:
    """A server in a thread of its own, so that client and server do not share a loop."""
    served = Server()
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_post("/v1/completions", served.complete)
    app.router.add_post("/tokenize", served.tokenize)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield served
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10)
    loop.close()


def load(server: Server, workload: Workload, **given: Any) -> LoadResult:
    options: dict[str, Any] = {"warmup_requests": 0, "token_ids": range(1000, 2000), "salt": 1, **given}
    return asyncio.run(run_load(Endpoint(server.url, "m", api_key=KEY), workload, **options))


def test_every_request_has_the_lengths_that_the_workload_says(server: Server) -> None:
    workload = Workload((LengthSample(10, 3), LengthSample(20, 5)))

    result = load(server, workload, concurrency=2, num_requests=8)

    asked = Counter((len(r["prompt"]), r["max_tokens"], r["ignore_eos"]) for r in server.requests)
    assert asked == {(10, 3, True): 4, (20, 5, True): 4}
    assert [r for r in result.records if not r.ok] == []
    assert {(r.input_len, r.prompt_tokens, r.output_tokens) for r in result.records} == {
        (10, 10, 3),
        (20, 20, 5),
    }


def test_times_are_those_of_the_stream(server: Server) -> None:
    (record,) = load(server, Workload.fixed(10, 20), concurrency=1, num_requests=1).records

    assert record.ttft_s is not None
    assert record.e2e_s is not None
    assert record.tpot_s is not None
    assert len(record.itl_s) == 19
    assert record.ttft_s >= GAP_S
    assert record.ttft_s + sum(record.itl_s) == pytest.approx(record.e2e_s)
    # The server's sleeps are never shorter than asked for; the machine may make anything longer.
    assert record.e2e_s >= 20 * GAP_S
    assert record.tpot_s == pytest.approx(sum(record.itl_s) / 19)


def test_as_many_requests_are_in_flight_as_there_are_users(server: Server) -> None:
    result = load(server, Workload.fixed(4, 10), concurrency=5, num_requests=20)

    assert server.peak_in_flight == 5
    assert result.concurrency == 5
    assert result.steady_s is not None
    assert 0 < result.steady_s[0] < result.steady_s[1] <= result.duration_s


def test_prompts_are_fresh_but_for_the_shared_prefix(server: Server) -> None:
    workload = Workload((LengthSample(40, 1),), shared_prefix_tokens=16)

    load(server, workload, concurrency=2, num_requests=6, salt=1)
    load(server, workload, concurrency=2, num_requests=6, salt=2)

    prompts = [r["prompt"] for r in server.requests]
    assert len({tuple(p[:16]) for p in prompts}) == 1
    assert len({tuple(p[16:20]) for p in prompts}) == 12
    assert {token for p in prompts for token in p} <= set(range(1000, 2000))


def test_equal_seed_and_salt_give_equal_requests(server: Server) -> None:
    workload = Workload((LengthSample(10, 2), LengthSample(30, 4)))
    load(server, workload, concurrency=1, num_requests=4, seed=7, salt=3)
    load(server, workload, concurrency=1, num_requests=4, seed=7, salt=3)

    assert server.requests[:4] == server.requests[4:]


def test_a_turn_of_a_conversation_repeats_prompt_and_answer(server: Server) -> None:
    workload = Workload((LengthSample(10, 4), LengthSample(20, 4), LengthSample(30, 4)), turns=3)

    load(server, workload, concurrency=1, num_requests=3)

    first, second, third = (r["prompt"] for r in server.requests)
    answer = [50_000, 50_001, 50_002, 50_003]
    assert second[:14] == first + answer
    assert third[:24] == second + answer
    assert (len(first), len(second), len(third)) == (10, 20, 30)


def test_without_known_ids_the_servers_own_tokens_are_used(server: Server) -> None:
    load(server, Workload.fixed(50, 1), concurrency=1, num_requests=2, token_ids=None)

    assert min(t for r in server.requests for t in r["prompt"]) >= 1000


def test_warm_up_is_kept_apart_and_ends_when_the_speed_has_settled(server: Server) -> None:
    result = load(server, Workload.fixed(8, 6), concurrency=3, num_requests=6, warmup_requests=None)

    assert len(result.records) == 6
    assert len(result.warmup_waves_ms) >= 2
    assert len(result.warmup_records) == 3 * len(result.warmup_waves_ms)
    prompts = Counter(tuple(r["prompt"]) for r in server.requests)
    assert set(prompts.values()) == {1}


@pytest.mark.parametrize(
    ("mood", "error"),
    [
        ("refuses", "400 Bad Request: max_model_len is 8"),
        ("fails inside", "StreamError: EngineCore encountered an issue"),
        ("drops", "Client"),
        ("ends early", "the stream ended before its end mark"),
        ("stalls", "stalled: nothing came for 0.5 s"),
    ],
)
def test_a_bad_answer_is_one_failed_request_and_the_others_go_on(
    server: Server, mood: str, error: str
) -> None:
    server.mood, server.spoilt = mood, range(1, 2)

    result = load(
        server, Workload.fixed(4, 5), concurrency=1, num_requests=4, limits=Limits(stall_timeout_s=0.5)
    )

    assert [r.ok for r in result.records] == [True, False, True, True]
    assert error in (result.records[1].error or "")


def test_a_request_that_takes_too_long_is_given_up(server: Server) -> None:
    result = load(
        server, Workload.fixed(4, 2000), concurrency=1, num_requests=1, limits=Limits(request_timeout_s=0.3)
    )

    assert result.records[0].error == "took longer than 0.3 s"


def test_a_server_that_answers_nothing_but_errors_ends_the_load(server: Server) -> None:
    server.mood = "refuses"

    result = load(server, Workload.fixed(4, 5), concurrency=10, duration_s=60.0)

    assert result.stopped == "20 requests in a row failed, the last with: 400 Bad Request: max_model_len is 8"
    assert result.duration_s < 10


def test_a_reason_to_stop_ends_the_load_and_keeps_what_was_finished(server: Server) -> None:
    finished: list[RequestRecord] = []

    result = load(
        server,
        Workload.fixed(4, 10),
        concurrency=4,
        duration_s=60.0,
        on_record=finished.append,
        check=lambda: "vLLM died" if len(finished) > 6 else None,
    )

    assert result.stopped == "vLLM died"
    assert result.unfinished == 4
    assert list(result.records) == finished
    assert result.duration_s < 10


def test_what_a_check_raises_comes_out_as_it_is(server: Server) -> None:
    def check() -> str | None:
        raise EngineError("vLLM died")

    with pytest.raises(EngineError, match="vLLM died"):
        load(server, Workload.fixed(4, 200), concurrency=2, num_requests=4, check=check)


def test_a_cancelled_load_has_handed_over_what_was_finished(server: Server) -> None:
    finished: list[RequestRecord] = []
    enough = asyncio.Event()

    def keep(record: RequestRecord) -> None:
        finished.append(record)
        if len(finished) == 4:
            enough.set()

    async def cancelled() -> None:
        running = asyncio.ensure_future(
            run_load(
                Endpoint(server.url, "m", api_key=KEY),
                Workload.fixed(4, 10),
                concurrency=4,
                duration_s=60.0,
                warmup_requests=0,
                token_ids=range(1000, 2000),
                on_record=keep,
            )
        )
        async with asyncio.timeout(30):
            await enough.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())

    assert len(finished) >= 4
    assert all(record.ok for record in finished)


def test_requests_of_a_trace_arrive_when_they_did(server: Server) -> None:
    workload = Workload(
        (LengthSample(4, 1), LengthSample(5, 2), LengthSample(6, 3)), arrivals=Trace((0.0, 0.3, 0.4))
    )

    result = load(server, workload, num_requests=3)

    assert [(len(r["prompt"]), r["max_tokens"]) for r in server.requests] == [(4, 1), (5, 2), (6, 3)]
    # The last one is sent 0.4 s after the first; a busy machine may deliver the first late.
    assert server.arrived_s[-1] - server.arrived_s[0] >= 0.3
    assert result.duration_s >= 0.4


def test_random_arrivals_do_not_wait_for_answers(server: Server) -> None:
    workload = Workload((LengthSample(4, 100),), arrivals=Poisson(requests_per_s=40))

    result = load(server, workload, num_requests=12)

    # Each answer takes at least 0.4 s and twelve arrive within about 0.3 s.
    assert server.peak_in_flight >= 6
    assert result.concurrency is None


def test_users_who_think_send_less(server: Server) -> None:
    workload = Workload((LengthSample(4, 1),), arrivals=ClosedLoop(users=1, think_time_s=0.2))

    result = load(server, workload, num_requests=3)

    assert result.duration_s >= 0.4


def test_the_clients_own_share_of_the_cpu_and_lateness_are_measured(server: Server) -> None:
    result = load(server, Workload.fixed(4, 50), concurrency=4, num_requests=8)

    assert result.client.cpu_share > 0
    assert result.client.loop_lag_p50_ms <= result.client.loop_lag_p99_ms <= result.client.loop_lag_max_ms


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(LoadError, match=r"no answer from http://127\.0\.0\.1:9"):
        asyncio.run(
            run_load(Endpoint("http://127.0.0.1:9", "m"), Workload.fixed(4, 4), concurrency=1, num_requests=1)
        )


def test_a_load_without_users_asks_for_them(server: Server) -> None:
    with pytest.raises(InputError, match="how many users"):
        load(server, Workload.fixed(4, 4), num_requests=1)
