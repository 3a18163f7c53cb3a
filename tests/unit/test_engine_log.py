"""vLLM's log: what a start tells, and the line that decides a failure.

The logs in tests/data/logs name their source.
"""

# ruff: noqa: E501, ISC004  vLLM's own lines, as it prints them

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engine.log import LogReader, LogWatch, classify_failure, message_of, parse_startup
from kvplan.engine.log_file import KEPT_BYTES, LogFile
from kvplan.engine.patterns import log_patterns
from kvplan.errors import FailureClass
from kvplan.units import GIB, MIB

LOGS = Path(__file__).parents[1] / "data" / "logs"


def lines(name: str) -> list[str]:
    return (LOGS / name).read_text("utf-8").splitlines()


def gib(size: float) -> int:
    return round(size * GIB)


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "cpu-0.32-started.log",
            {
                "vllm_version": "0.32.0",
                "weights_load_s": 0.02,
                "available_kv_bytes": 268_435_456,  # 0.25 GiB printed, 2^28 given
                # 4 layers x 2 KV heads x 64 x 2 (K, V) x 2 B = 2048 B a token: 2^28 / 2048
                "kv_cache_tokens": 131_072,
                "max_model_len": 2048,
                "max_concurrency": 64.0,
            },
        ),
        (
            "v0-0.6-pipeline.log",
            {
                "weights_bytes": gib(18.4902),
                "non_torch_bytes": gib(1.96),
                "available_kv_bytes": gib(34.78),  # the smaller rank's
                "num_gpu_blocks": 189_945,
                "max_model_len": 1024,
                "max_concurrency": 2967.89,
            },
        ),
        (
            "v0-0.6.5-started.log",
            {
                "weights_bytes": gib(7.51),
                "non_torch_bytes": gib(0.39),
                "activation_peak_bytes": gib(2.53),
                "available_kv_bytes": gib(3.76),
                "num_gpu_blocks": 3852,
                "max_model_len": 40_000,
                "max_concurrency": 1.54,
            },
        ),
        (
            "v1-0.11-two-ranks.log",
            {
                "compile_s": 11.68,
                "available_kv_bytes": gib(2.30),
                "kv_cache_tokens": 75_840,
                "max_model_len": 120_000,
                "max_concurrency": 2.48,
            },
        ),
        (
            "v1-0.18-graph-estimate.log",
            {
                "cudagraph_estimate_bytes": gib(0.26),
                "available_kv_bytes": gib(17.36),
                "kv_cache_tokens": 188_640,
                "max_model_len": 131_072,
                "max_concurrency": 5.23,
            },
        ),
        ("v1-0.8-ranks.log", {"weights_bytes": gib(11.4384), "weights_load_s": 5.6822}),
    ],
)
def test_the_facts_of_a_start(name: str, facts: dict[str, Any]) -> None:
    parsed = parse_startup(lines(name))
    told = {field: getattr(parsed, field) for field in parsed.__slots__ if getattr(parsed, field) is not None}
    assert told == facts


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        # One line a wording that the files do not show; texts of v1/worker/gpu_worker.py and utils/mem_utils.py.
        ("Loading model weights took 14.9888 GB", {"weights_bytes": gib(14.9888)}),
        ("Model loading took 14.99 GiB memory and 3.212000 seconds", {"weights_load_s": 3.212}),
        ("Available KV cache memory: -1.2 GiB", {"available_kv_bytes": -gib(1.2)}),
        (
            "Initial free memory 78.5 GiB, reserved 1.00GiB memory for KV Cache as specified by "
            "kv_cache_memory_bytes config",
            {"available_kv_bytes": GIB},
        ),
        (
            "CPU KV cache size: 3,840 tokens, Maximum concurrency for 1,024 tokens per request: 3.75x",
            {"kv_cache_tokens": 3840, "max_concurrency": 3.75},
        ),
        ("# cuda blocks: 27443, # CPU blocks: 2048", {"num_gpu_blocks": 27_443}),
        ("Overriding num_gpu_blocks=2048 with num_gpu_blocks_override=9", {"num_gpu_blocks": 9}),
        (
            "Setting attention block size to 544 tokens to ensure that attention page size is >= mamba page size.",
            {"block_size": 544},
        ),
        (
            "Setting kv cache block size to 64 for FLASHMLA/DEEPSEEK_V32_INDEXER backend(s).",
            {"block_size": 64},
        ),
        ("Using AttentionBackendEnum.TRITON_ATTN backend.", {"attention_backend": "TRITON_ATTN"}),
        (
            "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'TRITON_ATTN'].",
            {"attention_backend": "FLASH_ATTN"},
        ),
        (
            "CUDA graph pool memory: 0.61 GiB (actual), 0.55 GiB (estimated), difference: 0.06 GiB (9.8%).",
            {"cudagraph_bytes": gib(0.61), "cudagraph_estimate_bytes": gib(0.55)},
        ),
        (
            "Memory profiling takes 3.10 seconds. Total non KV cache memory: 17.10GiB; torch peak memory increase: "
            "1.20GiB; non-torch forward increase memory: 0.10GiB; weights memory: 14.99GiB.",
            {"activation_peak_bytes": gib(1.2), "non_torch_bytes": gib(0.1), "weights_bytes": gib(14.99)},
        ),
        (
            "Free memory on device (78.5/79.19 GiB) on startup. Desired GPU memory utilization is (0.92, 72.85 GiB). "
            "Actual usage is 15.2 GiB for consumed memory (weights + non-torch), 1.9 GiB for peak activation, and "
            "0.61 GiB for CUDAGraph memory. Replace",
            {"activation_peak_bytes": gib(1.9), "cudagraph_bytes": gib(0.61), "non_torch_bytes": None},
        ),
        (
            "Auto-fit max_model_len: reduced from 131072 to 15232 to fit in available KV cache memory (1.86 GiB GPU)",
            {"max_model_len": 15_232},
        ),
        ("vLLM API server version 0.11.0", {"vllm_version": "0.11.0"}),
        ("Initializing an LLM engine (v0.6.6) with config: model='x'", {"vllm_version": "0.6.6"}),
    ],
)
def test_each_wording(line: str, facts: dict[str, Any]) -> None:
    parsed = parse_startup([f"(EngineCore_DP0 pid=7) INFO 11-29 12:57:42 [core.py:1] {line}"])
    assert {field: getattr(parsed, field) for field in facts} == facts


