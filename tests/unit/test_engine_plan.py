"""A launch, written down: argv, environment, what may be shown of them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.engine.accounting import cpu_kv_bytes, utilization_of
from kvplan.engine.plan import (
    LaunchPlan,
    argv,
    default_cpu_bind,
    environment,
    own_environment,
    printable_command,
    printable_setup,
)
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def make_plan(tmp_path: Path, **fields: Any) -> LaunchPlan:
    values: dict[str, Any] = {
        "model": "Qwen/Qwen2-7B-Instruct",
        "settings": ServingConfig(max_model_len=8192, enforce_eager=True),
        "device": "cpu",
        "work_dir": tmp_path,
        "program": ("python", "-m", "vllm.entrypoints.openai.api_server"),
    }
    return LaunchPlan(**(values | fields))


def test_the_command_is_vllms_server_on_the_loopback(tmp_path: Path) -> None:
    assert argv(make_plan(tmp_path), port=20_001) == [
        *("python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--host", "127.0.0.1", "--port", "20001"),
        *("--model", "Qwen/Qwen2-7B-Instruct", "--served-model-name", "kvplan-trial"),
        *("--max-model-len", "8192", "--enforce-eager"),
    ]


def test_address_and_name_in_a_users_file_are_not_those_of_a_trial(tmp_path: Path) -> None:
    flags = {"host": "10.0.0.1", "port": 80, "served_model_name": ["prod"], "ssl_keyfile": "k", "seed": 1}
    command = argv(make_plan(tmp_path, settings=ServingConfig(model="other", other_flags=flags)), port=1)
    assert command[-2:] == ["--seed", "1"]
    assert not {"10.0.0.1", "80", "prod", "--ssl-keyfile", "other"} & set(command)


def test_a_local_model_is_served_with_the_hub_off(tmp_path: Path) -> None:
    assert own_environment(make_plan(tmp_path, model=str(tmp_path)))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in own_environment(make_plan(tmp_path))


def test_the_key_is_in_no_command_line_and_in_nothing_printed(tmp_path: Path) -> None:
    plan = make_plan(
        tmp_path, env={"HF_TOKEN": "hf_secret"}, settings=ServingConfig(other_flags={"api_key": "k1"})
    )
    shown = printable_command(plan)
    assert own_environment(plan)["VLLM_API_KEY"] == plan.api_key
    assert plan.api_key not in shlex.join(argv(plan))
    assert plan.api_key not in repr(plan)
    assert not [secret for secret in (plan.api_key, "hf_secret", "k1") if secret in shown]
    assert "VLLM_API_KEY='***'" in shown
    assert "--api-key '***'" in shown


def test_every_launch_has_its_own_key(tmp_path: Path) -> None:
    assert make_plan(tmp_path).api_key != make_plan(tmp_path).api_key


def test_a_users_variables_win(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, env={"VLLM_CPU_OMP_THREADS_BIND": "3", "VLLM_NO_USAGE_STATS": "0"})
    environment = own_environment(plan)
    assert (environment["VLLM_CPU_OMP_THREADS_BIND"], environment["VLLM_NO_USAGE_STATS"]) == ("3", "0")


def test_variables_that_would_undo_the_plan_are_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB; wins over --kv-cache-memory-bytes
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")  # would hide what is read from the log
    monkeypatch.setenv("KEPT", "1")
    plan = make_plan(tmp_path, settings=ServingConfig(kv_cache_memory_bytes=GIB))
    variables = environment(plan)
    assert "VLLM_CPU_KVCACHE_SPACE" not in variables
    assert (variables["VLLM_LOGGING_LEVEL"], variables["KEPT"]) == ("INFO", "1")
    assert printable_command(plan).startswith("env -u VLLM_CPU_KVCACHE_SPACE VLLM_API_KEY=")
    assert printable_setup(plan).startswith("unset VLLM_CPU_KVCACHE_SPACE\nexport VLLM_API_KEY='***' ")
    assert environment(make_plan(tmp_path))["VLLM_CPU_KVCACHE_SPACE"] == "4"


def test_a_gpu_launch_sees_its_cards_only(tmp_path: Path) -> None:
    environment = own_environment(make_plan(tmp_path, device="cuda", gpu_uuids=("GPU-a", "GPU-b")))
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environment


@pytest.mark.parametrize(
    ("cpus", "bind"), [([0], None), ([0, 1], "0"), ([2, 3, 5], "2"), ([0, 1, 2, 3], "0,1"), (range(16), None)]
)
def test_small_machines_leave_cores_to_the_load_client(cpus: Sequence[int], bind: str | None) -> None:
    assert default_cpu_bind(cpus) == bind


def test_several_workers_are_vllms_to_place(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, settings=ServingConfig(tensor_parallel_size=2))
    assert "VLLM_CPU_OMP_THREADS_BIND" not in own_environment(plan)


def test_the_share_of_a_cpu_card_is_vllms_arithmetic() -> None:
    # ceil(4 GiB x 0.9) = 3865470567; less 1.3 GiB (1395864371)
    assert cpu_kv_bytes(4 * GIB, 0.9, 1_395_864_371) == 3_865_470_567 - 1_395_864_371
    assert cpu_kv_bytes(GIB, 0.9, 1_395_864_371) < 0  # not even the rest fits
    assert utilization_of(4 * GIB, 3 * GIB, GIB) == 1.0
