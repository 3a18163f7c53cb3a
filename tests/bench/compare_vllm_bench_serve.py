"""Do kvplan's throughput, TTFT and TPOT agree with `vllm bench serve`'s? Same server, same prompts, in turns.

Starts real vLLM (the demo model, on the CPU, prefix caching off), then runs blocks of kvplan, vllm, vllm,
kvplan. The difference is judged against the spread of kvplan against itself within the same blocks.

    python -m tests.bench.compare_vllm_bench_serve [--blocks 10] [--users 16] [--requests 48]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvplan.config.serving import ServingConfig
from kvplan.engine.demo_model import make_demo_model
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine
from tests.bench.load_clients import Client, Job

FIGURES = {
    "output_throughput": "output tokens/s",
    "request_throughput": "requests/s",
    "median_ttft_ms": "TTFT median ms",
    "median_tpot_ms": "TPOT median ms",
    "median_e2el_ms": "E2EL median ms",
}
LIMIT = 0.05


def main() -> int:
    """Print every run and the table; 1 if a difference is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--save", type=Path, help="write every run as a JSON line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_demo_model()
        settings = ServingConfig(
            max_model_len=2048,
            max_num_seqs=max(32, options.users),
            kv_cache_memory_bytes=64 << 20,
            enforce_eager=True,
            # The two clients send the same prompts: the second one must not find them in the cache.
            enable_prefix_caching=False,
        )
        plan = LaunchPlan(str(model), settings, "cpu", Path(folder))
        with running_engine(plan, on_event=lambda event: print(event.text, flush=True)) as engine:
            job = Job(
                url=engine.base_url,
                model=engine.served_model_name,
                tokenizer=str(model),
                api_key=engine.api_key,
                concurrency=options.users,
                num_requests=options.requests,
                input_len=options.input_len,
                output_len=options.output_len,
                first_token_id=25,
                last_token_id=233,
                salt=0,
            )
            blocks = run_blocks(job, options.blocks)
    if options.save:
        options.save.write_text("".join(json.dumps(block) + "\n" for block in blocks))
    return judge(blocks, options)


def run_blocks(job: Job, count: int) -> list[list[dict[str, Any]]]:
    """Blocks of kvplan, vllm, vllm, kvplan on the running server, after one discarded run of each."""
    core = 1 if (os.cpu_count() or 1) > 1 else None
    clients = {"kvplan": Client("kvplan", core), "vllm": Client("vllm", core)}
    blocks = []
    try:
        for client in clients.values():
            client.run(job)
        for number in range(count):
            block = []
            for name in ("kvplan", "vllm", "vllm", "kvplan"):
                result = clients[name].run(job)
                if result["failed"] or result["completed"] != job.num_requests:
                    raise SystemExit(f"{name}: {result['failed']} requests failed")
                row = {"client": name} | {figure: result[figure] for figure in FIGURES}
                row["total_output_tokens"] = result["total_output_tokens"]
                row["total_input_tokens"] = result["total_input_tokens"]
                block.append(row)
                print(
                    f"block {number + 1}", *(f"{k} {_short(v)}" for k, v in row.items()), sep="  ", flush=True
                )
            blocks.append(block)
    finally:
        for client in clients.values():
            client.close()
    return blocks


def judge(blocks: list[list[dict[str, Any]]], options: argparse.Namespace) -> int:
    """Print the table; 1 if a difference is above the larger of 5 % and kvplan's own spread."""
    pairs = 2 * len(blocks)
    print(
        f"\n{options.users} users, {options.requests} requests of {options.input_len} tokens in and "
        f"{options.output_len} out, {pairs} pairs in blocks of kvplan, vllm, vllm, kvplan\n"
    )
    print("| figure | kvplan | vllm bench serve | difference | kvplan against itself | limit | |")
    print("| :-- | --: | --: | --: | --: | --: | :-- |")
    good = True
    for figure, title in FIGURES.items():
        ours = [run[figure] for block in blocks for run in (block[0], block[3])]
        theirs = [run[figure] for block in blocks for run in (block[1], block[2])]
        # A pair is two runs that follow one another; the median of the pairs' differences.
        difference = statistics.median(a / b - 1 for a, b in zip(ours, theirs, strict=True))
        spread = statistics.median(abs(block[3][figure] / block[0][figure] - 1) for block in blocks)
        limit = max(LIMIT, spread)
        within = abs(difference) <= limit
        good = good and within
        medians = f"{statistics.median(ours):.2f} | {statistics.median(theirs):.2f}"
        verdict = "agrees" if within else "DIFFERS"
        print(f"| {title} | {medians} | {difference:+.1%} | {spread:.1%} | {limit:.1%} | {verdict} |")
    tokens = {(run["total_input_tokens"], run["total_output_tokens"]) for block in blocks for run in block}
    print(f"\ntokens of every run, as the server counted them: {sorted(tokens)}")
    return 0 if good and len(tokens) == 1 else 1


def _short(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
