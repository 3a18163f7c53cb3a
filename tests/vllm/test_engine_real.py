"""Real vLLM on the CPU: it starts, tells its facts, fails in known ways, and goes, whatever happens."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kvplan.config.argv import to_argv
from kvplan.config.serving import ServingConfig
from kvplan.config.yaml_file import from_vllm_yaml, to_vllm_yaml
from kvplan.engine.accounting import cpu_kv_bytes, measure_non_kv
from kvplan.engine.cgroup import MemoryCgroup
from kvplan.engine.demo_model import make_demo_model
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.process_tree import SHM_DIR, all_processes, descendants, read_process, shared_memory_of
from kvplan.engine.server import Engine, EngineStartError, running_engine
from kvplan.errors import FailureClass
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.vllm

KV_BYTES = 64 * MIB
# 4 layers x 2 KV heads x 64 elements x 2 (K and V) x 2 bytes
KV_BYTES_PER_TOKEN = 4 * 2 * 64 * 2 * 2


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo_model(tmp_path_factory.getbasetemp() / "models")


@pytest.fixture
def make_plan(demo_model: Path, tmp_path: Path) -> Callable[..., LaunchPlan]:
    def make(card_bytes: int = 4 * GIB, **flags: Any) -> LaunchPlan:
        values = {"kv_cache_memory_bytes": KV_BYTES, "max_model_len": 2048, "max_num_seqs": 16, **flags}
        return LaunchPlan(
            model=str(demo_model),
            settings=ServingConfig(enforce_eager=True).with_flags(**values),
            device="cpu",
            card_bytes=card_bytes,
            work_dir=tmp_path / "trial",
            ready_timeout_s=180,
        )

    return make


def ask(engine: Engine, route: str, **body: Any) -> Any:
    answer = httpx.post(
        f"{engine.base_url}/v1/{route}",
        headers={"Authorization": f"Bearer {engine.api_key}"},
        json={"model": engine.served_model_name, "ignore_eos": True, **body},
        timeout=60,
    )
    return answer.raise_for_status().json()


def fails(plan: LaunchPlan) -> EngineStartError:
    with pytest.raises(EngineStartError) as caught, running_engine(plan):
        pytest.fail("it started")
    return caught.value


def test_it_serves_tells_its_facts_and_leaves_nothing(make_plan: Callable[..., LaunchPlan]) -> None:
    with running_engine(make_plan()) as engine:
        pids = engine.pids()
        segments = shared_memory_of(pids)
        non_kv = measure_non_kv(engine)
        answer = ask(engine, "completions", prompt="hello", max_tokens=8, logprobs=2)
        chat = ask(engine, "chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=4)
        metrics = engine.metrics()
        launch = engine.launch
    facts = launch.facts
    num_blocks = KV_BYTES // (128 * KV_BYTES_PER_TOKEN)  # vLLM's block size on CPU is 128
    assert (facts.vllm_version, facts.num_gpu_blocks, facts.block_size) == ("0.32.0", num_blocks, 128)
    assert facts.kv_cache_tokens == KV_BYTES // KV_BYTES_PER_TOKEN
    assert facts.max_concurrency == num_blocks / (2048 // 128)
    assert facts.available_kv_bytes == round(0.06 * GIB)  # as printed, in hundredths of a GiB
    assert launch.outcome == "started"
    assert launch.memory_limit == ("rss" if launch.oom_kill_count is None else "cgroup")
    assert answer["usage"]["completion_tokens"] == 8
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 8
    # <|im_start|>user\n hi<|im_end|>\n <|im_start|>assistant\n: one token a byte, three special ones
    assert chat["usage"]["prompt_tokens"] == 1 + 5 + 2 + 1 + 1 + 1 + 10
    assert metrics is not None
    assert metrics.generation_tokens_total == 12
    assert non_kv is not None
    assert GIB < non_kv.ready_bytes < 2 * GIB
    # The share of a 4 GiB card that leaves the KV cache that was given.
    utilization = (KV_BYTES + non_kv.ready_bytes) / (4 * GIB)
    assert abs(cpu_kv_bytes(4 * GIB, utilization, non_kv.ready_bytes) - KV_BYTES) <= 1
    assert len(pids) >= 3
    assert [pid for pid in pids if read_process(pid) is not None] == []
    assert segments
    assert [name for name in segments if (SHM_DIR / name).exists()] == []


def test_too_small_a_kv_cache_is_named_with_vllms_numbers(make_plan: Callable[..., LaunchPlan]) -> None:
    error = fails(make_plan(kv_cache_memory_bytes=2 * MIB, max_model_len=32_768))
    facts = error.launch.facts
    assert error.failure is FailureClass.KV_TOO_SMALL
    assert error.launch.phase == "kv_cache"
    # 32768 tokens x 2048 B = 64 MiB, printed as 0.06 GiB; 8 blocks of 128 tokens, one of them the null block.
    assert (facts.needed_bytes, facts.max_model_len) == (round(0.06 * GIB), 32_768)
    assert facts.estimated_max_model_len == (2 * MIB // (128 * KV_BYTES_PER_TOKEN) - 1) * 128


def test_a_kill_by_the_kernel_is_recognised(make_plan: Callable[..., LaunchPlan]) -> None:
    if (cgroup := MemoryCgroup.create(GIB)) is None:
        pytest.skip("no memory cgroup can be made here")
    cgroup.remove()
    # The KV cache is filled with zeros at start: vLLM's 1.3 GiB and 1 GiB more do not fit into 1.7 GiB.
    error = fails(make_plan(card_bytes=int(1.7 * GIB), kv_cache_memory_bytes=GIB))
    assert error.failure is FailureClass.KILLED
    assert error.launch.oom_kill_count == 1
    assert error.launch.memory_limit == "cgroup"


def test_an_unknown_flag_is_recognised(make_plan: Callable[..., LaunchPlan]) -> None:
    error = fails(make_plan(nonsense=3))
    assert error.failure is FailureClass.BAD_FLAG
    assert "unrecognized arguments: --nonsense" in (error.decisive_line or "")


OWNER = """
import sys, time
from pathlib import Path
from kvplan.config.serving import ServingConfig
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine

settings = ServingConfig(kv_cache_memory_bytes=2**26, max_model_len=2048, enforce_eager=True)
plan = LaunchPlan(sys.argv[1], settings, "cpu", Path(sys.argv[2]), card_bytes=4 * 2**30)
with running_engine(plan, on_event=lambda event: print(event.kind, flush=True)):
    time.sleep(600)
"""


@pytest.mark.parametrize("span_s", [(1.0, 15.0), (15.0, 40.0)])
def test_kill_9_of_kvplan_leaves_nothing_within_10_s(
    demo_model: Path, tmp_path: Path, span_s: tuple[float, float]
) -> None:
    delay_s = random.uniform(*span_s)
    print(f"killed after {delay_s:.2f} s")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(demo_model), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    while owner.stdout.readline().strip() != "starting":  # it may have to wait for the lock
        assert owner.poll() is None
    deadline = time.monotonic() + delay_s
    seen: dict[int, tuple[int, int]] = {}
    segments: set[str] = set()
    while time.monotonic() < deadline:
        members = descendants(owner.pid, all_processes())
        seen |= {process.pid: process.identity for process in members}
        segments |= shared_memory_of(process.pid for process in members)
        time.sleep(0.1)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 10

    def left() -> list[Any]:
        processes = (read_process(pid) for pid in seen)
        alive: list[Any] = [p for p in processes if p is not None and p.identity == seen[p.pid]]
        return alive + [name for name in segments if (SHM_DIR / name).exists()]

    while left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(seen) >= 2
    assert left() == []


PARSE = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser
args = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[2:])
print(json.dumps({name: getattr(args, name) for name in json.loads(sys.argv[1])}))
"""


def parsed_by_vllm(names: list[str], argv: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, json.dumps(names), *argv], capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_vllms_own_parser_reads_our_argv_and_our_yaml_as_we_mean_them(tmp_path: Path) -> None:
    given = {
        "model": "m",
        "gpu_memory_utilization": 0.85,
        "kv_cache_memory_bytes": 2**31,
        "max_model_len": -1,
        "max_num_seqs": 32,
        "kv_cache_dtype": "fp8_e4m3",
        "kv_cache_dtype_skip_layers": ["0", "sliding_window"],
        "block_size": 32,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "served_model_name": ["a", "b"],
        "hf_overrides": {"num_hidden_layers": 2},
    }
    config = ServingConfig().with_flags(**given | {"kv_cache_dtype_skip_layers": ("0", "sliding_window")})
    path = tmp_path / "serve.yaml"
    path.write_text(to_vllm_yaml(config))
    assert parsed_by_vllm(list(given), ["--model", "m", *to_argv(config)]) == given
    assert parsed_by_vllm(list(given), ["--config", str(path)]) == given
    assert from_vllm_yaml(path) == config
    # Sizes as people write them: we and vLLM must mean the same number.
    path.write_text("model: m\nmax-model-len: 8k\nmax-num-batched-tokens: 25.6k\nkv_cache_memory_bytes: 3G\n")
    names = ["max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes"]
    ours = from_vllm_yaml(path).given()
    assert parsed_by_vllm(names, ["--config", str(path)]) == {name: ours[name] for name in names}