def test_of_two_graph_captures_the_last_one_counts() -> None:
    # Model runner V2 captures once to measure and once for use (0.29+).
    text = "Graph capturing finished in {} secs, took {} GiB"
    assert parse_startup([text.format(3, 0.2), text.format(12, 0.61)]).cudagraph_bytes == gib(0.61)


@pytest.mark.parametrize(
    ("name", "failure", "phase", "starts_with", "numbers"),
    [
        (
            "cpu-0.32-kv-too-small.log",
            FailureClass.KV_TOO_SMALL,
            "kv_cache",
            "ValueError: To serve at least one request with the model's max seq len (32768)",
            # 32768 tokens x 2048 B = 64 MiB, printed 0.06 GiB; 2 MiB given, printed 0.0 GiB.
            {
                "max_model_len": 32768,
                "needed_bytes": gib(0.06),
                "available_bytes": 0,
                "estimated_max_model_len": 896,
            },
        ),
        (
            "cpu-0.32-no-kv-memory.log",
            FailureClass.NO_KV_MEMORY,
            "kv_cache",
            "ValueError: No available memory for the cache blocks.",
            {},
        ),
        (
            "cpu-0.32-utilization-low.log",
            FailureClass.NO_KV_MEMORY,
            "kv_cache",
            "ValueError: Available memory on node 0 (7.0/9.59 GiB) on kv cache allocation",
            {"available_bytes": gib(7.0)},
        ),
        (
            "cpu-0.32-free-memory-low.log",
            FailureClass.FREE_MEMORY_LOW,
            "weights",
            "ValueError: Available memory on node 0 (7.49/9.59 GiB) on startup",
            {"needed_bytes": gib(9.49), "available_bytes": gib(7.49)},
        ),
        (
            "cpu-0.32-bad-flag.log",
            FailureClass.BAD_FLAG,
            "arguments",
            "api_server.py: error: unrecognized arguments: --nonsense",
            {},
        ),
        (
            "cpu-0.32-bad-choice.log",
            FailureClass.BAD_FLAG,
            "arguments",
            "api_server.py: error: argument --kv-cache-dtype: invalid choice: 'fp9'",
            {},
        ),
        (
            "cpu-0.32-length-too-long.log",
            FailureClass.BAD_FLAG,
            "arguments",
            "Value error, User-specified max_model_len (65536) is greater than the derived max_model_len",
            {},
        ),
        (
            "cpu-0.32-block-size-16.log",
            FailureClass.UNSUPPORTED,
            "kv_cache",  # the size had been printed already
            "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).",
            {},
        ),
        (
            "cpu-0.32-unknown-architecture.log",
            FailureClass.UNSUPPORTED,
            "arguments",
            "Value error, Model architectures ['FooForCausalLM'] are not supported for now.",
            {},
        ),
        # The kernel's kill leaves no word: only the cgroup's counter tells (test_engine_faults.py).
        ("cpu-0.32-killed.log", FailureClass.UNKNOWN, None, "", {}),
        (
            "free-memory-0.9.1.log",
            FailureClass.FREE_MEMORY_LOW,
            "weights",
            "ValueError: Free memory on device (31.44/47.38 GiB)",
            {"needed_bytes": gib(45.01), "available_bytes": gib(31.44)},
        ),
        (
            "free-memory-0.17.log",
            FailureClass.FREE_MEMORY_LOW,
            "weights",
            "",  # the project's own prefix stays in front
            {"needed_bytes": gib(132.81), "available_bytes": gib(111.99)},
        ),
        (
            "neighbour-released.log",
            FailureClass.FREE_MEMORY_LOW,
            "profile",
            "AssertionError: Error in memory profiling.",
            {},
        ),
        (
            "mamba-slots.log",
            FailureClass.KV_TOO_SMALL,
            "kv_cache",
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (614).",
            {},
        ),
        (
            "oom-weights-0.11.log",
            FailureClass.OOM_WEIGHTS,
            "weights",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB.",
            {"needed_bytes": 896 * MIB, "available_bytes": round(739.81 * MIB)},
        ),
        (
            "oom-profile-v0.log",
            FailureClass.OOM_PROFILE,
            "profile",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.00 GiB.",
            {"needed_bytes": 26 * GIB, "available_bytes": gib(9.18)},
        ),
        (
            "oom-capture.log",
            FailureClass.OOM_CUDAGRAPH,
            "cudagraph",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB.",
            {"needed_bytes": 96 * MIB, "available_bytes": round(60.69 * MIB)},
        ),
        (
            "oom-sampler.log",
            FailureClass.OOM_SAMPLER,
            "sampler",
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
            # from the allocator's line before it
            {"needed_bytes": gib(1.74), "available_bytes": round(605.88 * MIB)},
        ),
        (
            "oom-serving.log",
            FailureClass.OOM_SERVING,
            "serving",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB.",
            {"needed_bytes": 50 * MIB, "available_bytes": round(21.75 * MIB)},
        ),
    ],
)
def test_the_cause_of_a_failure(
    name: str, failure: FailureClass, phase: str | None, starts_with: str, numbers: dict[str, Any]
) -> None:
    found = classify_failure(lines(name))
    assert (found.failure, found.phase, found.numbers) == (failure, phase, numbers)
    assert (found.decisive_line or "").startswith(starts_with)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        # V0, 0.6.6: engine/llm_engine.py
        (
            "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be "
            "stored in KV cache (40960). Try increasing",
            FailureClass.KV_TOO_SMALL,
        ),
        # 0.7.3 and 0.9.2: v1/core/kv_cache_utils.py
        (
            "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GB KV cache is "
            "needed, which is larger than the available KV cache memory (5.00 GB). Try increasing",
            FailureClass.KV_TOO_SMALL,
        ),
        (
            "ValueError: No valid attention backend found for cuda with AttentionSelector",
            FailureClass.UNSUPPORTED,
        ),
        (
            "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
            FailureClass.UNSUPPORTED,
        ),
        (
            "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available",
            FailureClass.NO_KV_MEMORY,
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 42949672960 bytes. Error code 12 (Cannot allocate memory)",
            FailureClass.OOM_WEIGHTS,
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", FailureClass.OOM_WEIGHTS),
        ("KeyError: 'model.layers.0.mlp'", FailureClass.UNKNOWN),
    ],
)
def test_a_decisive_line(text: str, failure: FailureClass) -> None:
    found = classify_failure([f"(EngineCore pid=7) ERROR 11-29 12:57:42 [core.py:1510] {text}"])
    assert (found.failure, found.decisive_line) == (failure, text)


