"""Every form to paste starts the same server: as `kvplan check`, a shell, and hand-written files have it."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kvplan.report.html.forms import Deployment, compose, forms_of, helm_values, kubernetes, serve_lines

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
ON_GPU = Deployment(
    model="Qwen/Qwen2-7B-Instruct",
    flags={"gpu_memory_utilization": 0.93, "max_model_len": 8192, "max_num_seqs": 64, "block_size": 16},
    device="cuda",
    image="vllm/vllm-openai",
    tag="v0.32.0",
    card_bytes=80 * GIB,
    prefix_caching=True,
)
ON_CPU = Deployment(
    model="/models/demo",
    flags={"kv_cache_memory_bytes": 564126680, "max_model_len": 384, "enforce_eager": True},
    device="cpu",
    image="vllm/vllm-openai-cpu",
    tag="v0.32.0",
    card_bytes=2 * GIB,
    prefix_caching=True,
)
ODD = dataclasses.replace(
    ON_GPU, flags={**ON_GPU.flags, "chat_template": "$HOME $(x) 'q' \"d\" {{ a }}", "tensor_parallel_size": 2}
)


def listed(folder: Path, name: str, text: str) -> dict[str, Any]:
    """The one launch that `kvplan check --list` finds in a file of that text."""
    (folder / name).write_text(text)
    words = [sys.executable, "-m", "kvplan", "check", "--list", "--format", "json", str(folder / name)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder)
    (launch,) = json.loads(done.stdout)["launches"]
    return dict(launch)


@pytest.mark.parametrize("deployment", [ON_GPU, ON_CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("name", ["yaml", "compose", "kubernetes", "helm"])
def test_what_check_reads_is_what_was_recommended(deployment: Deployment, name: str, tmp_path: Path) -> None:
    form = next(form for form in forms_of(deployment) if form.name == name)
    assert form.file_name is not None
    launch = listed(tmp_path, form.file_name, form.text)
    said_by_the_chart = {"tensor_parallel_size": 1, "enable_prefix_caching": True} if name == "helm" else {}
    assert launch["model"] == deployment.model
    assert launch["flags"] == {**said_by_the_chart, **deployment.flags}


@pytest.mark.parametrize("deployment", [ON_GPU, ON_CPU, ODD], ids=["gpu", "cpu", "odd"])
def test_a_shell_reads_the_lines_as_the_words_they_are(deployment: Deployment) -> None:
    words = 'printf "%s\\0" "$@"'
    script = f"vllm() {{ {words}; }}\npython() {{ {words}; }}\n{serve_lines(deployment)}"
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, check=True)
    program = {"cuda": ["serve"], "cpu": ["-m", "vllm.entrypoints.openai.api_server", "--model"]}
    assert done.stdout.split("\0")[:-1] == [*program[deployment.device], deployment.model, *deployment.argv]


def test_compose_is_what_its_documentation_asks_for() -> None:
    service = yaml.safe_load(compose(ON_GPU))["services"]["vllm"]
    assert service == {
        "image": "vllm/vllm-openai:v0.32.0",
        "command": [
            "--model", "Qwen/Qwen2-7B-Instruct",
            "--gpu-memory-utilization", "0.93",
            "--max-model-len", "8192",
            "--max-num-seqs", "64",
            "--block-size", "16",
        ],
        "ports": ["8000:8000"],
        "ipc": "host",
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
        "volumes": ["~/.cache/huggingface:/root/.cache/huggingface"],
        "deploy": {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]}
            }
        },
    }  # fmt: skip


def test_a_cpu_card_is_a_memory_limit_and_a_folder_is_mounted() -> None:
    service = yaml.safe_load(compose(ON_CPU))["services"]["vllm"]
    assert service["mem_limit"] == "2147483648b"
    assert service["volumes"] == ["/models/demo:/models/demo:ro"]
    pod = yaml.safe_load(kubernetes(ON_CPU))["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"memory": "2147483648"}}
    assert {"name": "model", "hostPath": {"path": "/models/demo"}} in pod["volumes"]


def test_a_dollar_stays_a_dollar_where_it_begins_a_variable() -> None:
    # Compose substitutes $NAME and $$ is a dollar; Kubernetes substitutes $(NAME) and $$(NAME) is $(NAME).
    template = str(ODD.flags["chat_template"])
    assert template.replace("$", "$$") in yaml.safe_load(compose(ODD))["services"]["vllm"]["command"]
    pod = yaml.safe_load(kubernetes(ODD))["spec"]["template"]["spec"]
    assert template.replace("$(", "$$(") in pod["containers"][0]["args"]
    assert template in shlex.split(serve_lines(ODD).replace("\\\n", ""))


def test_two_cards_are_asked_for_where_the_model_is_split_over_two() -> None:
    pod = yaml.safe_load(kubernetes(ODD))["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert yaml.safe_load(helm_values(ODD))["servingEngineSpec"]["modelSpec"][0]["requestGPU"] == 2


def test_the_chart_is_told_of_prefix_caching_which_it_would_turn_off() -> None:
    # The production stack's deployment-vllm-multi.yaml renders --no-enable-prefix-caching without the key.
    (model,) = yaml.safe_load(helm_values(ON_GPU))["servingEngineSpec"]["modelSpec"]
    assert model["vllmConfig"] == {
        "maxModelLen": 8192,
        "tensorParallelSize": 1,
        "maxNumSeqs": 64,
        "gpuMemoryUtilization": 0.93,
        "enablePrefixCaching": True,
        "extraArgs": ["--block-size", "16"],
    }
    assert "enablePrefixCaching: false" in helm_values(dataclasses.replace(ON_GPU, prefix_caching=False))


def test_nothing_recommended_has_no_forms() -> None:
    assert forms_of(None) == ()
