"""What a recommendation must keep before it "meets the target", and values that nothing computes with."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.errors import FailureClass, InputError
from kvplan.planning import PlanRequest
from kvplan.tune.assumed import AssumedServer
from kvplan.tune.knobs import read_knobs
from kvplan.tune.probe_point import ProbePoint
from kvplan.tune.problem import Constraints, Lengths, Problem, Space
from kvplan.tune.recommend import Recommendation, recommend
from kvplan.tune.request import TuneRequest
from kvplan.tune.strategies import search_of
from kvplan.units import GIB, MIB
from tests.tiny_search import CARD, RULES

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.tune.problem import Strategy
    from kvplan.tune.trial import LoadLevel, Trial, TrialSpec


@dataclasses.dataclass(slots=True)
class Server(AssumedServer):
    """Full at (2048 - 500) / 2048 = 0.7559; equally fast whatever it is given, but for `fast_at`."""

    refuses_dtype: str | None = None
    fails_at: float | None = None
    fast_at: float | None = None

    def speed(self, spec: TrialSpec, level: LoadLevel, repeat: int) -> float:
        """Equal, but where the test says twice as fast."""
        factor = 2.0 if self.fast_at == spec.settings.gpu_memory_utilization else 1.0
        return factor * (100.0 * min(level.concurrency, 8) + repeat)

    def run_trial(self, spec: TrialSpec) -> Trial:
        """As the arithmetic expects, but for the failures that the test sets."""
        trial = AssumedServer.run_trial(self, spec)
        asked = spec.settings
        if asked.kv_cache_dtype == self.refuses_dtype or (
            self.fails_at is not None and asked.gpu_memory_utilization == self.fails_at
        ):
            return dataclasses.replace(trial, status="infeasible", failure=FailureClass.OOM_SERVING, loads=())
        return trial


def tuned(
    space: Space,
    launches: int = 40,
    constraints: Constraints | None = None,
    strategy: Strategy = "guided",
    margin: float = 0.02,
    quality_gate: bool = True,
    **server: Any,
) -> Recommendation:
    problem = Problem(
        "tiny",
        "cpu",
        CARD,
        8,
        Lengths(256, 128, 896, 128),
        space,
        constraints or Constraints(),
        strategy=strategy,
        margin=margin,
        quality_gate=quality_gate,
    )
    engine = Server(problem, RULES, 600 * MIB, 500 * MIB, **server)
    return recommend(search_of(problem, RULES, engine.run_trial, launches).run(), RULES)


@pytest.mark.parametrize(
    ("launches", "refused"),
    [(14, "auto"), (4, None)],
    ids=["the unquantised launch fails", "the budget skips it"],
)
def test_a_quantised_base_whose_answers_nothing_showed_is_not_met(launches: int, refused: str | None) -> None:
    answer = tuned(Space(("fp8", "auto"), (128,)), launches, refuses_dtype=refused)
    assert not answer.met
    assert answer.reasons == (
        "the answers of fp8 were not shown to be as good: its answers were not looked at",
    )


def test_a_quantised_base_falls_back_to_the_unquantised_launch_that_survived() -> None:
    answer = tuned(Space(("fp8", "auto"), (128,)))
    assert answer.met
    assert answer.settings is not None
    assert answer.settings["kv_cache_dtype"] == "auto"


def test_what_the_user_decided_stands() -> None:
    assert tuned(Space(("fp8",), (128,))).met
    assert tuned(Space(("fp8", "auto"), (128,)), quality_gate=False, refuses_dtype="auto").met


def test_a_distance_that_the_card_does_not_have_is_a_reason() -> None:
    # One request needs 600 MiB + 9 blocks of 256 KiB: 0.2940, so 0.295 is the lowest point; 0.745 survives.
    # 0.45 of 2 GiB between them is 0.90 GiB.
    least = Constraints(min_headroom_bytes=round(1.9 * GIB))
    answer = tuned(Space(("auto",), (128,)), constraints=least)
    assert not answer.met
    assert answer.reasons == ("0.90 GiB below what survived, not the 1.90 GiB of --min-headroom-gib",)
    assert tuned(
        Space(("auto",), (128,)), constraints=Constraints(min_headroom_bytes=round(0.9 * GIB) - MIB)
    ).met


def test_a_grid_takes_a_point_that_keeps_the_distance_though_another_is_faster() -> None:
    space = Space(("auto",), (128,), (8,), utilization=(0.4, 0.5, 0.7))
    least = Constraints(min_headroom_bytes=GIB // 2)
    # 0.5 is twice as fast, and 0.2 of 2 GiB (0.4 GiB) below the highest survivor; 0.4 is 0.6 GiB below.
    kept = tuned(space, constraints=least, strategy="grid", fast_at=0.5)
    free = tuned(space, strategy="grid", fast_at=0.5)
    assert kept.settings is not None
    assert free.settings is not None
    assert (kept.met, kept.settings["gpu_memory_utilization"]) == (True, 0.4)
    assert (free.met, free.settings["gpu_memory_utilization"]) == (True, 0.5)


def test_a_grid_without_a_point_at_the_distance_says_what_it_lacks() -> None:
    space = Space(("auto",), (128,), (8,), utilization=(0.5, 0.7))
    least = Constraints(min_headroom_bytes=GIB // 2)
    answer = tuned(space, constraints=least, strategy="grid", fast_at=0.5)
    assert answer.reasons == ("0.40 GiB below what survived, not the 0.50 GiB of --min-headroom-gib",)
    # At 0.7 the peak leaves 0.0559 of the card free.
    answer = tuned(
        Space(("auto",), (128,), (8,), utilization=(0.7,)), strategy="grid", margin=0.1, fast_at=0.7
    )
    assert answer.reasons == ("0.0559 of the card below what survived, not the 0.1 of --margin",)
    assert tuned(Space(("auto",), (128,), (8,), utilization=(0.7,)), strategy="grid", margin=0.05).met


def test_a_grid_recommends_nothing_above_a_failure_of_the_same_settings_where_it_can() -> None:
    space = Space(("auto",), (128,), (8,), utilization=(0.4, 0.5, 0.7))
    answer = tuned(space, strategy="grid", margin=0.0, fails_at=0.5, fast_at=0.7)
    assert answer.settings is not None
    assert (answer.met, answer.settings["gpu_memory_utilization"]) == (True, 0.4)
    alone = dataclasses.replace(space, utilization=(0.5, 0.7))
    answer = tuned(alone, strategy="grid", margin=0.0, fails_at=0.5, fast_at=0.7)
    assert answer.reasons == ("the same settings ran out of memory at utilisation 0.5, not above 0.7",)


def probed(lowest: float, highest: float, start: float = 0.9, limit: float = 1.0) -> list[float]:
    """The utilisations that are asked where only those between the two start."""
    point: ProbePoint | None = ProbePoint(start, limit)
    asked = []
    while point is not None:
        asked.append(point.utilization)
        if lowest <= point.utilization <= highest:
            break
        point = point.failed(is_too_high=point.utilization > highest).following()
    return asked


def test_a_probe_is_bracketed_and_asks_nothing_twice() -> None:
    assert probed(0.66, 0.69) == [0.9, 0.75, 0.6, 0.675]
    # Nothing starts: half-way between the ends until they are 0.01 apart.
    nothing = probed(0.67, 0.66)
    assert nothing[:4] == [0.9, 0.75, 0.6, 0.675]
    assert len(set(nothing)) == len(nothing) < 9
    assert probed(0.95, 1.0, 0.6) == [0.6, 0.7, 0.8, 0.9, 0.97]
    assert probed(0.95, 1.0, 0.6, limit=0.75) == [0.6, 0.7, 0.75]  # never above what the user allows
    assert probed(0.0, 0.01) == [0.9, 0.75, 0.6, 0.45, 0.3, 0.15]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"block_sizes": (0,)}, "--block-size 0 is not a whole number from 1 up"),
        ({"max_num_seqs": (-3,)}, "--max-num-seqs -3 is not"),
        ({"max_num_seqs": (0,)}, "--max-num-seqs 0 is not"),
        ({"utilizations": (float("nan"),)}, "--gpu-memory-utilization nan is not above 0 and at most 1"),
        ({"utilizations": (1.5,)}, "--gpu-memory-utilization 1.5 is not"),
        ({"kv_cache_dtypes": ("auto", "auto")}, "--kv-cache-dtype has the same value twice"),
        (
            # As a knob beside the flag it would go past the quality gate.
            {"kv_cache_dtypes": ("auto",), "knobs": {"kv_cache_dtype": ("auto", "fp8")}},
            "kv_cache_dtype is given twice",
        ),
        ({"knobs": {"max_num_batched_tokens": (0, 4096)}}, "--max-num-batched-tokens 0 is not"),
    ],
)
def test_a_value_that_nothing_can_be_computed_with_is_refused_in_one_line(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        TuneRequest(PlanRequest(), **given)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "block_size: [0, 128]",
        "max_num_seqs: [8, x]",
        "max_num_seqs: [-1, 8]",
        "block_size: [true, 32]",
        "gpu_memory_utilization: [.nan, 0.5]",
        "kv_cache_dtype: [8, 16]",
    ],
)
def test_a_file_of_knobs_is_held_to_the_same(tmp_path: Path, line: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(line)
    with pytest.raises(InputError, match=" is not "):
        read_knobs((), str(path))
