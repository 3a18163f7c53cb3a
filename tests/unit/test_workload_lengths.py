"""Length distributions and what is asked of them, with values derived by hand."""

from __future__ import annotations

import math

import pytest

from kvplan.errors import InputError
from kvplan.load.lengths import LengthSample, Marginal, at_share, merge, pair, reduce
from kvplan.load.workload import ClosedLoop, Trace, Workload


def test_a_p95_of_the_total_is_no_sum_of_two_p95s() -> None:
    # Nine requests of 100 in and 900 out, one of 5,000 in and 10 out: half of them lie at 1,000 in total, and
    # the P95 is the long prompt's 5,010. Prompt P95 + answer P95 would be 5,000 + 900.
    workload = Workload((LengthSample(100, 900, 9), LengthSample(5000, 10)))

    assert workload.input_len_quantile(0.95) == 5000
    assert workload.output_len_quantile(0.95) == 900
    assert workload.total_len_quantile(0.95) == 5010
    assert workload.total_len_quantile(0.5) == 1000
    assert workload.mean_total_len == pytest.approx((9 * 1000 + 5010) / 10)


@pytest.mark.parametrize(
    ("q", "expected"), [(0.5, 100), (0.95, 100), (0.951, 1000), (0.99, 1000), (1.0, 1000)]
)
def test_a_quantile_is_the_smallest_length_that_this_share_does_not_exceed(q: float, expected: int) -> None:
    # 19 requests of 100 tokens and one of 1,000: exactly 95 % are at most 100.
    workload = Workload((LengthSample(60, 40, 19), LengthSample(600, 400)))

    assert workload.total_len_quantile(q) == expected


def test_fixed_lengths_are_every_quantile() -> None:
    workload = Workload.fixed(1500, 512, concurrency=32)

    assert {workload.total_len_quantile(q) for q in (0.0, 0.5, 0.95, 0.99, 1.0)} == {2012}
    assert (workload.mean_total_len, workload.longest_total_len) == (2012, 2012)
    assert (workload.longest_input_len, workload.concurrency) == (1500, 32)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (5, 5, 0)])
def test_fixed_lengths_below_one_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="below 1"):
        Workload.fixed(*lengths)


def test_a_stated_longest_request_counts_though_none_was_seen() -> None:
    workload = Workload(
        (LengthSample(100, 100),),
        longest_input_stated=7000,
        longest_total_stated=8192,
        arrivals=ClosedLoop(4),
    )

    assert workload.longest_total_len == workload.total_len_quantile(1.0) == 8192
    assert workload.longest().samples == (LengthSample(7000, 1192),)
    assert workload.longest().concurrency == 4


def test_without_a_mean_lengths_lie_evenly_between_two_percentiles() -> None:
    # Half of the requests evenly over 1 to 101, half over 101 to 301: means 51 and 201.
    marginal = Marginal(((0.0, 1), (0.5, 101), (1.0, 301)))

    assert sum(marginal.strata()) / 1000 == pytest.approx(126, rel=1e-4)


def test_a_mean_bends_the_distribution_and_leaves_the_percentiles() -> None:
    marginal = Marginal(((0.0, 1), (0.5, 800), (0.95, 3000), (1.0, 8192)), mean=1100)
    samples = pair(marginal, Marginal.fixed(1), "comonotone")
    workload = Workload(samples)

    assert workload.mean_input_len == pytest.approx(1100, rel=1e-3)
    assert (workload.input_len_quantile(0.5), workload.input_len_quantile(0.95)) == (800, 3000)


def test_a_mean_and_a_maximum_alone_give_the_cut_off_exponential() -> None:
    # Of all densities on [1, 8192] with mean 1,000 that of maximum entropy: the exponential, cut off. Rate
    # r solves 1/r - 8191/(exp(8191 r) - 1) = 999; median 1 + ln 2 / r (the cut takes off one in 3,000).
    workload = Workload(pair(Marginal(((0.0, 1), (1.0, 8192)), mean=1000), Marginal.fixed(1), "comonotone"))

    rate = Marginal(((0.0, 1), (1.0, 8192)), mean=1000).rate()
    assert 1 / rate - 8191 / math.expm1(8191 * rate) == pytest.approx(999)
    assert workload.mean_input_len == pytest.approx(1000, rel=1e-3)
    assert workload.input_len_quantile(0.5) == pytest.approx(1 + math.log(2) / rate, rel=2e-3)


