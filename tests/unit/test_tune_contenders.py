"""What a change of settings is worth, and what the seats that its memory leaves make of it: by hand."""

from __future__ import annotations

import dataclasses

import pytest

from kvplan.tune.assumed import AssumedServer
from kvplan.tune.card import Card
from kvplan.tune.choose import compare_paired, gain_of
from kvplan.tune.contenders import Contender, Seats, best_with_seats
from kvplan.tune.problem import Problem, Space
from kvplan.tune.pruning import pruned
from kvplan.tune.trial import LoadLevel, LoadResult, Trial, TrialSpec
from kvplan.units import MIB
from tests.tiny_search import CARD, LENGTHS, RULES

# 2 x 4 layers x 2 KV heads x 64 x 2 bytes = 2048 bytes a token; a block of 128 is 256 KiB.
PROBLEM = Problem(
    model="tiny",
    device="cpu",
    card_bytes=CARD,
    target_concurrency=8,
    lengths=LENGTHS,
    space=Space(block_size=(128, 32)),
)


def launch(*speeds: float) -> Trial:
    settings = PROBLEM.base_settings().with_flags(kv_cache_memory_bytes=10**8)
    server = AssumedServer(PROBLEM, RULES, non_kv_bytes=600 * MIB, unbudgeted_bytes=500 * MIB)
    trial = server.run_trial(TrialSpec("knob", settings, (), ""))
    level = LoadLevel("target", 8)
    loads = tuple(LoadResult(level, n, 8, 0, output_throughput=speed) for n, speed in enumerate(speeds))
    return dataclasses.replace(trial, loads=loads)


def test_repeats_of_the_same_requests_are_compared_with_each_other() -> None:
    # Repeats differ by a factor of two, their pairs by 10, 10 and 13 of a mean of 150: 6.667, 6.667, 8.667 %.
    # Mean 7.333 %, s = 1.1547 %, t(2) = 4.3027: 4.3027 x 1.1547 / sqrt(3) = 2.868 %.
    difference = compare_paired([(100, 110), (150, 160), (200, 213)])
    assert difference is not None
    assert difference.change == pytest.approx(0.07333, abs=1e-5)
    assert difference.low == pytest.approx(0.07333 - 0.02868, abs=1e-4)
    assert difference.high == pytest.approx(0.07333 + 0.02868, abs=1e-4)


def test_the_gain_to_expect_is_drawn_towards_nothing_by_what_single_launches_differ_by() -> None:
    # The repeats agree on +4 % exactly, so only the launches are in doubt: 0.05^2 / (0.05^2 + 0.025^2) = 0.8.
    gain = gain_of(PROBLEM, [launch(100, 100)], [launch(104, 104)])
    assert gain is not None
    assert gain.expected == pytest.approx(0.8 * 0.04)
    assert not gain.is_decided  # less than launches of the same settings may differ by (5 %)
    assert gain.is_taken
    small = gain_of(PROBLEM, [launch(100, 100)], [launch(101, 101)])
    assert small is not None
    assert small.expected == pytest.approx(0.008)
    assert not small.is_taken


def test_noisy_repeats_make_the_same_difference_worth_less() -> None:
    # Differences of 4 +- 20 points: s = 28.28 %, standard error 20 %: 0.0025 / (0.0025 + 0.04 + 0.000625).
    gain = gain_of(PROBLEM, [launch(100, 100)], [launch(84, 124)])
    assert gain is not None
    assert gain.expected == pytest.approx(0.04 * 0.0025 / (0.0025 + 0.04 + 0.000625))
    assert not gain.is_taken


def test_two_launches_of_each_are_compared_by_their_means() -> None:
    # Means 100 and 102 against 104 and 106: +3.96 % and +3.96 % of 101; no launch differed, so it is decided.
    gain = gain_of(PROBLEM, [launch(90, 110), launch(92, 112)], [launch(104, 104), launch(110, 102)])
    assert gain is not None
    assert gain.difference.change == pytest.approx(4 / 101)
    assert gain.is_decided
    # The second pair is the other way round: undecided, whatever the repeats inside each launch say.
    apart = gain_of(PROBLEM, [launch(100, 100), launch(100, 100)], [launch(108, 108), launch(98, 98)])
    assert apart is not None
    assert apart.difference.change == pytest.approx(0.03)
    assert not apart.is_decided


def test_between_two_loads_of_the_sweep_every_eighth_seat_is_taken_that_fits() -> None:
    seats = Seats(PROBLEM, {8: 100.0, 16: 180.0, 32: 300.0})
    assert [seats.within(holds) for holds in (5, 8, 15, 16, 17, 24, 31, 32, 99)] == [
        *(8, 8, 8, 16, 16, 24, 24, 32, 32)
    ]
    named = dataclasses.replace(PROBLEM, space=dataclasses.replace(PROBLEM.space, max_num_seqs=(8, 16, 32)))
    assert Seats(named, seats.speeds).within(31) == 16


def test_of_loads_within_a_percent_the_smallest_is_taken() -> None:
    assert Seats(PROBLEM, {8: 100.0, 16: 100.9, 32: 100.5}).within(99) == 8
    assert Seats(PROBLEM, {8: 100.0, 16: 101.1, 32: 100.5}).within(99) == 16


def test_a_faster_value_whose_memory_costs_seats_gives_way_to_one_with_more() -> None:
    base = Contender(PROBLEM.base_settings(), (launch(100, 100),))
    faster = Contender(PROBLEM.base_settings(), (launch(110, 110),), 1.1, "block_size=32")
    seats = Seats(PROBLEM, {8: 100.0, 16: 180.0, 32: 300.0})
    # 1.1 x 180 with 16 seats against 1.0 x 300 with 32.
    held = {"": 40, "block_size=32": 20}
    assert best_with_seats([base, faster], faster, seats, lambda c: held[c.found]) is base
    # With the same seats the faster one stays, and so it does where the other is only faster.
    assert best_with_seats([base, faster], faster, seats, lambda _: 40) is faster
    assert best_with_seats([base, faster], base, seats, lambda _: 40) is base


def test_candidates_that_arithmetic_rules_out_are_counted() -> None:
    # Utilisations 0.05 to 1.00 in steps of 0.005: points 10 to 200, 191 of them; 8, 16, 32 seats; two block
    # sizes: 191 x 3 x 2 = 1,146 candidates. 2,048 MiB, of which 600 are counted before the KV cache and 500
    # not at all: full at 0.75586, so points 152 to 200 (49) are too full.
    # Blocks of 128 tokens, 256 KiB: one request of 1,024 tokens is 9 blocks, 2.25 MiB: 602.25 MiB is 0.29407,
    # points 10 to 58 (49) hold none. Blocks of 32, 64 KiB: 33 blocks, 2.0625 MiB: also 0.294.
    # Eight requests: 65 blocks of 256 KiB, 16.25 MiB: 616.25 MiB is 0.30090: points 59 and 60 (2) hold fewer;
    # 257 of 64 KiB, 16.0625 MiB: 0.30081, the same two.
    found = pruned(PROBLEM, Card(CARD, 600 * MIB, 500 * MIB), RULES)
    assert found.candidates == 191 * 3 * 2
    assert found.too_full == 49 * 3 * 2
    assert found.cannot_start == 49 * 3 * 2
    assert found.too_few == 2 * 3 * 2
    assert found.left == 91 * 3 * 2
