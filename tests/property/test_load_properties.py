"""What holds of every workload and every load."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.load.lengths import LengthSample, Marginal, merge, pair, reduce
from kvplan.load.records import ClientHealth, LoadResult, RequestRecord
from kvplan.load.statistics import summarize
from kvplan.load.stream import StreamReader
from kvplan.load.workload import Workload

samples = st.builds(
    LengthSample, st.integers(1, 100_000), st.integers(1, 10_000), st.integers(min_value=1, max_value=50)
)
workloads = st.lists(samples, min_size=1, max_size=30).map(lambda s: Workload(tuple(s)))
seconds = st.floats(min_value=0, max_value=1e4)


@st.composite
def marginals(draw: st.DrawFn) -> Marginal:
    lengths = sorted(draw(st.lists(st.integers(1, 20_000), min_size=2, max_size=6)))
    shares = sorted(draw(st.sets(st.integers(1, 99), min_size=len(lengths) - 2, max_size=len(lengths) - 2)))
    knots = tuple(zip((0.0, *(s / 100 for s in shares), 1.0), lengths, strict=True))
    lowest = sum((b[0] - a[0]) * a[1] for a, b in pairwise(knots))
    highest = sum((b[0] - a[0]) * b[1] for a, b in pairwise(knots))
    position = draw(st.none() | st.floats(min_value=0.05, max_value=0.95))
    return Marginal(knots, None if position is None else lowest + position * (highest - lowest))


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    gaps = tuple(draw(st.lists(seconds, max_size=5)))
    ttft = draw(seconds)
    return RequestRecord(
        number=0,
        start_s=draw(seconds),
        input_len=1,
        output_len=1 + len(gaps),
        prompt_tokens=1,
        output_tokens=1 + len(gaps),
        ttft_s=ttft,
        itl_s=gaps,
        e2e_s=ttft + sum(gaps),
        error=draw(st.none() | st.just("500")),
    )


@given(workloads, st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_quantiles_rise_and_stay_between_shortest_and_longest(
    workload: Workload, shares: list[float]
) -> None:
    quantiles = [workload.total_len_quantile(q) for q in sorted(shares)]

    assert quantiles == sorted(quantiles)
    assert min(s.total_len for s in workload.samples) <= quantiles[0]
    assert quantiles[-1] <= workload.longest_total_len


@given(workloads, st.floats(0.01, 1))
def test_a_quantile_is_not_exceeded_by_that_share_of_requests(workload: Workload, q: float) -> None:
    length = workload.total_len_quantile(q)
    total = sum(s.count for s in workload.samples)

    assert sum(s.count for s in workload.samples if s.total_len <= length) >= q * total * (1 - 1e-9)


@given(workloads, st.integers(1, 200), st.integers(0, 5))
def test_a_draw_has_only_requests_of_the_workload(workload: Workload, count: int, seed: int) -> None:
    drawn = workload.draw(count, seed)

    assert len(drawn) == count
    assert {(s.input_len, s.output_len) for s in drawn} <= {
        (s.input_len, s.output_len) for s in workload.samples
    }


@given(workloads, st.integers(1, 20))
def test_thinning_keeps_a_subset_in_its_bounds(workload: Workload, size: int) -> None:
    thinned = reduce(workload.samples, size)

    assert len(thinned) <= max(size, len(merge(workload.samples)) if len(workload.samples) <= size else size)
    assert {(s.input_len, s.output_len) for s in thinned} <= {
        (s.input_len, s.output_len) for s in workload.samples
    }


@settings(deadline=None, max_examples=40)
@given(marginals())
def test_a_marginal_keeps_its_percentiles_and_its_mean(marginal: Marginal) -> None:
    workload = Workload(pair(marginal, Marginal.fixed(1), "comonotone"))

    for q, length in marginal.knots[1:-1]:
        assert workload.input_len_quantile(q) == length
    assert marginal.knots[0][1] <= workload.input_len_quantile(0.0)
    assert workload.longest_input_len <= marginal.knots[-1][1]
    if marginal.mean is not None:
        width = marginal.knots[-1][1] - marginal.knots[0][1]
        assert abs(workload.mean_input_len - marginal.mean) <= 0.003 * width + 1


@given(st.lists(records(), max_size=12), st.floats(0.1, 1e4))
def test_percentiles_are_ordered_and_between_the_extremes(
    loaded: list[RequestRecord], duration_s: float
) -> None:
    client = ClientHealth(0.0, 0.0, 0.0, 0.0)
    summary = summarize(LoadResult(tuple(loaded), (), duration_s, 1, 0, 0, client, None))

    assert summary.completed + summary.failed == len(loaded)
    for name in ("ttft", "tpot", "itl", "e2el"):
        p50, p95, p99 = (getattr(summary, f"{p}_{name}_ms") for p in ("p50", "p95", "p99"))
        if p50 is None:
            assert (p95, p99, getattr(summary, f"mean_{name}_ms")) == (None, None, None)
        else:
            assert p50 <= p95 <= p99
    whole = [1000 * r.ttft_s for r in loaded if r.ok and r.ttft_s is not None]
    if whole:
        assert summary.p99_ttft_ms is not None
        assert min(whole) * (1 - 1e-9) <= summary.p99_ttft_ms <= max(whole) * (1 + 1e-9)
    else:
        assert {v for f, v in dataclasses.asdict(summary).items() if f.endswith("_ms")} == {None}


@given(st.lists(st.text(max_size=20), max_size=8), st.data())
def test_tokens_are_counted_however_the_stream_is_cut(texts: list[str], data: st.DataObject) -> None:
    import json

    events = [json.dumps({"choices": [{"index": 0, "text": text}]}) for text in texts]
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(texts)}}
    stream = "".join(f"data: {e}\n\n" for e in [*events, json.dumps(usage), "[DONE]"]) + ": ping\n\n"
    body = stream.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=10)))
    reader = StreamReader()

    counted = sum(reader.feed(body[a:b]) for a, b in zip((0, *cuts), (*cuts, len(body)), strict=True))

    assert counted == len(texts)
    assert (reader.prompt_tokens, reader.output_tokens, reader.finished) == (3, len(texts), True)