@pytest.mark.parametrize("mean", [400, 3000])
def test_a_mean_that_the_percentiles_do_not_allow_is_refused(mean: float) -> None:
    # Half of the lengths are at least 1,000 and at most 2,000, the others 1 to 1,000: 500.5 to 1,500.
    with pytest.raises(InputError, match="contradicts the percentiles") as caught:
        Marginal(((0.0, 1), (0.5, 1000), (1.0, 2000)), mean=mean).rate()
    assert caught.value.hint == "they allow a mean between 500.5 and 1500"


def test_separate_percentiles_are_put_together_cautiously_unless_said_otherwise() -> None:
    inputs = Marginal(((0.0, 1), (0.95, 1001), (1.0, 2001)))
    outputs = Marginal(((0.0, 1), (0.95, 101), (1.0, 201)))

    together = Workload(pair(inputs, outputs, "comonotone"))
    apart = Workload(pair(inputs, outputs, "independent"))

    assert together.total_len_quantile(0.95) == 1102  # 1001 + 101
    assert mean_excess(together, 1102) > mean_excess(apart, 1102)
    assert together.total_len_quantile(0.99) > apart.total_len_quantile(0.99)
    assert together.mean_total_len == pytest.approx(apart.mean_total_len)
    assert sorted(s.input_len for s in apart.samples) == sorted(
        s.input_len for s in together.samples for _ in range(s.count)
    )


def mean_excess(workload: Workload, total_len: int) -> float:
    """Tokens beyond `total_len`, a request on average."""
    return sum(max(0, s.total_len - total_len) * s.count for s in workload.samples) / 1000


def test_independent_lengths_have_no_correlation() -> None:
    uniform = Marginal(((0.0, 1), (1.0, 1001)))
    samples = pair(uniform, uniform, "independent")
    mean = sum(s.input_len for s in samples) / len(samples)
    covariance = sum((s.input_len - mean) * (s.output_len - mean) for s in samples) / len(samples)
    variance = sum((s.input_len - mean) ** 2 for s in samples) / len(samples)

    assert abs(covariance / variance) < 0.02


def test_equal_requests_are_counted_together() -> None:
    assert merge([LengthSample(1, 2), LengthSample(1, 2, 3), LengthSample(1, 1)]) == (
        LengthSample(1, 1),
        LengthSample(1, 2, 4),
    )


def test_a_long_log_is_thinned_out_to_pairs_that_occurred() -> None:
    log = [LengthSample(i, 2 * i) for i in range(1, 10_001)]

    thinned = reduce(log, 500)

    assert len(thinned) == 500
    assert set(thinned) <= set(log)
    for q in (0.5, 0.9, 0.99):
        assert at_share(thinned, q).total_len == pytest.approx(at_share(merge(log), q).total_len, rel=0.002)


def test_two_draws_differ_in_their_order_only() -> None:
    workload = Workload(tuple(LengthSample(i, 5) for i in range(1, 101)))

    first, second = workload.draw(40, seed=1), workload.draw(40, seed=2)

    assert first != second
    assert sorted(first) == sorted(second)
    assert workload.draw(40, seed=1) == first
    assert sum(s.input_len for s in first) / 40 == pytest.approx(workload.mean_input_len, rel=0.01)


def test_a_conversation_grows_through_the_distribution() -> None:
    workload = Workload(tuple(LengthSample(100 * i, 10) for i in range(1, 5)), turns=4)

    drawn = [s.input_len for s in workload.draw(8, seed=0)]

    assert drawn == [100, 200, 300, 400] * 2


def test_an_endless_load_has_the_same_mix_in_every_round() -> None:
    workload = Workload((LengthSample(10, 1), LengthSample(20, 1)))
    endless = workload.draw_endless(seed=0)

    rounds = [[next(endless).input_len for _ in range(64)] for _ in range(3)]

    assert [r.count(10) for r in rounds] == [32, 32, 32]
    assert rounds[0] != rounds[1]


def test_a_trace_with_a_length_for_each_time_keeps_their_order() -> None:
    samples = (LengthSample(9, 1), LengthSample(3, 1), LengthSample(6, 1))
    workload = Workload(samples, arrivals=Trace((0.0, 1.0, 2.0)))

    assert workload.draw(5, seed=3) == [*samples, *samples[:2]]
