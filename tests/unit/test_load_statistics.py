"""Figures of a load, against values derived by hand and against vLLM's own function."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kvplan.engine.metrics import parse_metrics
from kvplan.load.records import ClientHealth, LoadResult, RequestRecord
from kvplan.load.statistics import LoadSummary, summarize
from kvplan.load.stream import StreamReader

IDLE_CLIENT = ClientHealth(cpu_share=0.1, loop_lag_p50_ms=0.1, loop_lag_p99_ms=0.5, loop_lag_max_ms=1.0)


def answer(ttft_s: float, *gaps_s: float, prompt_tokens: int = 10, start_s: float = 0.0) -> RequestRecord:
    """A whole answer of one token more than it has gaps."""
    return RequestRecord(
        number=0,
        start_s=start_s,
        input_len=prompt_tokens,
        output_len=1 + len(gaps_s),
        prompt_tokens=prompt_tokens,
        output_tokens=1 + len(gaps_s),
        ttft_s=ttft_s,
        itl_s=gaps_s,
        e2e_s=ttft_s + sum(gaps_s),
    )


FAILED = RequestRecord(
    number=9, start_s=0.0, input_len=10, output_len=5, ttft_s=9.0, e2e_s=99.0, itl_s=(90.0,), error="500: no"
)


def load(*records: RequestRecord, duration_s: float = 2.0, client: ClientHealth = IDLE_CLIENT) -> LoadResult:
    return LoadResult(
        records=records,
        warmup_records=(),
        duration_s=duration_s,
        concurrency=2,
        seed=0,
        salt=1,
        client=client,
        steady_s=None,
    )


def test_two_answers_give_the_figures_that_one_computes_by_hand() -> None:
    # A: TTFT 0.1 s, gaps 0.02 and 0.04 -> e2e 0.16, TPOT (0.16 - 0.1) / 2 = 0.03
    # B: TTFT 0.3 s, gap 0.06          -> e2e 0.36, TPOT 0.06
    summary = summarize(load(answer(0.1, 0.02, 0.04), answer(0.3, 0.06, prompt_tokens=30)))

    assert (summary.completed, summary.failed) == (2, 0)
    assert (summary.total_input_tokens, summary.total_output_tokens) == (40, 5)
    assert summary.request_throughput == 1.0  # 2 answers in 2 s
    assert summary.output_throughput == 2.5  # 5 tokens in 2 s
    assert summary.total_token_throughput == 22.5  # 45 tokens in 2 s
    assert summary.mean_ttft_ms == pytest.approx(200)
    assert summary.std_ttft_ms == pytest.approx(100)  # of the population: half the distance of two values
    assert summary.p50_ttft_ms == pytest.approx(200)  # between the two
    assert summary.p95_ttft_ms == pytest.approx(290)  # 100 + 0.95 x 200
    assert summary.p99_ttft_ms == pytest.approx(298)
    assert summary.mean_tpot_ms == pytest.approx(45)
    assert summary.p50_itl_ms == pytest.approx(40)  # of 20, 40, 60
    assert summary.mean_e2el_ms == pytest.approx(260)
    assert summary.client_limited is None


def test_failed_requests_are_counted_and_enter_no_latency() -> None:
    summary = summarize(load(answer(0.1, 0.02), FAILED))

    assert (summary.completed, summary.failed) == (1, 1)
    assert summary.p99_ttft_ms == pytest.approx(100)
    assert summary.total_output_tokens == 2
    assert summary.errors == (("500: no", 1),)


@pytest.mark.parametrize("records", [(), (FAILED,)], ids=["no request", "only failed ones"])
def test_without_a_whole_answer_every_figure_is_unknown(records: tuple[RequestRecord, ...]) -> None:
    summary = summarize(load(*records))

    unknown = {f.name for f in dataclasses.fields(LoadSummary) if getattr(summary, f.name) is None}
    counted = {"completed", "failed", "unfinished", "concurrency", "duration", "wrong_lengths", "errors"}
    counted |= {"miscounted"}
    assert unknown == {f.name for f in dataclasses.fields(LoadSummary)} - counted


def test_an_answer_of_one_token_has_no_time_per_further_token() -> None:
    summary = summarize(load(answer(0.1)))

    assert summary.p50_tpot_ms is None
    assert summary.p50_itl_ms is None
    assert summary.p50_ttft_ms == pytest.approx(100)


def test_an_answer_that_was_read_at_one_moment_says_nothing_of_its_gaps() -> None:
    # Three tokens at 0.1 s, all at once, as behind a proxy that collects the stream: not 0.0 ms a token.
    at_once = summarize(load(answer(0.1, 0.0, 0.0)))
    beside = summarize(load(answer(0.1, 0.0, 0.0), answer(0.3, 0.06)))

    assert (at_once.mean_tpot_ms, at_once.p99_tpot_ms, at_once.mean_itl_ms) == (None, None, None)
    assert at_once.p50_ttft_ms == pytest.approx(100)
    assert at_once.total_output_tokens == 3
    assert beside.mean_tpot_ms == pytest.approx(60)
    assert beside.mean_itl_ms == pytest.approx(60)


def test_tokens_that_the_server_did_not_count_are_unknown_rather_than_guessed() -> None:
    summary = summarize(load(answer(0.1, 0.02), dataclasses.replace(answer(0.1, 0.02), output_tokens=None)))

    assert summary.output_throughput is None
    assert summary.request_throughput == 1.0


def test_an_answer_of_another_length_than_asked_is_noticed() -> None:
    assert summarize(load(dataclasses.replace(answer(0.1, 0.02), output_len=64))).wrong_lengths == 1


def test_json_has_vllms_names() -> None:
    record = summarize(load(answer(0.1, 0.02, 0.04), FAILED)).as_dict()

    assert record["median_ttft_ms"] == record["p50_ttft_ms"] == pytest.approx(100)
    assert {"p99_tpot_ms", "mean_itl_ms", "std_e2el_ms", "output_throughput"} <= set(record)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (dataclasses.replace(IDLE_CLIENT, cpu_share=0.93), "93%"),
        # Gaps are 40 ms; a quarter of that, 10 ms, is the limit.
        (dataclasses.replace(IDLE_CLIENT, loop_lag_p99_ms=12.0), "12.0 ms late"),
        (dataclasses.replace(IDLE_CLIENT, loop_lag_p99_ms=9.0), None),
    ],
)
def test_a_client_that_could_not_keep_up_says_so(client: ClientHealth, expected: str | None) -> None:
    limited = summarize(load(answer(0.1, 0.04, 0.04), client=client)).client_limited

    assert (expected is None and limited is None) or (expected or "!") in (limited or "")


@pytest.mark.parametrize("tokens", [10**13, 10**400, -1, 1.5, True, "7"])
def test_numbers_of_tokens_that_no_answer_has_are_unknown(tokens: object) -> None:
    reader = StreamReader()
    reader.feed(
        b'data: {"choices": [], "usage": {"completion_tokens": ' + json.dumps(tokens).encode() + b"}}\n"
    )

    assert reader.output_tokens is None


def test_gauges_whose_sum_is_infinite_are_unknown() -> None:
    lines = [f'vllm:num_requests_running{{engine="{engine}"}} 1.7e308' for engine in (0, 1)]
    text = "\n".join(["# TYPE vllm:num_requests_running gauge", *lines]) + "\n"

    assert parse_metrics(text).running is None
