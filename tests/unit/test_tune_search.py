"""The guided search against servers whose boundary and speed the test sets and the search does not know."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.errors import FailureClass
from kvplan.tune.assumed import AssumedServer
from kvplan.tune.choose import objective_values, prediction_half_width
from kvplan.tune.problem import Constraints, Problem, Space
from kvplan.tune.recommend import Recommendation, recommend
from kvplan.tune.search import GuidedSearch, SearchState
from kvplan.tune.strategies import search_of
from kvplan.tune.trial import LoadLevel, LoadResult, TrialSpec
from kvplan.units import MIB
from tests.tiny_search import CARD, LENGTHS, RULES

if TYPE_CHECKING:
    from kvplan.tune.trial import Trial

# 2 x 4 layers x 2 KV heads x 64 x 2 bytes = 2048 bytes a token; a block of 128 is 256 KiB.
PROBLEM = Problem(
    model="tiny",
    device="cpu",
    card_bytes=CARD,
    target_concurrency=8,
    lengths=LENGTHS,
    space=Space(kv_cache_dtype=("auto", "fp8"), block_size=(128, 32)),
    prove_low_end=True,
)


@dataclasses.dataclass(slots=True)
class FakeServer(AssumedServer):
    """Memory as the test sets it; speed saturating at `knee` users, with what a knob multiplies it by."""

    knee: int = 8
    faster: dict[tuple[str, Any], float] = dataclasses.field(default_factory=dict)
    moods: list[FailureClass | None] = dataclasses.field(default_factory=list)
    """Failures of the next launches, whatever they ask."""

    def speed(self, spec: TrialSpec, level: LoadLevel, repeat: int) -> float:
        """Rising up to the knee, then flat."""
        given = spec.settings.given()
        factor = 1.0
        for (knob, value), times in self.faster.items():
            factor *= times if given.get(knob) == value else 1.0
        return factor * (100.0 * min(level.concurrency, self.knee) + repeat)

    def run_trial(self, spec: TrialSpec) -> Trial:
        """The trial that memory gives, or the next mood."""
        mood = self.moods.pop(0) if self.moods else None
        trial = super(FakeServer, self).run_trial(spec)
        if mood is None:
            return trial
        failed = dataclasses.replace(
            trial,
            status="failed" if mood in {FailureClass.TIMEOUT, FailureClass.UNKNOWN} else "infeasible",
            failure=mood,
            evidence="as told",
            loads=(),
            kv_cache_bytes=None,
        )
        self.trials[-1] = failed
        return failed


def server(problem: Problem = PROBLEM, **changes: Any) -> FakeServer:
    memory = {"non_kv_bytes": 600 * MIB, "unbudgeted_bytes": 500 * MIB}
    return FakeServer(problem, RULES, **(memory | changes))


def tune(
    fake: FakeServer, max_launches: int = 30, minutes: float = 1e9
) -> tuple[SearchState, Recommendation]:
    state = GuidedSearch(fake.problem, RULES, fake.run_trial, max_launches, lambda: minutes).run()
    return state, recommend(state, RULES)


def phases(state: SearchState) -> list[str]:
    return [trial.spec.phase for trial in state.trials]


def test_finds_the_boundary_in_two_launches_when_memory_is_as_the_probe_showed_it() -> None:
    # 2048 MiB card, 500 MiB outside the budget: full at (2048 - 500) / 2048 = 0.7559. The prediction's point
    # is 151 (0.755); tolerance 0.02 is 4 points: probes at 149 (0.745, survives) and 153 (0.765, killed).
    state, answer = tune(server())
    assert phases(state) == ["probe", "low_end", "knob", "knob", "boundary", "boundary", "confirm"]
    assert answer.boundary_survived is not None
    assert answer.boundary_failed is not None
    assert answer.boundary_survived.gpu_memory_utilization == 0.745
    assert answer.boundary_failed.gpu_memory_utilization == 0.765
    assert answer.boundary_failed.failure == "killed"
    # One step of 0.02 back from what survived.
    assert answer.settings is not None
    assert answer.settings["gpu_memory_utilization"] == 0.725
    assert answer.headroom_utilization == 0.02
    assert answer.headroom_bytes == round(0.02 * CARD)
    assert answer.met
    assert answer.is_confirmed
    assert state.stopped is None


def test_the_kv_cache_of_a_utilisation_is_the_share_of_the_card_less_what_vllm_counts_before_it() -> None:
    _, answer = tune(server())
    # ceil(2 GiB x 0.725) - 600 MiB
    assert answer.settings is not None
    assert answer.settings["kv_cache_memory_bytes"] == 1556925645 - 600 * MIB
    # Blocks of 256 KiB: floor((1556925645 - 629145600) / 262144) = 3539, of 128 tokens each.
    assert answer.kv_cache_tokens == 3539 * 128
    # 1024 tokens are 8 blocks; one block is the null block: floor(3538 / 8).
    assert answer.requests_at_longest == 442


def test_the_low_end_is_a_classified_refusal_between_no_kv_and_enough_for_one_request() -> None:
    _, answer = tune(server())
    assert answer.low_end is not None
    assert answer.low_end.failure == "kv_too_small"
    # One request of 1024 tokens needs 8 blocks and the null block: 9 x 256 KiB = 2.25 MiB after 600 MiB.
    assert answer.low_end_utilization is not None
    assert answer.low_end_utilization == pytest.approx((600 * MIB + 9 * 256 * 1024) / CARD)
    assert answer.low_end.gpu_memory_utilization is not None
    assert 600 * MIB / CARD < answer.low_end.gpu_memory_utilization < answer.low_end_utilization


@pytest.mark.parametrize(("outside_mib", "launches"), [(100, 3), (380, 3), (700, 6), (900, 8)])
def test_a_card_that_is_not_as_the_probe_showed_is_still_bracketed(outside_mib: int, launches: int) -> None:
    # Better: the first survivor's own peak moves the prediction, two more prove it. Worse: a kill tells
    # nothing of the size, so the steps double (900 MiB: 4, 8, 16, 32 points down), then 32 is halved to 4.

    class Worse(FakeServer):
        """The probe sees 500 MiB outside the budget; large KV caches bring more (or less)."""

        def run_trial(self, spec: TrialSpec) -> Trial:
            self.unbudgeted_bytes = 500 * MIB if spec.phase in {"probe", "knob"} else outside_mib * MIB
            return FakeServer.run_trial(self, spec)

    fake = Worse(PROBLEM, RULES, non_kv_bytes=600 * MIB, unbudgeted_bytes=0)
    state, answer = tune(fake)
    true_boundary = (CARD - outside_mib * MIB) / CARD
    assert answer.boundary_survived is not None
    assert answer.boundary_failed is not None
    low = answer.boundary_survived.gpu_memory_utilization
    high = answer.boundary_failed.gpu_memory_utilization
    assert low is not None
    assert high is not None
    assert low <= true_boundary < high
    assert high - low <= PROBLEM.tolerance + 1e-9
    assert answer.met
    assert phases(state).count("boundary") <= launches


def test_no_kill_up_to_the_whole_card_is_said_as_such() -> None:
    _, answer = tune(server(unbudgeted_bytes=0))
    assert answer.boundary_survived is not None
    assert answer.boundary_survived.gpu_memory_utilization == 1.0
    assert answer.boundary_failed is None
    assert answer.met


def test_a_faster_block_size_is_taken_and_one_within_a_percent_is_not() -> None:
    _, faster = tune(server(faster={("block_size", 32): 1.2}))
    _, same = tune(server(faster={("block_size", 32): 1.005}))
    assert faster.settings is not None
    assert same.settings is not None
    assert faster.settings["block_size"] == 32
    assert same.settings["block_size"] == 128
    effect = next(e for e in faster.effects if e.knob == "block_size")
    assert effect.verdict == "better"
    assert effect.output_throughput_change == pytest.approx(0.2)


def test_an_undecided_change_is_launched_again_beside_its_base_until_it_is_decided() -> None:
    # +4 %: worth taking, and less than two launches of the same settings may differ by (5 %). The second
    # launches say exactly the same, so the pairs leave no doubt.
    state, answer = tune(server(faster={("block_size", 32): 1.04}))
    assert phases(state) == [
        *("probe", "low_end", "knob", "knob", "duel", "duel", "boundary", "boundary", "confirm")
    ]
    again = [trial.spec for trial in state.trials if trial.spec.phase == "duel"]
    assert {spec.settings.block_size for spec in again} == {32, 128}
    assert [spec.attempt for spec in again] == [2, 2]
    assert answer.settings is not None
    assert answer.settings["block_size"] == 32
    assert "block_size=32 against the base: decided at 95 % after 2 launches of each" in answer.notes
    effect = next(e for e in answer.effects if e.knob == "block_size")
    assert effect.verdict == "better"


def test_a_duel_that_the_budget_does_not_allow_leaves_the_better_bet_and_says_so() -> None:
    state, answer = tune(server(faster={("block_size", 32): 1.04}), max_launches=7)
    assert "duel" not in phases(state)
    assert answer.settings is not None
    assert answer.settings["block_size"] == 32
    assert (
        "block_size=32 against the base: taken as the better bet, not decided at 95 % after 1 launch of each"
        in answer.notes
    )
    effect = next(e for e in answer.effects if e.knob == "block_size")
    assert (effect.verdict, effect.why.rpartition("; ")[2]) == ("undecided", "taken as the better bet")


def test_a_duel_that_the_second_launches_turn_leaves_the_base() -> None:
    class Moody(FakeServer):
        """Block size 32 is faster in its first launch only."""

        def run_trial(self, spec: TrialSpec) -> Trial:
            self.faster = {("block_size", 32): 1.04 if spec.attempt == 1 else 0.93}
            return FakeServer.run_trial(self, spec)

    fake = Moody(PROBLEM, RULES, non_kv_bytes=600 * MIB, unbudgeted_bytes=500 * MIB)
    _, answer = tune(fake)
    assert answer.settings is not None
    assert answer.settings["block_size"] == 128
    assert (
        "block_size=32 against the base: no gain worth a change is left after 2 launches of each"
        in answer.notes
    )


def test_a_confirmation_with_fewer_seats_that_fails_steps_back_again() -> None:
    # As in the test of fewer seats: the boundary runs with 32 seats, the confirmation at 0.31 with 16.

    class Unlucky(FakeServer):
        """The first confirmation is killed."""

        def run_trial(self, spec: TrialSpec) -> Trial:
            first = spec.phase == "confirm" and not any(t.spec.phase == "confirm" for t in self.trials)
            self.moods = [FailureClass.KILLED] if first else []
            return FakeServer.run_trial(self, spec)

    fake = Unlucky(PROBLEM, RULES, non_kv_bytes=600 * MIB, unbudgeted_bytes=1350 * MIB, knee=64)
    state, answer = tune(fake)
    assert phases(state)[-2:] == ["confirm", "confirm"]
    assert answer.boundary_failed is not None
    assert answer.boundary_failed.gpu_memory_utilization == 0.31
    assert answer.boundary_failed.failure == "killed"


def test_a_value_that_won_is_kept_while_the_next_knob_is_tried() -> None:
    space = dataclasses.replace(PROBLEM.space, other={"max_num_batched_tokens": (2048, 4096)})
    problem = dataclasses.replace(PROBLEM, space=space)
    fake = server(problem, faster={("block_size", 32): 1.2, ("max_num_batched_tokens", 4096): 1.3})
    _, answer = tune(fake)
    assert answer.settings is not None
    assert (answer.settings["block_size"], answer.settings["max_num_batched_tokens"]) == (32, 4096)
    block, batched = (e for e in answer.effects if e.knob in {"block_size", "max_num_batched_tokens"})
    assert batched.from_trial == block.to_trial
    assert batched.output_throughput_change == pytest.approx(0.3)


def test_a_quantised_kv_cache_is_measured_and_shown_and_never_recommended() -> None:
    _, answer = tune(server(faster={("kv_cache_dtype", "fp8"): 3.0}))
    assert answer.settings is not None
    assert answer.settings["kv_cache_dtype"] == "auto"
    effect = next(e for e in answer.effects if e.knob == "kv_cache_dtype")
    assert effect.verdict == "not recommended"
    assert effect.output_throughput_change == pytest.approx(2.0)
    # Half the bytes a token in the same KV bytes: twice the tokens.
    assert effect.kv_cache_tokens_from is not None
    assert effect.kv_cache_tokens_to == pytest.approx(2 * effect.kv_cache_tokens_from, abs=128)


def test_more_sequences_than_the_target_only_where_they_are_faster() -> None:
    # The probe's KV cache holds 2 x 8 requests of the longest length, so 32 users are preempted there; at the
    # recommended utilisation it holds hundreds, so 32 may be recommended all the same.
    _, flat = tune(server(knee=8))
    _, rising = tune(server(knee=64))
    assert flat.settings is not None
    assert rising.settings is not None
    assert flat.settings["max_num_seqs"] == 8
    assert rising.settings["max_num_seqs"] == 32
    assert [point.concurrency for point in rising.curve] == [4, 8, 16, 32]
    assert rising.first_preemption == 32


def test_no_more_seats_than_the_kv_cache_holds_requests_of_the_longest_length() -> None:
    # Full at (2048 - 1350) / 2048 = 0.3408: point 66 survives, 70 fails, the margin leads to 62 (0.31).
    # There the KV cache is 0.31 x 2048 - 600 = 34.9 MiB: 139 blocks, one of them null, 138 / 8 = 17 requests.
    # Of 8, 16 and 32 users the last are the fastest; 16 fit.
    _, answer = tune(server(knee=64, unbudgeted_bytes=1350 * MIB))
    assert answer.settings is not None
    assert answer.settings["max_num_seqs"] == 16
    assert answer.settings["gpu_memory_utilization"] == 0.31
    assert answer.requests_at_longest == 17


def test_a_constraint_that_nothing_meets_gives_the_nearest_and_a_no() -> None:
    # The fake knows no latencies: an unknown TTFT must not pass a limit on it.
    problem = dataclasses.replace(PROBLEM, constraints=Constraints(ttft_p99_ms=100))
    _, answer = tune(server(problem))
    assert not answer.met
    assert answer.reasons == ("p99 TTFT is unknown",)
    assert answer.settings is not None


def test_a_wider_margin_is_taken_when_it_is_asked_for() -> None:
    problem = dataclasses.replace(PROBLEM, constraints=Constraints(min_headroom_bytes=256 * MIB))
    _, answer = tune(server(problem))
    # 256 MiB of 2048 MiB is 0.125: 25 points of 0.005 below 0.745.
    assert answer.settings is not None
    assert answer.settings["gpu_memory_utilization"] == 0.62
    assert answer.headroom_bytes == 256 * MIB


def test_unexplained_failures_are_tried_again_and_three_in_a_row_end_the_run_with_what_was_learnt() -> None:
    state, answer = tune(server(moods=[None, FailureClass.TIMEOUT, FailureClass.UNKNOWN]))
    assert [t.status for t in state.trials[:4]] == ["ok", "failed", "failed", "infeasible"]
    assert state.trials[3].spec.attempt == 3
    assert answer.met

    state, answer = tune(server(moods=[None, *[FailureClass.TIMEOUT] * 3]))
    assert len(state.trials) == 4
    assert state.stopped == "3 unexplained failures in a row; the last: as told"
    assert not answer.met
    assert answer.trial == 1
    assert len(answer.failures) == 3


def test_a_probe_that_vllm_refuses_ends_the_run_with_its_reason() -> None:
    state, answer = tune(server(moods=[FailureClass.UNSUPPORTED]))
    assert len(state.trials) == 1
    assert not answer.met
    assert answer.settings is None
    assert answer.reasons == ("the probe did not start: unsupported: as told",)


def test_a_small_budget_keeps_launches_for_the_boundary_and_the_confirmation() -> None:
    state, answer = tune(server(), max_launches=4)
    assert phases(state) == ["probe", "boundary", "boundary", "confirm"]
    assert answer.met
    assert any("block_size=32 was not tried" in note for note in answer.notes)


def test_a_budget_that_ends_first_says_so() -> None:
    state, answer = tune(server(), max_launches=2)
    assert state.stopped == "the budget of 2 launches is used up"
    assert not answer.met
    _, late = tune(server(), minutes=0)
    assert late.reasons == ("the budget of minutes is used up",)


def test_a_recommendation_that_fails_from_cold_is_stepped_back_further() -> None:
    # Launches: probe, low end, two knobs, two of the boundary, then the confirmation dies once.
    state, answer = tune(server(moods=[None] * 6 + [FailureClass.KILLED]))
    assert phases(state)[-2:] == ["confirm", "confirm"]
    assert answer.settings is not None
    assert answer.settings["gpu_memory_utilization"] == 0.705
    assert answer.boundary_failed is not None
    assert answer.boundary_failed.gpu_memory_utilization == 0.725
    assert answer.met


def test_a_card_too_small_for_one_request_is_a_no() -> None:
    state, answer = tune(server(non_kv_bytes=CARD - MIB, unbudgeted_bytes=0))
    assert not answer.met
    assert state.stopped is not None


def test_the_same_answers_give_the_same_questions() -> None:
    first, _ = tune(server(knee=64))
    replay = iter(list(first.trials))
    second = GuidedSearch(PROBLEM, RULES, lambda spec: _same(next(replay), spec), 30, lambda: 1e9).run()
    assert second.trials == first.trials


def test_the_grid_tries_every_combination_that_can_start_and_confirms_the_best() -> None:
    space = Space(
        kv_cache_dtype=("auto", "fp8"),
        block_size=(128, 32),
        max_num_seqs=(8, 16),
        utilization=(0.2, 0.5, 0.7, 0.9),
    )
    problem = dataclasses.replace(PROBLEM, strategy="grid", space=space)
    fake = server(problem, faster={("block_size", 32): 1.2, ("kv_cache_dtype", "fp8"): 3.0})
    state = search_of(problem, RULES, fake.run_trial, 99).run()
    answer = recommend(state, RULES)
    # 2 x 2 x 2 settings at 4 utilisations; 0.2 x 2048 MiB is less than the 600 MiB before the KV cache.
    assert phases(state).count("grid") == 24
    assert "8 of 32 candidates were ruled out without a launch" in answer.notes[-1]
    assert phases(state)[-1] == "confirm"
    # Full at 0.7559: 0.9 is killed. fp8 is fastest and quantised; block 32 is next.
    assert answer.settings is not None
    assert answer.settings["block_size"] == 32
    assert answer.settings["kv_cache_dtype"] == "auto"
    assert answer.boundary_survived is not None
    assert answer.boundary_failed is not None
    assert answer.boundary_survived.gpu_memory_utilization == 0.7
    assert answer.boundary_failed.gpu_memory_utilization == 0.9
    assert answer.met


def test_the_noise_between_launches_is_the_prediction_interval_of_one_more() -> None:
    # Three values 90, 100, 110: s = 10, t(2) at 97.5 % = 4.3027 (a table), sqrt(1 + 1/3) = 1.1547.
    assert prediction_half_width([90, 100, 110]) == pytest.approx(4.3027 * 10 * 1.1547 / 100, rel=1e-4)
    assert prediction_half_width([100]) is None


def test_latency_is_judged_by_the_end_to_end_p99_and_capacity_by_tokens() -> None:
    def trial_with(e2e_ms: float, speed: float, tokens: int) -> Trial:
        fake = server()
        spec = TrialSpec("probe", PROBLEM.base_settings().with_flags(kv_cache_memory_bytes=10**8), (), "")
        level = LoadLevel("target", 8)
        load = LoadResult(level, 0, 8, 0, output_throughput=speed, p99_e2el_ms=e2e_ms)
        trial = fake.run_trial(spec)
        assert trial.launch is not None
        facts = dataclasses.replace(trial.launch.facts, kv_cache_tokens=tokens)
        return dataclasses.replace(
            trial, loads=(load, load), launch=dataclasses.replace(trial.launch, facts=facts)
        )

    quick, large = trial_with(500, 100, 1000), trial_with(1000, 200, 4000)

    def values(objective: Any, trial: Trial) -> list[float]:
        return objective_values(dataclasses.replace(PROBLEM, objective=objective), trial)

    assert values("latency", quick) == [2.0, 2.0]
    assert values("latency", large) == [1.0, 1.0]
    assert values("throughput", large) == [200, 200]
    assert values("capacity", large) == [4000.0, 4000.0]


def _same(trial: Trial, spec: TrialSpec) -> Trial:
    assert trial.spec == spec
    return trial
