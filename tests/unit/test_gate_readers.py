"""How each format hides a launch: small files written for this test, with what vLLM would get."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.gate.candidates import _TOKENS, is_telling
from kvplan.gate.find import read_paths
from kvplan.gate.read import read_text
from kvplan.gate.repo_files import DiskFiles, inside
from kvplan.gate.scope import against
from kvplan.gate.terms import HowToRead

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.gate.found import LaunchFound


def read(tmp_path: Path, name: str, text: str, **others: str) -> list[LaunchFound]:
    """The launches of a text under a name, beside other files of the repository."""
    for path, content in {**others, name: text}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return read_text(name, text, DiskFiles(tmp_path)).launches


def flags(launch: LaunchFound) -> dict[str, Any]:
    return dict(launch.flags)


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    (launch,) = read(
        tmp_path,
        "serve.sh",
        "vllm serve a/b --config conf.yaml --max-model-len 1k\n",
        **{"conf.yaml": "max-model-len: 8192\nmax-num-seqs: 7\nmodel: other/model\n"},
    )
    assert launch.model == "a/b"
    assert flags(launch) == {"max_model_len": 1000, "max_num_seqs": 7}


def test_a_config_file_given_with_an_equals_sign_is_ignored_as_vllm_ignores_it(tmp_path: Path) -> None:
    (launch,) = read(
        tmp_path, "serve.sh", "vllm serve a/b --config=conf.yaml\n", **{"conf.yaml": "max-num-seqs: 7\n"}
    )
    assert flags(launch) == {}
    assert launch.ignored == ("config",)


def test_a_config_that_the_script_writes_itself_is_read(tmp_path: Path) -> None:
    text = (
        "LEN=4096\ncat > c.yaml <<EOF\nmax-model-len: $LEN\ngpu-memory-utilization: 0.8\nEOF\n"
        "vllm serve a/b --config c.yaml\n"
    )
    launches = read(tmp_path, "serve.sh", text)
    assert {"max_model_len": 4096, "gpu_memory_utilization": 0.8} in [flags(launch) for launch in launches]


def test_a_function_is_read_with_the_arguments_of_each_call(tmp_path: Path) -> None:
    text = 'start() {\n  vllm serve "$1" --tensor-parallel-size $2\n}\nstart a/b 2\nstart c/d 4\n'
    launches = read(tmp_path, "run.sh", text)
    assert [(launch.line, launch.model, flags(launch)) for launch in launches] == [
        (2, "a/b", {"tensor_parallel_size": 2}),
        (2, "c/d", {"tensor_parallel_size": 4}),
    ]


def test_servers_that_differ_in_their_port_only_are_one_launch(tmp_path: Path) -> None:
    text = "start() { vllm serve a/b --port $1; }\nstart 8000\nstart 8001\n"
    assert len(read(tmp_path, "run.sh", text)) == 1


def test_what_a_branch_decides_is_unknown(tmp_path: Path) -> None:
    text = 'TP=1\nif [ "$BIG" = 1 ]; then TP=8; fi\nvllm serve a/b -tp $TP\n'
    (launch,) = read(tmp_path, "run.sh", text)
    assert flags(launch) == {}
    assert launch.unresolved == ("TP",)


def test_the_older_way_to_write_a_default_is_a_default(tmp_path: Path) -> None:
    text = 'if [ -z "$MODEL" ]; then\n  MODEL=a/b\nfi\nvllm serve $MODEL\n'
    (launch,) = read(tmp_path, "run.sh", text)
    assert (launch.model, launch.defaulted) == ("a/b", ("MODEL",))


def test_an_option_loop_leaves_the_written_values_as_defaults(tmp_path: Path) -> None:
    text = (
        "LEN=4096\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    --len) LEN=$2; shift 2 ;;\n"
        "    *) shift ;;\n  esac\n"
        "done\nvllm serve a/b --max-model-len $LEN\n"
    )
    (launch,) = read(tmp_path, "run.sh", text)
    assert (flags(launch), launch.defaulted) == ({"max_model_len": 4096}, ("LEN",))


@pytest.mark.parametrize(
    "line",
    [
        "echo vllm serve a/b",
        'log "starting vllm serve a/b"',
        "pkill -f 'vllm serve'",
        "vllm bench serve --model a/b",
        "vllm --version",
        "vllm serve --help",
        "pip install vllm",
        "# vllm serve a/b",
        "sudo echo vllm serve a/b",
        "python -m fastchat.serve.vllm_worker --model-path a/b",
        "docker pull vllm/vllm-openai:latest",
        "docker run nvidia/cuda:12 nvidia-smi --model a/b",
        "python -m sglang.launch_server --model a/b",
    ],
)
def test_text_that_only_names_vllm_is_no_launch(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, "run.sh", f"{line}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "exec vllm serve a/b --seed 1",
        "CUDA_VISIBLE_DEVICES=0 nohup vllm serve a/b --seed 1 > log 2>&1 &",
        "env -u X Y=1 /opt/venv/bin/vllm serve a/b --seed 1",
        "uv run --with vllm==0.20.1 vllm serve a/b --seed 1",
        "srun -N1 --gres=gpu:1 python3 -u -m vllm.entrypoints.openai.api_server --model a/b --seed 1",
        "numactl --cpunodebind=0 vllm serve a/b --seed=1",
        "timeout 1h vllm serve a/b --seed 1 | tee log",
        "tmux new-session -d -s llm 'vllm serve a/b --seed 1'",
        'ssh host "vllm serve a/b --seed 1"',
        "bash -lc 'vllm serve a/b --seed 1'",
        "docker exec -it box vllm serve a/b --seed 1",
        "PID=$(vllm serve a/b --seed 1 & echo $!)",
        "docker run -itd --gpus 2 -p8000:8000 -eX=1 vllm/vllm-openai --model a/b --seed 1",
        "podman run --rm --entrypoint python3 img -m vllm.entrypoints.openai.api_server --model a/b --seed 1",
        "$SUDO vllm serve a/b --seed 1",
        "vllm serve --model a/b --seed 1",
        "if ! vllm serve a/b --seed 1; then exit 1; fi",
    ],
)
def test_a_launch_is_found_behind_what_people_put_in_front_of_it(tmp_path: Path, line: str) -> None:
    (launch,) = read(tmp_path, "run.sh", f"{line}\n")
    assert (launch.model, flags(launch)) == ("a/b", {"seed": 1})


def test_slurm_directives_give_the_gpu(tmp_path: Path) -> None:
    (launch,) = read(
        tmp_path, "job.slurm", "#!/bin/bash\n#SBATCH --gres=gpu:h100:8\nsrun vllm serve a/b -tp 8\n"
    )
    assert (launch.gpu, launch.num_gpus) == ("H100", 8)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.19.1", "0.19.1"),
        ("registry.corp/vllm/vllm-openai:v0.20.0-cu129", "0.20.0"),
        ("vllm/vllm-openai:latest", None),
        ("lmcache/vllm-openai:v0.4.3", None),
        ("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.2", None),
    ],
)
def test_the_version_is_that_of_vllms_own_images(tmp_path: Path, image: str, version: str | None) -> None:
    (launch,) = read(tmp_path, "run.sh", f"docker run {image} vllm serve a/b\n")
    assert launch.vllm_version == version


def test_flags_of_another_release_are_named(tmp_path: Path) -> None:
    # vLLM 0.16.0's parser has --disable-log-requests, 0.17.1's has not; --swap-space went after 0.17.1.
    text = "docker run vllm/vllm-openai:v{} --model a/b --disable-log-requests --swap-space 4\n"
    (old,) = read(tmp_path, "old.sh", text.format("0.16.0"))
    (new,) = read(tmp_path, "new.sh", text.format("0.20.0"))
    assert flags(old) == flags(new) == {"disable_log_requests": True, "swap_space": 4.0}
    assert (old.unknown_flags, new.unknown_flags) == ((), ("--disable-log-requests", "--swap-space"))


def test_the_policys_assumptions_resolve_variables_and_are_named(tmp_path: Path) -> None:
    reading = read_text(
        "run.sh",
        "vllm serve $M --max-model-len ${L:-1}\n",
        DiskFiles(tmp_path),
        HowToRead(assume=lambda _: {"M": "a/b", "L": "9"}),
    )
    (launch,) = reading.launches
    assert (launch.model, flags(launch), sorted(launch.assumed)) == ("a/b", {"max_model_len": 9}, ["L", "M"])
    assert (launch.unresolved, launch.defaulted) == ((), ())


def test_a_kubeai_model(tmp_path: Path) -> None:
    text = (
        "apiVersion: kubeai.org/v1\nkind: Model\nmetadata: {name: m}\nspec:\n  url: hf://a/b\n"
        "  engine: VLLM\n"
        "  args: [--max-model-len=16384, --max-num-batched-token=8192]\n"
        "  resourceProfile: nvidia-gpu-l4:2\n"
    )
    (launch,) = read(tmp_path, "m.yaml", text)
    assert (launch.model, launch.gpu, launch.num_gpus) == ("a/b", "L4", 2)
    assert flags(launch) == {"max_model_len": 16384, "max_num_batched_tokens": 8192}


def test_a_kaito_workspace_finds_its_config_map(tmp_path: Path) -> None:
    text = (
        "apiVersion: kaito.sh/v1beta1\nkind: Workspace\nmetadata: {name: w}\n"
        "resource: {instanceType: Standard_NC24ads_A100_v4}\n"
        "inference: {preset: {name: phi-4}, config: c}\n---\napiVersion: v1\nkind: ConfigMap\n"
        "metadata: {name: c}\n"
        "data:\n  inference_config.yaml: |\n    vllm:\n      max-model-len: 131072\n"
        "      gpu-memory-utilization: 0.9\n"
    )
    (launch,) = [found for found in read(tmp_path, "w.yaml", text) if found.format == "kaito"]
    assert (launch.model, launch.gpu) == (None, "A100-80GB")
    assert flags(launch) == {"max_model_len": 131072, "gpu_memory_utilization": 0.9}
    assert launch.unresolved == ("preset phi-4",)


def test_a_placeholder_that_breaks_one_yaml_document_does_not_lose_the_others(tmp_path: Path) -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
        "    - image: vllm/vllm-openai\n"
        "      args: [--model, a/b]\n---\nkind: Secret\nstringData:\n  token: {{HF_TOKEN}}: x\n"
    )
    (launch,) = read(tmp_path, "p.yaml", text)
    assert launch.model == "a/b"


def test_names_left_for_envsubst_are_unknown(tmp_path: Path) -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
        "    - image: vllm/vllm-openai\n"
        "      args: ['--model=${MODEL}', '--max-model-len', '${LEN:-4096}']\n"
    )
    (launch,) = read(tmp_path, "p.yaml", text)
    assert (launch.model, launch.unresolved) == (None, ("MODEL",))
    assert (flags(launch), launch.defaulted) == ({"max_model_len": 4096}, ("LEN",))


def test_a_production_stack_engine_over_a_ray_cluster_counts_head_and_workers(tmp_path: Path) -> None:
    text = (
        "servingEngineSpec:\n  modelSpec:\n    - name: m\n      modelURL: a/b\n      replicaCount: 1\n"
        "      requestGPU: 1\n"
        "      vllmConfig: {pipelineParallelSize: 2}\n      raySpec: {headNode: {requestGPU: 1}}\n"
    )
    (launch,) = read(tmp_path, "values.yaml", text)
    assert (launch.num_gpus, flags(launch)) == (2, {"pipeline_parallel_size": 2})


def test_python_arguments_that_a_condition_adds_are_unknown(tmp_path: Path) -> None:
    text = (
        "import subprocess\ndef main(eager, port=8000):\n"
        "    cmd = ['vllm', 'serve', 'a/b', '--port', str(port)]\n"
        "    if eager:\n        cmd.append('--enforce-eager')\n    subprocess.run(cmd)\n"
    )
    (launch,) = read(tmp_path, "serve.py", text)
    assert (launch.model, flags(launch)) == ("a/b", {"port": 8000})
    assert (launch.unresolved, launch.defaulted) == (("eager",), ("port",))


@pytest.mark.parametrize(
    "reference", ["../x", "a/../../x", "/etc/passwd", "~/x", "..", "a\0b", "\\\\host\\x", ""]
)
def test_a_reference_out_of_the_root_has_no_path(reference: str) -> None:
    assert inside("", reference) is None


def git(root: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments],  # noqa: S607  the user's git
        cwd=root,
        check=True,
        capture_output=True,
    )


def test_only_what_changed_since_the_merge_base_is_read_and_the_base_without_a_checkout(
    tmp_path: Path,
) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a.sh").write_text("vllm serve a/a --max-model-len 8192\n")
    (tmp_path / "b.sh").write_text("vllm serve b/b\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "base")
    git(tmp_path, "checkout", "-q", "-b", "change")
    (tmp_path / "a.sh").write_text("vllm serve a/a --max-model-len 32768\n")
    (tmp_path / "new.sh").write_text("vllm serve c/c\n")
    git(tmp_path, "add", "a.sh")
    git(tmp_path, "commit", "-q", "-m", "change")
    seen = against(tmp_path, "main")
    assert seen.changed == {"a.sh", "new.sh"}
    assert [launch.model for launch in seen.now.launches] == ["a/a", "c/c"]
    (before,) = seen.before.launches
    assert flags(before) == {"max_model_len": 8192}
    assert (tmp_path / "a.sh").read_text().endswith("32768\n")


def test_a_tree_is_what_git_lists(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for name in ("a.sh", "ignored/b.sh", "node_modules/c.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("vllm serve a/b\n")
    (tmp_path / ".gitignore").write_text("ignored/\n")
    assert [launch.path for launch in read_paths(["."], tmp_path).launches] == ["a.sh"]


def test_an_unknown_word_among_dockers_options_is_not_the_image(tmp_path: Path) -> None:
    (launch,) = read(
        tmp_path,
        "run.sh",
        "docker run --rm $DEVICES -v /a:/b vllm/vllm-openai:v0.20.0 --model a/b --seed 1\n",
    )
    assert (launch.model, flags(launch), launch.vllm_version) == ("a/b", {"seed": 1}, "0.20.0")
    assert read(tmp_path, "other.sh", "docker run --rm $DEVICES -v /a:/b $IMAGE --device /dev/x\n") == []


def test_commands_under_keys_of_ones_own_are_read_but_prose_is_not(tmp_path: Path) -> None:
    text = (
        "deployment:\n  - server_cmd: >\n      vllm serve a/b\n        --seed 1\n        --port 9\n"
        "guide: |\n  Run vllm serve c/d first.\n"
    )
    (launch,) = read(tmp_path, "case.yaml", text)
    assert (launch.line, launch.model, flags(launch)) == (3, "a/b", {"seed": 1, "port": 9})


def test_a_nomad_device_that_ends_before_its_count_is_one_device(tmp_path: Path) -> None:
    text = (
        'job "llm" {\n  group "gpu" {\n    task "vllm" {\n      config {\n'
        '        image = "vllm/vllm-openai:v0.22.1"\n        args = ["--model", "a/b"]\n      }\n'
        '      resources {\n        device "nvidia/gpu/NVIDIA A100-SXM4-80GB" {\n          count ='
    )
    (launch,) = read(tmp_path, "job.nomad.hcl", text)
    assert (launch.model, launch.num_gpus) == ("a/b", 1)


@pytest.mark.parametrize("token", _TOKENS)
def test_each_telling_word_tells_by_itself(token: bytes) -> None:
    assert is_telling(b"a\n" + token.upper() + b"\nb")
    assert not is_telling(b"a\n" + token[:3] + b"\nb")