def test_the_three_lines_of_a_refused_value_are_one_cause() -> None:
    # As printed by vLLM 0.32.0 for --gpu-memory-utilization 1.7.
    found = classify_failure(
        [
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig",
            "gpu_memory_utilization",
            "  Input should be less than or equal to 1 [type=less_than_equal, input_value=1.7, input_type=float]",
            "    For further information visit https://errors.pydantic.dev/2.14/v/less_than_equal",
        ]
    )
    assert found.failure is FailureClass.BAD_FLAG
    assert found.decisive_line == (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig: gpu_memory_utilization: "
        "Input should be less than or equal to 1 [type=less_than_equal, input_value=1.7, input_type=float]"
    )


def test_a_warning_that_reads_like_an_error_decides_nothing() -> None:
    warning = "WARNING 11-29 15:05:29 [cpu.py:224] int8 KV cache is not supported on this platform"
    assert classify_failure([warning]).decisive_line is None


def test_what_vllm_prints_while_it_is_stopped_is_no_failure() -> None:
    crash = "(APIServer pid=1) ERROR 11-29 15:06:30 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: x"
    stopped, crashed = LogWatch(), LogWatch()
    for line in ("INFO:     Application startup complete.", "[kvplan] stopping vLLM", crash):
        stopped.feed(line)
    crashed.feed(crash)
    assert stopped.fatal_line is None
    assert stopped.failure() is None
    assert crashed.fatal_line is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("INFO 06-01 10:00:00 [kv_cache_utils.py:634] x", "x"),
        ("INFO 12-13 02:09:14 model_runner.py:1094] x", "x"),
        ("(VllmWorker rank=1 pid=2978) ERROR 03-19 07:27:53 [multiproc_executor.py:375] x", "x"),
        (
            "(EngineCore_DP0 pid=1) (RayWorkerWrapper pid=1463574, ip=192.168.10.60) INFO 03-27 10:29:01 [w.py:7] x",
            "x",
        ),
        ("\x1b[36m(EngineCore pid=7)\x1b[0;0m INFO 11-29 12:57:42 [core.py:1] x", "x"),
        ("(EngineCore pid=104) Process EngineCore:", "Process EngineCore:"),
        ("INFO:     Application startup complete.", "INFO:     Application startup complete."),
    ],
)
def test_the_message_behind_any_prefix(line: str, message: str) -> None:
    assert message_of(line) == message


