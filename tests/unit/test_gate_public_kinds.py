"""Ways of writing a launch that files of public repositories use: each in a small file of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvplan.gate.find import read_paths

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.gate.found import Found


def read(root: Path, path: str, text: str) -> Found:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return read_paths([path], root)


POD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  template:
    spec:
      containers:
        - name: server
          image: IMAGE
          args: [--model=a/b, --gpu-memory-utilization=0.9, --max-model-len=2048]
          resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.mark.parametrize("image", ["IMAGE_PLACEHOLDER", "registry.example/team/inference:7"])
def test_an_image_whose_name_says_nothing_is_known_by_arguments_that_only_vllm_takes(
    image: str, tmp_path: Path
) -> None:
    (launch,) = read(tmp_path, "k8s/llm.yaml", POD.replace("IMAGE", image)).launches
    assert launch.model == "a/b"
    assert launch.num_gpus == 1
    assert launch.flags == {"gpu_memory_utilization": 0.9, "max_model_len": 2048}


@pytest.mark.parametrize("image", ["lmsysorg/sglang:v0.5", "ghcr.io/llm-d/llm-d-inference-sim:v0.6"])
def test_the_image_of_another_server_is_no_launch_but_its_arguments_are_not_passed_over(
    image: str, tmp_path: Path
) -> None:
    found = read(tmp_path, "k8s/llm.yaml", POD.replace("IMAGE", image))
    assert found.launches == []
    assert [miss.reason for miss in found.not_read] == ["options of vLLM, but no launch that is understood"]


def test_a_fork_of_the_image_keeps_its_entrypoint_and_takes_the_model_first(tmp_path: Path) -> None:
    text = "docker run -d --gpus device=0 some/vllm-fork:1.2 /model --max-model-len 4096 --max-num-seqs 2\n"
    (launch,) = read(tmp_path, "run.sh", text).launches
    assert launch.model == "/model"
    assert launch.num_gpus == 1
    assert launch.flags == {"max_model_len": 4096, "max_num_seqs": 2}


@pytest.mark.parametrize("program", ["/start.sh", "server.py", "bash", "python3"])
def test_a_program_after_the_fork_of_an_image_is_not_its_model(program: str, tmp_path: Path) -> None:
    text = f"docker run some/vllm-fork:1.2 {program} --max-model-len 4096 --max-num-seqs 2\n"
    assert read(tmp_path, "run.sh", text).launches == []


def test_an_option_that_docker_lacks_does_not_hide_the_image(tmp_path: Path) -> None:
    text = """\
from subprocess import Popen
from settings import model
command = ["docker", "run", "--api-key", f"KEY={model}", "-p", "80:80", "vllm/vllm-openai",
           "--model", model, "--max-num-seqs", "8"]
Popen(command)
"""
    (launch,) = read(tmp_path, "serve.py", text).launches
    assert launch.model is None
    assert launch.unresolved == ("model",)
    assert launch.flags == {"max_num_seqs": 8}


def test_an_aliased_config_of_ray_is_a_second_model_at_the_place_of_its_key(tmp_path: Path) -> None:
    text = """\
applications:
  - args:
      prefill_config: &config
        model_loading_config: {model_id: a/b}
        engine_kwargs: {max_model_len: 512}
      decode_config: *config
    import_path: ray.serve.llm:build_pd_openai_app
"""
    first, second = read(tmp_path, "serve.yaml", text).launches
    assert (first.line, second.line) == (3, 6)
    assert first.flags == second.flags == {"max_model_len": 512}


def test_a_template_of_a_config_is_a_model_only_where_it_is_used(tmp_path: Path) -> None:
    text = """\
x-base: &base
  model_loading_config: {model_id: a/b}
applications:
  - args:
      llm_configs:
        - <<: *base
          engine_kwargs: {max_model_len: 512}
"""
    (launch,) = read(tmp_path, "serve.yaml", text).launches
    assert launch.model == "a/b"
    assert launch.flags == {"max_model_len": 512}


def test_a_skypilot_worker_may_start_its_server_in_setup(tmp_path: Path) -> None:
    text = """\
envs: {MODEL: a/b}
resources: {accelerators: {L4, H100}}
setup: |
  pip install "vllm>=0.8.3"
  setsid bash -c "vllm serve $MODEL --dtype auto > log 2>&1" > /dev/null &
