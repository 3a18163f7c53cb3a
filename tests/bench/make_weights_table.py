"""Ask vLLM's own model classes for the weights of every case and write tests/data/weights_table.jsonl.

Usage: python tests/bench/make_weights_table.py --oracle SCRIPT [--python PYTHON] [--limit N]

SCRIPT is a program that builds vLLM 0.32.0's own model class for a folder with a config.json (no GPU, no
weights) and prints, as one JSON object, what one tensor-parallel rank of each pipeline stage holds. Asking
takes about 8 seconds a case; the script resumes: cases that the table already holds are not asked again.

The table is a test's data: facts of vLLM 0.32.0, one line a case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests/data/configs"
TABLE = ROOT / "tests/data/weights_table.jsonl"

LLAMA = "meta-llama__Meta-Llama-3.1-8B"
QWEN = "Qwen__Qwen2.5-7B"
MIXTURE = "Qwen__Qwen3-30B-A3B"

KINDS = (
    LLAMA,
    MIXTURE,
    "Qwen__Qwen3-Next-80B-A3B-Instruct",
    "Qwen__Qwen3.5-35B-A3B",
    "deepseek-ai__DeepSeek-V3.2",
    "google__gemma-3-27b-it",
    "ibm-granite__granite-4.0-h-small",
    "meta-llama__Llama-4-Scout-17B-16E-Instruct",
    "mistralai__Mixtral-8x7B-v0.1",
    "moonshotai__Kimi-K2.5",
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "openai__gpt-oss-20b",
    "zai-org__GLM-4.5-Air",
)
"""One model of each kind: asked at tensor parallel sizes 1, 2, 4, 8 and in two pipeline stages."""

WHOLE = (
    "Qwen__Qwen2-7B",
    "Qwen__Qwen2.5-VL-7B-Instruct",
    "Qwen__Qwen3-0.6B",
    "Qwen__Qwen3-VL-8B-Instruct",
    "Qwen__Qwen3.5-27B",
    "Qwen__Qwen3.8-2.4T-A95B",
    "THUDM__glm-4-9b",
    "MiniMaxAI__MiniMax-M2.5",
    "ai21labs__AI21-Jamba-1.5-Mini",
    "deepseek-ai__DeepSeek-V2-Lite",
    "deepseek-ai__DeepSeek-V3",
    "deepseek-ai__DeepSeek-V4-Flash",
    "facebook__opt-125m",
    "google__gemma-2-9b",
    "google__gemma-3-4b-it",
    "google__gemma-4-26B-A4B",
    "ibm-granite__granite-4.0-h-1b",
    "microsoft__Phi-3-mini-4k-instruct",
    "microsoft__Phi-4-mini-instruct",
    "moonshotai__Kimi-K3",
    "nvidia__Nemotron-H-8B-Base-8K",
    "nvidia__Qwen3.6-27B-NVFP4",
    "openai-community__gpt2",
    "tiiuae__Falcon-H1-7B-Instruct",
    "tiiuae__falcon-40b",
    "zai-org__GLM-5",
    "zai-org__GLM-5.3",
)
"""Asked whole, and (most) on two ranks of two stages."""


def tensors(fmt: str, weights: dict[str, Any], ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
    """A compressed-tensors quantization_config with one group for all linear layers."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "ignore": list(ignore),
        "config_groups": {"group_0": group},
    }


