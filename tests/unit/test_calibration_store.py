"""The user's own launches: taken out of logs, kept, and what they do to the next estimate."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kvplan.calibration.log_import import launch_from_log, settings_from_log
from kvplan.calibration.store import remember, remembered, store_path
from kvplan.cli.profiles_calibrate import app
from kvplan.config.project_file import ProjectFile
from kvplan.config.serving import ServingConfig
from kvplan.errors import FailureClass, InputError
from kvplan.launch import Launch, StartupFacts
from kvplan.planning import PlanRequest, plan_for
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.memory.estimate import Estimate

ON_H100 = """\
(APIServer pid=1) INFO 04-10 10:00:00 [utils.py:233] non-default args: {'model_tag': 'meta-llama/Llama-3.1-8B-Instruct', 'port': 8001, 'model': 'meta-llama/Llama-3.1-8B-Instruct', 'max_model_len': 8192, 'gpu_memory_utilization': 0.95}
(EngineCore_DP0 pid=2) INFO 04-10 10:00:09 [core.py:103] Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=None, dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda
(EngineCore_DP0 pid=2) INFO 04-10 10:00:39 [gpu_model_runner.py:4700] Model loading took 14.99 GiB memory and 3.212000 seconds
(EngineCore_DP0 pid=2) INFO 04-10 10:01:09 [gpu_worker.py:423] Available KV cache memory: 57.51 GiB
(EngineCore_DP0 pid=2) INFO 04-10 10:01:09 [kv_cache_utils.py:1319] GPU KV cache size: 471,120 tokens
(APIServer pid=1) INFO:     Application startup complete.
"""  # noqa: E501  vLLM's lines are as long as they are
BEFORE_0_9 = (
    "INFO 03-01 10:00:00 api_server.py:840] args: Namespace(host=None, model='Qwen/Qwen2.5-7B-Instruct', "
    "max_model_len=8192, enforce_eager=True, gpu_memory_utilization=0.85, quantization=None)"
)
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.log"
    path.write_text(ON_H100)
    return path


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ask(
    utilization: float = 0.95, *, local: bool = True, version: str = "0.19.0", **flags: object
) -> Estimate:
    serving = ServingConfig(gpu_memory_utilization=utilization, max_model_len=8192).with_flags(**flags)
    request = PlanRequest(
        model=LLAMA, gpu="H100", vllm_version=version, serving=serving, local_calibration=local
    )
    return plan_for(request).estimate()


def measured(gib: float, **fields: object) -> Launch:
    launch = Launch(
        outcome="started",
        settings={"gpu_memory_utilization": 0.95, "max_model_len": 8192},
        device="cuda",
        model=LLAMA,
        gpu="h100-sxm",
        facts=StartupFacts(vllm_version="0.19.0", available_kv_bytes=round(gib * GIB)),
    )
    return dataclasses.replace(launch, **fields)  # type: ignore[arg-type]


def test_a_log_gives_the_launch_that_it_tells_of(log: Path) -> None:
    launch = launch_from_log(log, gpu="H100")
    assert launch.model == LLAMA
    assert launch.settings == {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "enforce_eager": False,
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.95,
    }
    assert launch.facts.vllm_version == "0.19.0"
    assert launch.facts.available_kv_bytes == round(57.51 * GIB)
    assert (launch.outcome, launch.device, launch.gpu) == ("started", "cuda", "H100")


def test_the_namespace_of_older_servers_is_read() -> None:
    given = settings_from_log([BEFORE_0_9])
    assert given["model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert (given["max_model_len"], given["enforce_eager"], given["gpu_memory_utilization"]) == (
        8192,
        True,
        0.85,
    )
    assert "quantization" not in given


def test_arguments_that_are_no_literals_leave_the_plain_ones() -> None:
    line = "non-default args: {'model': 'a/b', 'compilation_config': <Config object>, 'max_num_seqs': 16}"
    given = settings_from_log([line])
    assert (given["model"], given["max_num_seqs"]) == ("a/b", 16)


def test_a_start_that_failed_keeps_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "failed.log"
    path.write_text(
        ON_H100.split("(EngineCore_DP0 pid=2) INFO 04-10 10:01:09", maxsplit=1)[0]
        + "(EngineCore_DP0 pid=2) ERROR 04-10 10:01:09 [core.py:700] ValueError: No available memory for the "
        "cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
    )
    launch = launch_from_log(path, gpu="H100")
    assert (launch.outcome, launch.failure) == ("failed", FailureClass.NO_KV_MEMORY)


@pytest.mark.parametrize(
    ("text", "gpu", "message"),
    [
        ("hello\n", "H100", "no line of a vLLM start"),
        (ON_H100, None, "give --gpu"),
        ("Model loading took 14.99 GiB memory and 3.2 seconds\n", "H100", "give --model"),
    ],
)
def test_what_a_log_does_not_say_is_asked_for(
    tmp_path: Path, text: str, gpu: str | None, message: str
) -> None:
    path = tmp_path / "x.log"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        launch_from_log(path, gpu=gpu)


def test_the_store_gives_back_what_was_remembered(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "launches.jsonl"
    launches = (measured(57.5), measured(57.4, outcome="failed", failure=FailureClass.OOM_SAMPLER))
    for launch in launches:
        remember(launch, path)
    assert remembered(path) == (launches, 0)


def test_a_torn_line_swallows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "launches.jsonl"
    remember(measured(57.5), path)
    with path.open("ab") as file:
        file.write(b'{"outcome": "star')
    remember(measured(57.4), path)
    assert remembered(path) == ((measured(57.5), measured(57.4)), 1)


def test_no_store_is_an_empty_store(tmp_path: Path) -> None:
    assert remembered(tmp_path / "none.jsonl") == ((), 0)


def test_the_store_is_the_projects_or_the_users(tmp_path: Path) -> None:
    own = ProjectFile(path=tmp_path / ".kvplan.yaml", launches=tmp_path / "team.jsonl")
    assert store_path(own) == tmp_path / "team.jsonl"
    assert store_path(None) == tmp_path / "xdg-data" / "kvplan" / "launches.jsonl"


def test_an_estimate_for_the_same_settings_repeats_the_measurement() -> None:
    remember(measured(57.51, gpu_total_bytes=ask().gpu.total_bytes), store_path())
    answer = ask()
    assert answer.budget.available_kv_bytes.mid == round(57.51 * GIB)
    assert answer.budget.line("other").bytes.high - answer.budget.line("other").bytes.low == 2 * 64 * MIB


def test_an_estimate_for_other_sizes_is_shifted_and_stays_wide() -> None:
    before = ask(0.5, local=False, max_num_seqs=128)
    remember(measured(57.51, gpu_total_bytes=before.gpu.total_bytes), store_path())
    shift = ask(local=False).budget.available_kv_bytes.mid - round(57.51 * GIB)
    after = ask(0.5, max_num_seqs=128)
    assert after.budget.available_kv_bytes.mid == before.budget.available_kv_bytes.mid - shift
    other = after.budget.line("other").bytes
    assert other.high - other.low > 2 * 64 * MIB


def test_the_median_of_several_launches_counts() -> None:
    total = ask().gpu.total_bytes
    for gib in (57.5, 57.3, 50.0):
        remember(measured(gib, gpu_total_bytes=total), store_path())
    assert ask().budget.available_kv_bytes.mid == round(57.3 * GIB)


@pytest.mark.parametrize(
    "launch",
    [
        measured(57.5, model="meta-llama/Llama-3.1-70B-Instruct"),
        measured(57.5, gpu="l40s"),
        measured(57.5, device="cpu"),
        measured(57.5, facts=StartupFacts(vllm_version="0.20.0", available_kv_bytes=57 * GIB)),
        measured(57.5, facts=StartupFacts(vllm_version="0.19.0")),
        measured(57.5, settings={"kv_cache_memory_bytes": 57 * GIB}),
    ],
    ids=["model", "card", "device", "version", "nothing measured", "given, not measured"],
)
def test_launches_of_something_else_change_nothing(launch: Launch) -> None:
    before = ask(local=False)
    remember(launch, store_path())
    assert ask().budget == before.budget


def test_what_was_used_is_said_and_can_be_turned_off() -> None:
    remember(measured(57.51), store_path())
    request = PlanRequest(model=LLAMA, gpu="H100", vllm_version="0.19.0")
    (assumed,) = plan_for(request).assumptions
    assert "from 1 launch measured here" in assumed
    assert str(store_path()) in assumed
    assert plan_for(dataclasses.replace(request, local_calibration=False)).assumptions == ()


def test_a_log_taken_in_corrects_the_next_estimate(log: Path) -> None:
    run = CliRunner().invoke(app, ["calibrate", "--log", str(log), "--gpu", "H100"])
    assert run.exit_code == 0, run.output
    assert "available for the KV cache  57.51 GiB" in run.output
    assert f"kept in {store_path()}" in run.output
    (launch,), damaged = remembered(store_path())
    assert (launch.model, damaged) == (LLAMA, 0)
    # The log does not name the card's size; its profile's is planned with: the shift is exact all the same.
    assert ask().budget.available_kv_bytes.mid == round(57.51 * GIB)


def test_calibrate_prints_the_score_of_a_file(tmp_path: Path) -> None:
    record = {
        "id": "llama",
        "model": LLAMA,
        "gpu": "H100",
        "vllm": "0.19.0",
        "flags_complete": True,
        "outcome": "started",
        "kv_cache_gib": 58.11,
        "gpu_memory_utilization": 0.95,
        "max_model_len": 8192,
    }
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps(record) + "\n")
    run = CliRunner().invoke(app, ["calibrate", "--launches", str(path), "--format", "json"])
    assert run.exit_code == 0, run.output
    answer = json.loads(run.output)
    assert answer["score"]["launches"] == 1
    assert abs(answer["launches"][0]["error_percent"]) < 0.2
