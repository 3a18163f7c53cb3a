"""Ask real vLLM, one engine after the other in this process, for its KV cache: run by test_kv_cache_real.py.

Reads a JSON list of cases from standard input ({"name", "config", "flags"}), writes one JSON line a case:
blocks, block size and the figures that vLLM prints, or the error that it stops with.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any


def ask(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Build the engine of one case."""
    from vllm import LLM
    from vllm.model_executor.models import ModelRegistry

    (folder / "config.json").write_text(json.dumps(case["config"]))
    architecture = case["config"]["architectures"][0]
    # The class itself in the registry: else vLLM looks at it in a process of its own (10 s a model).
    ModelRegistry.register_model(architecture, ModelRegistry.models[architecture].load_model_cls())
    flags = {"enforce_eager": True, "max_model_len": 2048, "max_num_seqs": 16, "max_num_batched_tokens": 2048}
    engine = LLM(model=str(folder), load_format="dummy", skip_tokenizer_init=True, **flags | case["flags"])
    cache = engine.llm_engine.vllm_config.cache_config
    return {
        "num_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "kv_cache_tokens": cache.kv_cache_size_tokens,
        "max_concurrency": cache.kv_cache_max_concurrency,
    }


def main() -> None:
    """One line a case."""
    warnings.simplefilter("ignore")
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_LOGGING_STREAM="ext://sys.stderr",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
    )
    cases = json.load(sys.stdin)
    from vllm.distributed import cleanup_dist_env_and_memory

    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                answer = ask(case, Path(folder))
            except Exception as error:  # noqa: BLE001  whatever vLLM stops with is the answer
                answer = {"error": str(error)}
        print(json.dumps({"name": case["name"], **answer}), flush=True)
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