def weights(bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    """The weights part of a config group."""
    return {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "symmetric": True,
        "dynamic": False,
        **more,
    }


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
NVFP4 = weights(4, "float", "tensor_group", group_size=16)
ROUTERS = ("lm_head", "re:.*mlp.gate$")
MODELOPT = {"quant_method": "modelopt", "ignore": ["lm_head"]}

QUANTISED: dict[str, tuple[str, dict[str, Any]]] = {
    "AWQ": (QWEN, AWQ),
    "GPTQ 4-bit": (QWEN, GPTQ),
    "GPTQ 8-bit": (QWEN, {**GPTQ, "bits": 8}),
    "INT4 packed": (LLAMA, tensors("pack-quantized", weights(4, "int", "group", group_size=128))),
    "INT4 packed, zero points": (
        LLAMA,
        tensors("pack-quantized", {**weights(4, "int", "group", group_size=128), "symmetric": False}),
    ),
    "INT8": (LLAMA, tensors("int-quantized", weights(8, "int", "channel"))),
    "FP8 channel": (LLAMA, tensors("float-quantized", weights(8, "float", "channel"))),
    "FP8 tensor": (LLAMA, tensors("float-quantized", weights(8, "float", "tensor"))),
    "FP8 block": (
        LLAMA,
        tensors("float-quantized", weights(8, "float", "block", block_structure=[128, 128])),
    ),
    "NVFP4": (LLAMA, tensors("nvfp4-pack-quantized", NVFP4)),
    "modelopt FP8": (LLAMA, {**MODELOPT, "quant_algo": "FP8"}),
    "modelopt NVFP4": (LLAMA, {**MODELOPT, "quant_algo": "NVFP4"}),
    "mixture, INT4 packed": (
        MIXTURE,
        tensors("pack-quantized", weights(4, "int", "group", group_size=128), ROUTERS),
    ),
    "mixture, FP8 channel": (MIXTURE, tensors("float-quantized", weights(8, "float", "channel"), ROUTERS)),
    "mixture, NVFP4": (MIXTURE, tensors("nvfp4-pack-quantized", NVFP4, ROUTERS)),
}
"""Name of the format -> (config, its quantization_config)."""


def cases() -> list[dict[str, Any]]:
    """Every question: config, what replaces its quantization_config, and the flags."""
    found = [
        {"config": name, "tp": tp, "pp": pp}
        for name in KINDS
        for tp, pp in ((1, 1), (2, 2), (4, 1), (8, 1))
        if not (name.startswith("nvidia__NVIDIA-Nemotron") and tp > 4)
    ]
    found += [{"config": name, "tp": tp, "pp": tp} for name in WHOLE for tp in (1, 2)]
    found += [
        {"config": name, "tp": 1, "pp": 1, "format": label, "quantization_config": quant}
        for label, (name, quant) in QUANTISED.items()
    ]
    found.append({"config": "openai__gpt-oss-20b", "tp": 1, "pp": 1, "gpu": "a100-80"})
    return found


def key(case: dict[str, Any]) -> tuple[Any, ...]:
    """What tells two cases apart."""
    return case["config"], case["tp"], case["pp"], case.get("format"), case.get("gpu", "h100")


def ask(case: dict[str, Any], python: str, script: str) -> dict[str, Any]:
    """The row of a case: its stages as vLLM's classes build them, or vLLM's refusal."""
    config = json.loads((CONFIGS / f"{case['config']}.json").read_text())
    if "quantization_config" in case:
        config["quantization_config"] = case["quantization_config"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        argv = [python, script, folder, "--gpu", case.get("gpu", "h100")]
        argv += ["--tp", str(case["tp"]), "--pp", str(case["pp"])]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    answer = json.loads(done.stdout)
    stages = answer.get("weights_per_rank_before_postprocessing")
    if stages is None:
        return {**case, "error": answer["error"]["message"].splitlines()[0]}
    kept = ("parameters", "parameter_bytes", "buffer_bytes")
    return {**case, "stages": [{name: stage[name] for name in kept} for stage in stages]}


def main() -> None:
    """Ask what the table lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--oracle", required=True, help="the program that asks vLLM's classes")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has vLLM 0.32.0")
    parser.add_argument("--limit", type=int, default=1000, help="ask at most this many")
    options = parser.parse_args()
    rows = [json.loads(line) for line in TABLE.read_text().splitlines()] if TABLE.exists() else []
    known = {key(row) for row in rows}
    missing = [case for case in cases() if key(case) not in known][: options.limit]
    for number, case in enumerate(missing, 1):
        row = ask(case, options.python, options.oracle)
        print(f"{number}/{len(missing)} {key(case)} {row.get('error') or 'asked'}", flush=True)
        with TABLE.open("a") as table:
            table.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
