"""kvplan's whole command line, with faults: `tune_faulty.py tune ...`. Used by test_tune_faults.py.

vLLM is the scripted fake; cgroup, kernel, guard, load client, journal, NVML's Python interface and exit codes
are the real ones. FAKE_PLAN, a JSON object, says what is wrong in which trial:
{"2": {"mood": "answers_500"}}.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvplan.engine.server
import kvplan.tune.identity
import kvplan.tune.session
import kvplan.tune.setup
from kvplan.cli.main import main
from kvplan.load.phase import Limits
from kvplan.tune.execute import EngineExecutor

if TYPE_CHECKING:
    from kvplan.engine.plan import LaunchPlan
    from kvplan.tune.trial import Trial, TrialSpec

FAKE = Path(__file__).parent / "fake_tunable_vllm.py"
HUNG_S = 3.0
"""After so long without a token a request is given up; 300 s is what users have."""
PLAN: dict[str, dict[str, Any]] = json.loads(os.environ.get("FAKE_PLAN", "{}"))


class FaultyExecutor(EngineExecutor):
    """Starts the fake in the mood that the plan has for the trial."""

    def plan(self, number: int, spec: TrialSpec) -> LaunchPlan:
        """The launch, of the fake."""
        script = {"itl_ms": 1, "ttft_ms": 2, "worker": True, **PLAN.get(str(number), {})}
        return dataclasses.replace(
            super().plan(number, spec),
            program=(sys.executable, str(FAKE)),
            env={"FAKE_VLLM": json.dumps(script)},
            ready_timeout_s=float(script.get("ready_timeout_s", 30)),
        )

    def execute(self, number: int, spec: TrialSpec) -> Trial:
        """The trial; where the plan says so, somebody takes its port between the choice and vLLM's bind."""
        self.limits = Limits(stall_timeout_s=HUNG_S)
        if not PLAN.get(str(number), {}).get("port_taken"):
            return super().execute(number, spec)
        server: Any = kvplan.engine.server
        choose = server.choose_port
        with socket.socket() as thief:
            thief.bind(("127.0.0.1", 0))
            thief.listen()
            server.choose_port = lambda _: thief.getsockname()[1]
            try:
                return super().execute(number, spec)
            finally:
                server.choose_port = choose


if __name__ == "__main__":
    for module in (kvplan.tune.identity, kvplan.tune.setup, kvplan.tune.session):
        vars(module)["installed_vllm"] = lambda: "0.32.0"
    vars(kvplan.tune.session)["EngineExecutor"] = FaultyExecutor
    # A second of imports for each of twenty short runs.
    vars(kvplan.tune.session)["_import_what_loads_need"] = lambda: None
    main()
