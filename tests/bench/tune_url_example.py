"""Makes docs/examples/tune-url.txt: one real vLLM on the CPU, measured by `kvplan tune --url` while it runs.

python -m tests.bench.tune_url_example --output docs/examples/tune-url.txt
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kvplan.config.serving import ServingConfig
from kvplan.engine.demo_model import make_demo_model
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine
from kvplan.load.cores import client_off

ASKED = ("--input-len", "256", "--output-len", "64", "--target-concurrency", "8", "--ttft-p99-ms", "400")


def main() -> None:
    """Launch, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--runs-dir", type=Path)
    options = parser.parse_args()
    # 2,048 B a token: 65 blocks of 128 tokens hold 21 requests of 320 tokens.
    settings = ServingConfig(
        max_model_len=2048,
        max_num_seqs=64,
        kv_cache_memory_bytes=65 * 128 * 2048,
        enforce_eager=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        plan = LaunchPlan(
            str(make_demo_model()), settings, "cpu", Path(scratch), served_model_name="demo", port=8000
        )
        with running_engine(plan) as engine, client_off("0"):
            shown = ["kvplan", "tune", "--url", engine.base_url, *ASKED]
            done = subprocess.run(
                [sys.executable, "-m", *shown, "--runs-dir", str(options.runs_dir or scratch)],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                env=os.environ | {"VLLM_API_KEY": engine.api_key},
            )
            engine.check()
    text = f"$ {' '.join(shown)}\n{done.stdout}"
    if options.output is not None:
        options.output.write_text(text)
    print(text, f"exit code {done.returncode}", sep="\n")


if __name__ == "__main__":
    main()