@settings(deadline=None)
@given(st.lists(st.text(max_size=200), max_size=20))
def test_no_log_breaks_the_parser(text: list[str]) -> None:
    parse_startup(text)
    assert classify_failure(text).failure in FailureClass


def test_every_fact_is_one_of_the_record() -> None:
    patterns = log_patterns()
    all_gives = [*(p.gives for p in patterns.facts), *(p.gives for p in patterns.failures)]
    names = {gives.fact for several in all_gives for gives in several}
    assert names <= set(parse_startup([]).__slots__)


def test_a_growing_file_is_read_once_and_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    reader = LogReader(path)
    assert reader.new_lines() == []
    path.write_bytes(b"one\ntw")
    assert reader.new_lines() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert reader.new_lines() == ["two"]
    assert list(reader.last_lines()) == ["three"]


def test_a_line_of_5_mb_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_bytes(b"y" * 5_000_000 + b"\nValueError: No available memory for the cache blocks\n")
    long, decisive = LogReader(path).new_lines()
    assert len(long) == 16_384
    assert decisive.endswith("cache blocks")


def test_a_flood_is_passed_over_and_its_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    with path.open("wb") as file:
        file.truncate(3 * GIB)  # a hole: no disk is used
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    reader = LogReader(path)
    found = reader.new_lines()
    assert found[-1] == "the end"
    assert reader.skipped_bytes > 2 * GIB


def test_the_middle_of_a_huge_log_is_given_up_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    log = LogFile(path, max_bytes=KEPT_BYTES, kept_bytes=MIB)
    with path.open("ab", buffering=0) as vllm:
        vllm.write(b"begin\n" + b"x" * (2 * KEPT_BYTES))
        if not log.keep_small():
            pytest.skip("this file system can't make holes")
        vllm.write(b"\nend\n")
    assert path.stat().st_size == 6 + 2 * KEPT_BYTES + 5
    assert path.stat().st_blocks * 512 < 3 * MIB
    log.close_gap()
    kept = path.read_bytes()
    assert kept.startswith(b"begin\n")
    assert kept.endswith(b"\nend\n")
    # 1 MiB is kept at either end
    assert f"[kvplan] {6 + 2 * KEPT_BYTES + 5 - 2 * MIB} bytes of the log were dropped here".encode() in kept


def test_the_phases_of_a_start() -> None:
    watch = LogWatch()
    phases: list[str | None] = []
    for line in lines("cpu-0.32-started.log"):
        watch.feed(line)
        if watch.phase not in {None, *phases[-1:]}:
            phases.append(watch.phase)
    assert phases == ["weights", "profile", "kv_cache", "server", "serving"]


def test_the_death_of_a_process_is_the_cause_and_what_the_others_say_of_it_is_not() -> None:
    # vLLM 0.32.0 on CPU after kill -9 of its worker under load
    died = (
        "(EngineCore pid=5649) ERROR 11-29 19:27:07 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
        "unexpectedly (exit code: None), shutting down executor."
    )
    cancelled = "(EngineCore pid=5649) ERROR 11-29 19:27:07 [core.py:1512] RuntimeError: cancelled"
    told = classify_failure([died, cancelled])
    assert told.failure is FailureClass.UNKNOWN
    assert (told.decisive_line or "").startswith("Worker proc VllmWorker-0 died unexpectedly")
    nccl = "(Worker pid=7) ERROR 11-29 19:27:06 [x.py:1] RuntimeError: NCCL error: unhandled system error"
    assert "NCCL error" in (classify_failure([nccl, died, cancelled]).decisive_line or "")
