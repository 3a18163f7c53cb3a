"""Do kvplan's throughput, TTFT and TPOT agree with `vllm bench serve`'s? Same server, same prompts, in turns.

Starts real vLLM (the demo model, on the CPU, prefix caching off), then runs blocks of kvplan, vllm, vllm,
kvplan. The difference is judged against the spread of kvplan against itself within the same blocks.

On a machine that others use too, two runs that follow one another differ by a third whatever client measures
them. With --together the two clients load the server at the same time, half of the users each, and so see the
same server; kvplan beside a second kvplan gives the spread. Only throughput and E2EL can be compared so: the
client that is quicker to send its next request stands before the other in the server's queue.

    python -m tests.bench.compare_vllm_bench_serve [--together] [--blocks 10] [--users 16] [--requests 64]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kvplan.config.serving import ServingConfig
from kvplan.engine.demo_model import make_demo_model
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine
from tests.bench.load_clients import Client, Job

Block = list[dict[str, Any]]

FIGURES = {
    "output_throughput": "output tokens/s",
    "request_throughput": "requests/s",
    "median_ttft_ms": "TTFT median ms",
    "median_tpot_ms": "TPOT median ms",
    "median_e2el_ms": "E2EL median ms",
}
FIGURES_TOGETHER = ("output_throughput", "request_throughput", "median_e2el_ms")
LIMIT = 0.05
CORE = 1 if (os.cpu_count() or 1) > 1 else None
"""Of the clients; vLLM's threads have core 0."""


def main() -> int:
    """Print every run and the table; 1 if a difference is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64, help="of each run")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--save", type=Path, help="write every block as a JSON line")
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
            blocks = (run_together if options.together else run_in_turns)(job, options.blocks)
    if options.save:
        options.save.write_text("".join(json.dumps(block) + "\n" for block in blocks))
    return judge(blocks, options)


def run_in_turns(job: Job, count: int) -> list[Block]:
    """Blocks of kvplan, vllm, vllm, kvplan, after one discarded run of each."""
    clients = {"kvplan": Client("kvplan", CORE), "vllm": Client("vllm", CORE)}
    try:
        for client in clients.values():
            client.run(job)
        return [
            [_row(number, name, clients[name].run(job), job) for name in ("kvplan", "vllm", "vllm", "kvplan")]
            for number in range(count)
        ]
    finally:
        for client in clients.values():
            client.close()


def run_together(job: Job, count: int) -> list[Block]:
    """Blocks of kvplan beside vllm, then kvplan beside kvplan, after one discarded run of each."""
    ours, theirs, second = Client("kvplan", CORE), Client("vllm", CORE), Client("kvplan", CORE)
    half = dataclasses.replace(job, concurrency=job.concurrency // 2)
    blocks: list[Block] = []
    try:
        for client in (ours, theirs, second):
            client.run(half)
        for number in range(count):
            blocks.append([])
            for pair in ((ours, theirs), (ours, second)):
                # Prepared first (vLLM's client loads its tokenizer), begun together.
                start_at = time.time() + 3.0
                for client in pair if number % 2 == 0 else pair[::-1]:
                    client.begin(dataclasses.replace(half, start_at=start_at))
                blocks[-1] += [_row(number, client.name, client.result(), half) for client in pair]
    finally:
        for client in (ours, theirs, second):
            client.close()
    return blocks


def _row(number: int, name: str, result: dict[str, Any], job: Job) -> dict[str, Any]:
    if result["failed"] or result["completed"] != job.num_requests:
        raise SystemExit(f"{name}: {result['failed']} requests failed")
    kept = (*FIGURES, "total_input_tokens", "total_output_tokens")
    row = {"client": name} | {figure: result[figure] for figure in kept}
    print(f"block {number + 1}", *(f"{k} {_short(v)}" for k, v in row.items()), sep="  ", flush=True)
    return row


def judge(blocks: list[Block], options: argparse.Namespace) -> int:
    """Print the table; 1 if a difference is above the larger of 5 % and kvplan's own spread."""
    each = f"{options.requests} requests of {options.input_len} tokens in and {options.output_len} out a run"
    if options.together:
        print(
            f"\n2 x {options.users // 2} users at the same time, {each}, {len(blocks)} pairs of each kind\n"
        )
    else:
        print(f"\n{options.users} users, {each}, {2 * len(blocks)} pairs in turns\n")
    print("| figure | kvplan | vllm bench serve | difference | kvplan against itself | limit | |")
    print("| :-- | --: | --: | --: | --: | --: | :-- |")
    # Places in a block of (kvplan, vllm) that belong together, and of two runs of kvplan.
    different = [(0, 1)] if options.together else [(0, 1), (3, 2)]
    same = (2, 3) if options.together else (0, 3)
    good = True
    for figure in FIGURES_TOGETHER if options.together else FIGURES:
        pairs = [
            (block[ours][figure], block[theirs][figure]) for block in blocks for ours, theirs in different
        ]
        difference = statistics.median(ours / theirs - 1 for ours, theirs in pairs)
        spread = statistics.median(
            abs(block[same[0]][figure] / block[same[1]][figure] - 1) for block in blocks
        )
        limit = max(LIMIT, spread)
        good = good and abs(difference) <= limit
        medians = " | ".join(f"{statistics.median(side):.2f}" for side in zip(*pairs, strict=True))
        verdict = "agrees" if abs(difference) <= limit else "DIFFERS"
        print(
            f"| {FIGURES[figure]} | {medians} | {difference:+.1%} | {spread:.1%} | {limit:.1%} | {verdict} |"
        )
    tokens = {(run["total_input_tokens"], run["total_output_tokens"]) for block in blocks for run in block}
    print(f"\ntokens of every run, as the server counted them: {sorted(tokens)}")
    return 0 if good and len(tokens) == 1 else 1


def _short(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