pool: {workers: 4}
"""
    (launch,) = read(tmp_path, "pool.yaml", text).launches
    assert launch.model == "a/b"
    assert launch.gpu == ("L4", "H100")
    assert launch.num_gpus == 1
    assert launch.line == 5


def test_switches_of_the_production_stack_beside_its_vllm_settings(tmp_path: Path) -> None:
    text = """\
servingEngineSpec:
  modelSpec:
    - name: one
      modelURL: a/b
      enableLoRA: true
      enableTool: false
      toolCallParser: hermes
      vllmConfig: {maxModelLen: 4096, maxLoras: 2}
"""
    (launch,) = read(tmp_path, "values.yaml", text).launches
    assert launch.flags == {
        "enable_lora": True,
        "tool_call_parser": "hermes",
        "max_model_len": 4096,
        "max_loras": 2,
    }


@pytest.mark.parametrize(
    ("parallelism", "gpus"),
    [
        # Pods of an engine: data over dataLocal, or the pipeline's stages; 8 GPUs each.
        ("{data: 16, dataLocal: 8}", 16),
        ("{tensor: 8, pipeline: 3}", 24),
        ("{tensor: 8}", 8),
    ],
)
def test_a_kserve_engine_counts_the_gpus_of_all_its_pods(parallelism: str, gpus: int, tmp_path: Path) -> None:
    pod = "{containers: [{name: main, resources: {limits: {nvidia.com/gpu: 8}}}]}"
    text = f"""\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {{name: one}}
