"""What a measurement makes of a load and of the server's metrics."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kvplan.engine.metrics import MetricsSnapshot
from kvplan.load.measure import Measurement, first_quarter_slowdown
from kvplan.load.records import ClientHealth, LoadResult, RequestRecord
from kvplan.load.server_metrics import MetricsWatch, ServerSide, server_side
from kvplan.load.statistics import summarize
from kvplan.load.warm_up import has_settled, wave_of
from kvplan.load.workload import ClosedLoop, Workload

CLIENT = ClientHealth(cpu_share=0.1, loop_lag_p50_ms=0.1, loop_lag_p99_ms=0.5, loop_lag_max_ms=1.0)
CACHE = {"kv_cache_size_tokens": "1000", "block_size": "16"}


def shot(running: float, waiting: float, usage: float, **counters: float) -> MetricsSnapshot:
    return MetricsSnapshot(
        running=running, waiting=waiting, kv_cache_usage=usage, cache_config=CACHE, **counters
    )


def seen(*shots: MetricsSnapshot, max_num_seqs: int | None = None, prompt: int = 200) -> ServerSide:
    """One shot a second, all of them in the steady part."""
    watch = MetricsWatch(origin_s=100.0, before=shots[0], after=shots[-1])
    watch.taken = [(101.0 + second, one) for second, one in enumerate(shots)]
    side = server_side(watch, (0.5, 60.0), prompt, max_num_seqs)
    assert side is not None
    return side


def test_peaks_and_what_the_counters_grew_by() -> None:
    side = seen(
        shot(4, 0, 0.5, preemptions_total=3, queue_time_s_total=1.0, queue_time_requests_total=10),
        shot(8, 2, 0.75, preemptions_total=4, queue_time_s_total=1.1, queue_time_requests_total=12),
        shot(2, 0, 0.25, preemptions_total=5, queue_time_s_total=1.3, queue_time_requests_total=16),
    )

    assert (side.peak_running, side.peak_waiting, side.peak_kv_cache_usage) == (8, 2, 0.75)
    assert side.preemptions == 2
    assert side.mean_queue_time_ms == pytest.approx(50)  # 0.3 s over 6 requests
    assert side.kv_cache_tokens == 1000
    assert [sample.at_s for sample in side.samples] == [1.0, 2.0, 3.0]
    assert side.waiting_share == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("running", "waiting", "usage", "max_num_seqs", "expected"),
    [
        # 1,000 tokens of cache: 10 % free is 100 tokens, too few for a prompt of 200.
        (8, 2, 0.9, 16, True),
        # 30 % free is 300 tokens: the prompt fits, so the request waits for the next step.
        (8, 2, 0.7, 16, False),
        # All seats are taken: it waits for a seat, however full the cache is.
        (16, 2, 0.9, 16, False),
        # Nobody waits.
        (8, 0, 0.99, 16, False),
    ],
)
def test_waiting_for_memory_is_told_from_other_waiting(
    running: int, waiting: int, usage: float, max_num_seqs: int, expected: bool
) -> None:
    calm = shot(8, 0, 0.5)

    side = seen(calm, shot(running, waiting, usage), calm, max_num_seqs=max_num_seqs)

    assert side.waited_for_memory is expected


def test_too_few_samples_say_nothing_about_waiting() -> None:
    assert seen(shot(8, 0, 0.5), shot(8, 0, 0.5)).waited_for_memory is None


def test_samples_of_an_idle_server_deny_nothing() -> None:
    # with requests in flight all the time they are old gauges: seen once in a real run that waited all along
    assert seen(shot(0, 0, 0.0), shot(0, 0, 0.0), shot(0, 0, 0.0), shot(0, 0, 0.0)).waited_for_memory is None


def test_one_sample_of_a_request_that_waits_for_memory_is_enough() -> None:
    assert seen(shot(8, 1, 0.95)).waited_for_memory is True


def test_waiting_before_the_steady_part_does_not_count() -> None:
    watch = MetricsWatch(origin_s=0.0, taken=[(float(t), shot(8, 4 * (t < 3), 0.95)) for t in range(1, 9)])

    side = server_side(watch, (3.0, 9.0), 200)

    assert side is not None
    assert side.waited_for_memory is False


def test_a_load_too_short_for_its_steady_part_is_believed_when_it_waits_but_not_when_it_does_not() -> None:
    def side(waiting: int, until_s: float | None) -> bool | None:
        taken = [(0.5, shot(3, waiting, 0.95)), (1.5, shot(3, 0, 0.5))]
        seen = server_side(MetricsWatch(taken=taken), (1.4, 2.0), 200, all_busy_until_s=until_s)
        assert seen is not None
        return seen.waited_for_memory

    assert side(5, until_s=2.0) is True
    assert side(0, until_s=2.0) is None
    # The users who are left no longer make the load.
    assert side(5, until_s=0.4) is None
    assert side(5, until_s=None) is None


def test_preemptions_tell_of_waiting_for_memory_where_the_gauges_were_not_seen_in_time() -> None:
    # Seen with a client that something kept from its CPU for the whole load: 6 preemptions, idle gauges.
    idle = shot(0, 0, 0.0, preemptions_total=2)

    assert seen(idle, shot(0, 0, 0.0, preemptions_total=8)).waited_for_memory is True
    assert seen(idle, idle).waited_for_memory is None
    # Gauges that were seen have the last word on the steady part; the preemption was outside it.
    calm = [shot(8, 0, 0.5, preemptions_total=2)] * 3
    assert seen(*calm, shot(8, 0, 0.5, preemptions_total=3)).waited_for_memory is False


def test_a_counter_that_began_anew_is_unknown() -> None:
    assert (
        seen(shot(1, 0, 0.1, preemptions_total=9), shot(1, 0, 0.1, preemptions_total=2)).preemptions is None
    )


def test_a_server_without_metrics_is_none() -> None:
    assert server_side(MetricsWatch(), (0.0, 1.0), 100) is None


def loaded(*gaps_of_each: tuple[float, ...]) -> LoadResult:
    """Answers that all start at 0 with a first token at 0, one per tuple of gaps."""
    records = tuple(
        RequestRecord(
            number=number,
            start_s=0.0,
            input_len=10,
            output_len=1 + len(gaps),
            prompt_tokens=10,
            output_tokens=1 + len(gaps),
            ttft_s=0.0,
            itl_s=gaps,
            e2e_s=sum(gaps),
        )
        for number, gaps in enumerate(gaps_of_each)
    )
    end = max(sum(gaps) for gaps in gaps_of_each)
    return LoadResult(records, (), end, len(records), 0, 1, CLIENT, (0.0, end))


def test_a_server_that_got_quicker_is_noticed() -> None:
    # 60 gaps of 100 ms, then 600 of 30 ms: 6 s and 18 s, so the first quarter (6 s) holds the slow ones.
    result = loaded((0.1,) * 60 + (0.03,) * 600)

    assert first_quarter_slowdown(result) == pytest.approx(10 / 3)


def test_an_even_server_has_no_slowdown_and_a_short_load_none_to_speak_of() -> None:
    assert first_quarter_slowdown(loaded((0.01,) * 400)) == pytest.approx(1.0)
    assert first_quarter_slowdown(loaded((0.01,) * 40)) is None
    assert first_quarter_slowdown(dataclasses.replace(loaded((0.01,) * 400), steady_s=None)) is None


@pytest.mark.parametrize(
    ("waves_s", "settled"),
    [
        ((), False),
        ((0.1,), False),
        ((0.1, 0.01), False),  # ten times quicker: who knows what the next one does
        ((0.1, 0.01, 0.009), True),
        ((0.01, 0.02), True),  # slower again: no longer warming up
        ((0.01, None), False),
    ],
)
def test_the_warm_up_ends_when_the_speed_no_longer_rises(
    waves_s: tuple[float | None, ...], settled: bool
) -> None:
    assert has_settled(waves_s) is settled


def test_a_warm_up_wave_has_the_workloads_prompts_and_short_answers() -> None:
    wave = wave_of(Workload.fixed(1500, 512), users=8)

    assert [(s.input_len, s.output_len) for s in wave.samples] == [(1500, 32)]
    assert wave.arrivals == ClosedLoop(8)


def measurement(result: LoadResult, server: ServerSide | None) -> Measurement:
    return Measurement(
        summary=summarize(result),
        server=server,
        client=result.client,
        workload="w",
        seed=0,
        salt=1,
        started_at="2026-08-01T10:00:00+00:00",
        steady_s=result.steady_s,
        warmup_requests=8,
        warmup_waves_ms=(100.0, 10.0),
        first_quarter_slowdown=first_quarter_slowdown(result),
        stopped=result.stopped,
    )


def test_the_notes_say_what_to_doubt() -> None:
    slow_client = dataclasses.replace(CLIENT, cpu_share=0.99)
    result = dataclasses.replace(loaded((0.1,) * 60 + (0.03,) * 600), client=slow_client, stopped="vLLM died")

    notes = measurement(result, seen(shot(8, 1, 0.95))).notes

    assert [note.split(":")[0] for note in notes] == [
        "the load was stopped",
        "the load client used 99% of a core",
        "P99 of 1 requests is close to the slowest one",
        "requests waited for KV cache while all users were being served",
    ]


def test_a_slow_beginning_is_the_queues_where_requests_waited_and_a_cold_servers_where_none_did() -> None:
    result = loaded((0.1,) * 60 + (0.03,) * 600)
    # 64 users on a server of 32 seats, its cache nearly empty.
    queued = seen(*[shot(32, 32, 0.1)] * 6, max_num_seqs=32)
    cold = seen(*[shot(64, 0, 0.1)] * 5, shot(63, 1, 0.1), max_num_seqs=64)
    warming = "the server was still warming up: the first quarter was 3.3 times slower"
    waited = "requests waited in the server's queue, up to 32 at once while 32 ran"

    notes_of_queued, notes_of_cold = measurement(result, queued).notes, measurement(result, cold).notes

    assert waited in notes_of_queued
    assert warming not in notes_of_queued
    assert warming in notes_of_cold
    assert not [note for note in notes_of_cold if "waited" in note]


def test_a_measurement_is_json() -> None:
    record = measurement(loaded((0.01,) * 400), None).as_dict()

    assert json.loads(json.dumps(record))["schema"] == "kvplan.measurement/1"
    assert record["summary"]["median_tpot_ms"] == pytest.approx(10.0)
    assert record["server"] is None
    assert "no vLLM /metrics: cache use, preemptions and waiting are unknown" in record["notes"]
