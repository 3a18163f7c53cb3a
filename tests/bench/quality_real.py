"""The quality verdict on real vLLM for one model: the unquantised cache twice, then each quantised one.

    python tests/bench/quality_real.py [--model demo|needle|FOLDER] [--max-model-len 1024] [--dtypes auto,fp8]

`demo` has random weights, `needle` finds facts (tests/needle_model.py). One launch each. A candidate `auto`
is the control: another launch of the reference itself.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.config.serving import ServingConfig
from kvplan.engine.demo_model import default_folder, make_demo_model
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine
from kvplan.load.records import Endpoint
from kvplan.quality.judge import judge
from kvplan.quality.prober import sample_quality
from kvplan.report.quality import HEADER, LEFT, quality_line, quality_rows
from kvplan.report.table import render_table
from kvplan.tune.answers import QualityFinding
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.quality.sample import QualitySample


def sampled(model: str, max_model_len: int, dtype: str, *, with_repeat: bool) -> QualitySample:
    """One launch on CPU, asked once or twice."""
    flags = {
        "kv_cache_memory_bytes": 128 * MIB,
        "max_model_len": max_model_len,
        "kv_cache_dtype": dtype,
        "max_num_seqs": 8,
        "block_size": 128,
        "enforce_eager": True,
    }
    with tempfile.TemporaryDirectory() as folder:
        plan = LaunchPlan(
            model=model,
            settings=ServingConfig().with_flags(**flags),
            device="cpu",
            card_bytes=4 * GIB,
            work_dir=Path(folder),
            ready_timeout_s=300,
        )
        with running_engine(plan) as engine:
            endpoint = Endpoint(engine.base_url, engine.served_model_name, engine.api_key)
            return asyncio.run(sample_quality(endpoint, max_model_len, with_repeat=with_repeat))


def main() -> None:
    """Launch, ask, judge, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--dtypes", default="auto,fp8,fp8_e5m2")
    args = parser.parse_args()
    model = args.model
    if model == "demo":
        model = str(make_demo_model())
    elif model == "needle":
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from needle_model import make_needle_model  # type: ignore[import-not-found]  # beside the benches

        model = str(make_needle_model(default_folder() / "needle"))
    base = sampled(model, args.max_model_len, "auto", with_repeat=True)
    print(f"reference: {base.seconds:.1f} s, passages of {base.text_tokens} tokens, ", end="")
    print(f"needles in up to {base.context_tokens}; {base.error or 'no error'}")
    for number, dtype in enumerate(args.dtypes.split(","), start=2):
        sample = sampled(model, args.max_model_len, dtype, with_repeat=False)
        finding = QualityFinding(dtype, 1, number, judge(base, sample))
        print(f"\n{dtype}: {sample.seconds:.1f} s, {sample.error or 'no error'}")
        print(
            f"{render_table(HEADER, quality_rows([finding]), left=LEFT)}\n  {quality_line(finding)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
