"""A tuning run in a process of its own, with the fake in place of vLLM: `tune_with_fake.py MODEL RUNS [RUN]`.

Everything but vLLM is real: the memory cgroup, the kernel's kills, the guard, the load client, the journal.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import kvplan.tune.identity
import kvplan.tune.session
import kvplan.tune.setup
from kvplan.config.serving import ServingConfig
from kvplan.planning import PlanRequest
from kvplan.report.tune_progress import LineWatcher, Standing
from kvplan.tune.execute import EngineExecutor
from kvplan.tune.request import TuneRequest
from kvplan.tune.session import begin, go_on
from kvplan.tune.setup import prepare

if TYPE_CHECKING:
    from kvplan.engine.plan import LaunchPlan
    from kvplan.tune.trial import TrialSpec

FAKE = Path(__file__).parent / "fake_tunable_vllm.py"
CARD_GIB = 0.25


class FakeExecutor(EngineExecutor):
    """Starts the fake."""

    def plan(self, number: int, spec: TrialSpec) -> LaunchPlan:
        """The launch, of the fake, in the mood of FAKE_VLLM (a list is one mood a trial)."""
        moods = json.loads(os.environ.get("FAKE_MOODS", "[]"))
        mood = moods[number - 1] if number <= len(moods) else "fine"
        return dataclasses.replace(
            super().plan(number, spec),
            program=(sys.executable, str(FAKE)),
            env={"FAKE_VLLM": json.dumps({"mood": mood, "itl_ms": 1, "ttft_ms": 2})},
            ready_timeout_s=float(os.environ.get("FAKE_READY_TIMEOUT_S", "20")),
        )


def request(model: str) -> TuneRequest:
    """A small problem: a card of 256 MiB, 4 users, no other knobs."""
    return TuneRequest(
        PlanRequest(
            model=model,
            device="cpu",
            gpu_memory_gib=CARD_GIB,
            target_concurrency=4,
            input_len=32,
            output_len=4,
            serving=ServingConfig(enforce_eager=True),
            local_calibration=False,
        ),
        kv_cache_dtypes=("auto",),
        block_sizes=(128,),
        max_num_seqs=(4, 8),
        tolerance=0.1,
    )


def main() -> None:
    """Tune; print the run's folder."""
    model, runs_dir = sys.argv[1], Path(sys.argv[2])
    for module in (kvplan.tune.identity, kvplan.tune.setup, kvplan.tune.session):
        vars(module)["installed_vllm"] = lambda: "0.32.0"
    vars(kvplan.tune.session)["EngineExecutor"] = FakeExecutor
    watch = lambda _folder, _prepared: LineWatcher(Standing(6, 5.0))  # noqa: E731
    say = lambda text: print(text, file=sys.stderr)  # noqa: E731
    if len(sys.argv) > 3:
        print(go_on(runs_dir / sys.argv[3], TuneRequest(PlanRequest()), watch, say))
    else:
        print(begin(prepare(request(model)), runs_dir, watch))


if __name__ == "__main__":
    main()