spec:
  model: {{uri: hf://a/b}}
  parallelism: {parallelism}
  template: {pod}
  worker: {pod}
"""
    (launch,) = read(tmp_path, "llm.yaml", text).launches
    assert launch.num_gpus == gpus


# -- what is not understood is said


def test_a_schema_of_ones_own_is_reported_where_its_options_stand(tmp_path: Path) -> None:
    text = """\
tests:
  - model: a/b
    server_options:
      - --max-model-len
      - '4096'
      - --max-num-seqs=8
"""
    found = read(tmp_path, "suite.yaml", text)
    assert found.launches == []
    assert [(miss.line, miss.reason) for miss in found.not_read] == [
        (4, "options of vLLM, but no launch that is understood")
    ]


def test_a_command_in_a_key_that_no_reader_knows_is_reported(tmp_path: Path) -> None:
    text = 'steps:\n  - do: "cd /srv && vllm serve a/b --port 80"\n'
    found = read(tmp_path, "plan.yaml", text)
    assert found.launches == []
    assert [(miss.line, miss.reason) for miss in found.not_read] == [
        (2, "a command that starts vLLM, which could not be followed")
    ]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.sh", 'echo "run: vllm serve a/b"\npkill -f "vllm serve a/b"\n# vllm serve a/b\n'),
        ("b.yaml", "description: start it with vllm serve a/b\n"),
        ("Dockerfile", 'FROM vllm/vllm-openai:v0.20.0\nENTRYPOINT ["vllm", "serve"]\n'),
        ("c.yaml", "services:\n  web:\n    image: nginx\n    environment: {LLM_URL: 'http://vllm:8000'}\n"),
        ("LICENSE", "- use of vllm serve model\n- more: text: here\n"),
        ("d.sh", 'CMD="vllm serve a/b"\n\n\n\n\n\n\n\n\n\necho one\n$CMD --port 80\n'),
    ],
)
def test_talk_of_vllm_is_no_miss(path: str, text: str, tmp_path: Path) -> None:
    found = read(tmp_path, path, text)
    assert found.not_read == []
    assert len(found.launches) == (path == "d.sh")


def test_a_variable_that_one_arm_unsets_is_unknown_after_the_branch(tmp_path: Path) -> None:
    # `shift` in one arm of an option loop takes positional parameters away that the other arms keep.
    text = """\
parse() {
  while [[ $# -gt 0 ]]; do
    case "$1" in
      -p|--port) port="$2"; shift 2 ;;
      -h) exit 0 ;;
    esac
  done
}
parse "$@" more
vllm serve a/b --port "$port" --max-model-len 512
"""
    (launch,) = read(tmp_path, "serve.sh", text).launches
    assert launch.flags == {"max_model_len": 512}
    assert launch.unresolved


@pytest.mark.parametrize(
    ("run", "gpus"),
    [
        # One engine over both nodes, and one engine on each.
        ("ray start --head\\nvllm serve a/b --tensor-parallel-size 8 --pipeline-parallel-size 2", 16),
        ("vllm serve a/b --tensor-parallel-size 8", 8),
    ],
)
def test_a_skypilot_engine_over_several_nodes_has_the_gpus_of_all(
    run: str, gpus: int, tmp_path: Path
) -> None:
    text = f'resources: {{accelerators: "H100:8"}}\nnum_nodes: 2\nrun: "{run}"\n'
    (launch,) = read(tmp_path, "sky.yaml", text).launches
    assert launch.num_gpus == gpus


ENGINE_ARGS = """\
from vllm import AsyncEngineArgs, AsyncLLMEngine

SEQS = 20

def load(fast):
    args = AsyncEngineArgs("a/b")
    args.tokenizer = "a/b"
    args.max_num_seqs = SEQS
    args.quantization = "gptq"
    args.engine_use_ray = False
    if fast:
        args.max_model_len = 2048
    return AsyncLLMEngine.from_engine_args(args)
"""


def test_attributes_set_on_engine_arguments_are_flags(tmp_path: Path) -> None:
    (launch,) = read(tmp_path, "serve.py", ENGINE_ARGS).launches
    assert (launch.model, launch.line) == ("a/b", 6)
    assert launch.flags == {"tokenizer": "a/b", "max_num_seqs": 20, "quantization": "gptq"}
    # Set on one way only: its value is not known, and so said.
    assert launch.unresolved_flags == {"max_model_len": ("args.max_model_len",)}
    # vLLM's arguments have no such attribute any more: nothing looks at it.
    assert launch.ignored == ("engine_use_ray",)


def test_engine_arguments_bound_anew_are_two_launches_each_with_its_own_attributes(tmp_path: Path) -> None:
    text = (
        "from vllm import EngineArgs\n"
        "args = EngineArgs('a/b')\nargs.max_num_seqs = 4\n"
        "args = EngineArgs('c/d')\nargs.max_model_len = 512\n"
    )
    first, second = read(tmp_path, "serve.py", text).launches
    assert (first.model, first.flags) == ("a/b", {"max_num_seqs": 4})
    assert (second.model, second.flags) == ("c/d", {"max_model_len": 512})


SET_ELSEWHERE = """\
import subprocess
model = None
port = 8000

def choose(request):
    global model, port
    model, port = request.json["model"], request.json["port"]

def start():
    subprocess.Popen(["vllm", "serve", model, "--port", str(port), "--max-model-len", "2048"])
"""


def test_a_name_that_some_function_sets_is_not_the_none_it_starts_with(tmp_path: Path) -> None:
    (launch,) = read(tmp_path, "serve.py", SET_ELSEWHERE).launches
    assert launch.model is None
    assert launch.unresolved_flags["model"] == ("model",)
    assert launch.flags == {"port": 8000, "max_model_len": 2048}
    # 8000 holds unless `choose` ran before: as with any default, it is said to be one.
    assert "port" in launch.defaulted


def test_a_formatted_none_is_no_word_of_a_command(tmp_path: Path) -> None:
    text = "import os\nname = None\nos.system(f'vllm serve {name} --max-model-len 2048')\n"
    (launch,) = read(tmp_path, "serve.py", text).launches
    assert launch.model is None
    assert launch.flags == {"max_model_len": 2048}


SPECULATOR = """\
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: q}
spec:
  model: {uri: hf://a/b, name: a/b}
  speculator:
    model: {uri: hf://a/b-eagle3}
    config: {method: eagle3, num_speculative_tokens: "6"}
  kvCacheOffloading: {cpu: {size: 10Gi}}
  template:
    containers: [{name: main, resources: {limits: {nvidia.com/gpu: 2}}}]
  prefill:
    template:
      containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


def test_kserve_gives_its_speculator_to_the_engine_that_decodes(tmp_path: Path) -> None:
    decode, prefill = read(tmp_path, "llm.yaml", SPECULATOR).launches
    assert decode.flags["speculative_config"] == {
        "model": "a/b-eagle3",
        "method": "eagle3",
        "num_speculative_tokens": 6,
    }
    assert "speculative_config" not in prefill.flags
    # Which connector KServe writes for its offloading is not read: said, not passed over.
    assert decode.unresolved_flags == {"kv_transfer_config": ("kvCacheOffloading",)}
    assert prefill.unresolved_flags == {}


def test_a_reader_that_fails_costs_its_own_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.gate import find
    from kvplan.gate.read import read_text

    def fails(path: str, *rest: object, named: bool) -> object:
        if path == "a.sh":
            raise IndexError
        return read_text(path, *rest, named=named)  # type: ignore[arg-type]

    monkeypatch.setattr(find, "read_text", fails)
    (tmp_path / "a.sh").write_text("vllm serve a/b\n", encoding="utf-8")
    (tmp_path / "b.sh").write_text("vllm serve c/d\n", encoding="utf-8")
    found = read_paths(["."], tmp_path)
    assert [launch.model for launch in found.launches] == ["c/d"]
    (miss,) = found.not_read
    assert (miss.path, miss.line) == ("a.sh", 1)
    assert miss.reason == f"{find.OWN_FAULT} (IndexError): please report it"


LIST = """\
services:
  llm:
    image: vllm/vllm-openai:v0.12.0
    command:
      - --model=a/b
      - --max-model-len 4096
      - --max-num-seqs 4 --no-such-option 5
      - --enforce-eager
      - "false"
      - --gpu-memory-utilization
      - "0.8"
"""


def test_an_option_in_one_word_with_its_value_is_refused_as_vllm_does(tmp_path: Path) -> None:
    # argparse takes a word with a space for no option: "unrecognized arguments: --max-model-len 4096 ...".
    (launch,) = read(tmp_path, "compose.yaml", LIST).launches
    assert launch.flags == {"gpu_memory_utilization": 0.8, "enforce_eager": True}
    assert launch.invalid == {
        "max_model_len": "stands in one word with its value",
        "max_num_seqs": "stands in one word with its value",
        "enforce_eager": "takes no value",
    }
    assert launch.unknown_flags == ("--no-such-option",)


OPTIONS_OF_A_SCRIPT = """\
HOST="${HOST:-127.0.0.1}"
PORT=8000
while [[ $# -gt 0 ]]; do
  case "$1" in
    --host) HOST="$2"; shift 2 ;;
    --port) PORT="$2"; shift 2 ;;
    *) shift ;;
  esac
done
vllm serve a/b --host "$HOST" --port "$PORT"
"""


def test_without_arguments_a_script_keeps_its_defaults_those_of_the_environment_too(tmp_path: Path) -> None:
    (launch,) = read(tmp_path, "run.sh", OPTIONS_OF_A_SCRIPT).launches
    assert launch.flags == {"host": "127.0.0.1", "port": 8000}
    assert set(launch.defaulted) == {"HOST", "PORT"}


@pytest.mark.parametrize(
    ("head", "model"),
    [
        ('for arg in "$@"; do', "a/b"),
        ("for arg; do", "a/b"),
        ("for arg in $(ls); do", None),
    ],
)
def test_a_loop_over_the_arguments_leaves_the_defaults(head: str, model: str | None, tmp_path: Path) -> None:
    text = f"""\
MODEL="${{MODEL:-a/b}}"
{head}
  case $arg in
    --all) ALL=1 ;;
    --model=*) MODEL="${{arg#*=}}" ;;
  esac
done
vllm serve "$MODEL"
"""
    (launch,) = read(tmp_path, "run.sh", text).launches
    assert launch.model == model
    assert ("MODEL" in launch.defaulted) == (model is not None)


def test_what_every_branch_says_of_its_engine_arguments_holds(tmp_path: Path) -> None:
    text = """\
from vllm import EngineArgs

def start(path, vectors):
    if vectors:
        kwargs = {"model": path, "max_model_len": 4096, "enforce_eager": True}
    else:
        kwargs = {"model": path, "max_model_len": 4096, "enforce_eager": False, "seed": 1}
    return EngineArgs(**kwargs)
"""
    (launch,) = read(tmp_path, "serve.py", text).launches
    assert launch.flags == {"max_model_len": 4096}
    assert {"path", "vectors"} <= set(launch.unresolved)
