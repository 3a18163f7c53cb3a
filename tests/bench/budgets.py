"""Importing the memory model and computing 100,000 budgets in one process.

    python tests/bench/budgets.py [--count 100000]

The settings walk a grid as the search does: utilisation x max_num_seqs x kv_cache_dtype x block_size.
"""

from __future__ import annotations

import argparse
import itertools
import time


def main() -> None:
    begin = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    count = parser.parse_args().count

    from kvplan.config.serving import ServingConfig
    from kvplan.planning import PlanRequest, plan_for

    planner = plan_for(PlanRequest(model="qwen2-7b", gpu="4090", vllm_version="0.32.0")).planner
    imported = time.perf_counter()
    grid = itertools.cycle(
        ServingConfig(
            gpu_memory_utilization=0.5 + 0.001 * step,
            max_num_seqs=seqs,
            kv_cache_dtype=dtype,
            block_size=block,
            max_model_len=8192,
        )
        for step in range(450)
        for seqs in (16, 32, 64, 128)
        for dtype in ("auto", "fp8")
        for block in (16, 32)
    )
    cpu = time.process_time()
    starts = sum(planner.estimate(next(grid)).verdict.starts == "yes" for _ in range(count))
    done = time.perf_counter()
    print(f"import and profiles {imported - begin:.3f} s")
    cpu = time.process_time() - cpu
    print(f"{count:,} budgets {done - imported:.2f} s, {cpu:.2f} s of CPU ({1e6 * cpu / count:.1f} us each)")
    print(f"{starts:,} of them start")


if __name__ == "__main__":
    main()
