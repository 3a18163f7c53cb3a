"""The questions are put to a server of a trial after its loads, and what comes of them is in the trial."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.load.workload import Workload
from kvplan.quality.judge import judge
from kvplan.tune.execute import EngineExecutor
from kvplan.tune.problem import Lengths, Problem, Space
from kvplan.tune.trial import LoadLevel, TrialSpec
from kvplan.units import MIB

if TYPE_CHECKING:
    from kvplan.engine.plan import LaunchPlan
    from kvplan.tune.trial import Trial

FAKE = Path(__file__).parents[1] / "fake_answering_vllm.py"
PROBLEM = Problem(
    model="tiny",
    device="cpu",
    card_bytes=256 * MIB,
    target_concurrency=2,
    lengths=Lengths(mean_input=400, mean_output=4, longest_input=400, longest_output=4),
    space=Space(kv_cache_dtype=("auto", "fp8"), block_size=(128,)),
)


@dataclasses.dataclass(slots=True)
class FakeExecutor(EngineExecutor):
    """Starts the fake that answers questions."""

    script: dict[str, Any] = dataclasses.field(default_factory=dict)

    def plan(self, number: int, spec: TrialSpec) -> LaunchPlan:
        """The launch, of the fake."""
        script = {"itl_ms": 1, "ttft_ms": 1, **self.script}
        return dataclasses.replace(
            super(FakeExecutor, self).plan(number, spec),
            program=(sys.executable, str(FAKE)),
            env={"FAKE_VLLM": json.dumps(script)},
            ready_timeout_s=20,
        )


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KVPLAN_LOCK_DIR", str(tmp_path))

    def make(number: int, phase: Any, dtype: str, problem: Problem = PROBLEM, **script: Any) -> Trial:
        workload = Workload.fixed(400, 4)
        executor = FakeExecutor(problem, workload, tmp_path, None, script=script)
        flags = {"kv_cache_dtype": dtype, "kv_cache_memory_bytes": 4 * MIB}
        settings = problem.base_settings().with_flags(**flags)
        return executor.execute(number, TrialSpec(phase, settings, (LoadLevel("target", 2),), "a test"))

    return make


def test_the_reference_is_asked_twice_and_the_quantised_variant_once(made: Any) -> None:
    probe = made(1, "probe", "auto", moved=0.01)
    fp8 = made(2, "knob", "fp8", moved=0.01)
    assert probe.survived
    assert fp8.survived
    base, other = probe.quality, fp8.quality
    assert base.error is other.error is None
    assert base.first == base.repeat  # this server has no noise
    assert other.repeat is None
    # Twelve passages of 160 byte tokens; five questions to each of four haystacks.
    assert [len(text.logprobs) for text in base.first.texts] == [159] * 12
    assert len(base.first.needles) == 20
    assert base.prompts == other.prompts
    assert base.context_tokens <= PROBLEM.max_model_len == 512
    verdict = judge(base, other)
    assert verdict.outcome == "passes"
    measure = verdict.measures[0]
    assert measure.repeat == 0.0
    assert measure.value == pytest.approx(0.01)


def test_other_trials_and_runs_without_the_gate_are_not_asked(made: Any) -> None:
    without = dataclasses.replace(PROBLEM, quality_gate=False)
    assert made(1, "boundary", "auto").quality is None
    assert made(2, "knob", "fp8", without).quality is None


def test_a_server_that_dies_of_the_questions_keeps_what_its_load_showed(made: Any) -> None:
    trial = made(1, "probe", "auto", dies_of_questions=True)
    assert trial.survived
    assert trial.launch.outcome == "started"
    assert len(trial.loads) == 1
    # Its connection ends a moment before its process does: on a busy machine only the first is seen in time.
    assert re.match("vLLM died of the questions|/v1/completions: Server disconnected", trial.quality.error)
    assert judge(trial.quality, trial.quality).outcome == "undecided"
