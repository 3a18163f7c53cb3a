"""Ask vLLM's own classes for the KV cache of every case and write tests/data/kv_table.jsonl.

Usage: python tests/bench/make_kv_table.py --oracle SCRIPT --python PYTHON [--limit N] [--raw DIR]

SCRIPT is a program that builds vLLM 0.32.0's own configuration, model and KV-cache classes for a folder with
a config.json (no GPU, no weights) and prints what they answer as one JSON object. Asking takes 7 to 12
seconds a case; the script resumes: cases that the table already holds are not asked again.

The table is a test's data: facts of vLLM 0.32.0, one line a case.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests/data/configs"
MADE_CONFIGS = ROOT / "tests/data/made_configs"
"""Small configs made for the kinds that no public config here has."""
TABLE = ROOT / "tests/data/kv_table.jsonl"
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """One question: a config of tests/data/configs, a card, and vLLM flags."""

    config: str
    gpu: str = "h100"
    flags: tuple[tuple[str, Any], ...] = ()
    available: int = 40 * GIB
    overrides: tuple[tuple[str, Any], ...] = field(default=())
    """Keys of config.json that are changed for this case."""

    @property
    def id(self) -> str:
        """What the table and the tests call it."""
        parts = [self.config, self.gpu, *(f"{k}={v}" for k, v in self.flags)]
        if self.available != 40 * GIB:
            parts.append(f"avail={self.available}")
        parts += [f"{k}:={v}" for k, v in self.overrides]
        return " ".join(parts)

    def argv(self, folder: Path) -> list[str]:
        """The asked program's arguments."""
        argv = [str(folder), "--available-kv-bytes", str(self.available)]
        argv += ["--platform", "cpu"] if self.gpu == "cpu" else ["--gpu", self.gpu]
        for name, value in self.flags:
            option = "--" + name.replace("_", "-")
            if value is True:
                argv.append(option)
            elif isinstance(value, tuple):
                argv += [option, *map(str, value)]
            else:
                argv += [option, str(value)]
        return argv


KINDS = {
    # kind: (config, dtypes, block sizes): the full product of dtype, TP and block size
    "full": (
        "meta-llama__Meta-Llama-3.1-8B",
        ("auto", "fp8", "int8_per_token_head", "turboquant_4bit_nc"),
        (None, 32, 128),
    ),
    "sliding": ("openai__gpt-oss-20b", ("auto", "fp8", "int4_per_token_head"), (None, 64)),
    "chunked": ("meta-llama__Llama-4-Scout-17B-16E-Instruct", ("auto", "fp8"), (None, 64)),
    "mla": ("deepseek-ai__DeepSeek-V2-Lite", ("auto", "fp8"), (None, 16, 128)),
    "mla_indexer": ("deepseek-ai__DeepSeek-V3.2", ("auto", "fp8"), (None, 128)),
    "gdn": ("Qwen__Qwen3-Next-80B-A3B-Instruct", ("auto", "fp8"), (None, 1024)),
    "mamba2": ("nvidia__Nemotron-H-8B-Base-8K", ("auto", "fp8", "int8_per_token_head"), (None, 64)),
}


def product_cases() -> list[Case]:
    """dtype x TP x block size for one model of each kind."""
    cases = []
    for config, dtypes, sizes in KINDS.values():
        for dtype, ranks, size in product(dtypes, (1, 2, 4, 8), sizes):
            flags: list[tuple[str, Any]] = [("tp", ranks), ("kv_cache_dtype", dtype)]
            flags += [("block_size", size)] if size is not None else []
            flags += [("max_model_len", 131072)] if "Scout" in config else []
            cases.append(Case(config, flags=tuple(flags)))
    return cases


def default_cases() -> list[Case]:
    """Every config with defaults; where one request does not fit, once more with room for it."""
    return [Case(path.stem) for path in sorted(CONFIGS.glob("*.json"))]


LLAMA, QWEN7, PHI4 = "meta-llama__Meta-Llama-3.1-8B", "Qwen__Qwen2.5-7B", "microsoft__phi-4"
PHI3, QWEN2 = "microsoft__Phi-3-mini-4k-instruct", "Qwen__Qwen2-0.5B-Instruct"
GEMMA2, GEMMA3, GEMMA3_1B, GEMMA3_12B, GEMMA4 = (
    "google__gemma-2-9b",
    "google__gemma-3-27b-it",
    "google__gemma-3-1b-it",
    "google__gemma-3-12b-it",
    "google__gemma-4-26B-A4B",
)
MISTRAL, OSS, SCOUT = (
    "mistralai__Mistral-7B-v0.1",
    "openai__gpt-oss-20b",
    "meta-llama__Llama-4-Scout-17B-16E-Instruct",
)
V2_LITE, V32, V4, GLM5 = (
    "deepseek-ai__DeepSeek-V2-Lite",
    "deepseek-ai__DeepSeek-V3.2",
    "deepseek-ai__DeepSeek-V4-Flash",
    "zai-org__GLM-5.2",
)
NEXT80, JAMBA, GRANITE, FALCON_H1, NEMOTRON, QWEN35 = (
    "Qwen__Qwen3-Next-80B-A3B-Instruct",
    "ai21labs__AI21-Jamba-1.5-Mini",
    "ibm-granite__granite-4.0-h-small",
    "tiiuae__Falcon-H1-7B-Instruct",
    "nvidia__Nemotron-H-8B-Base-8K",
    "Qwen__Qwen3.5-27B",
)


def flags(**given: Any) -> tuple[tuple[str, Any], ...]:
    """Flags of a case."""
    return tuple(given.items())


def dense_cases() -> list[Case]:
    """dtypes, cards, block sizes, parallelism and limits, on full attention."""
    dtypes = (
        "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int4_per_token_head", "nvfp4",
        "turboquant_k8v4", "turboquant_k3v4_nc", "turboquant_3bit_nc", "fp8_ds_mla", "nvfp4_4over6",
        "nvfp4_ds_mla", "fp8_inc", "ultraquant_4bit",
    )  # fmt: skip
    cases = [Case(LLAMA, flags=flags(kv_cache_dtype=dtype)) for dtype in dtypes]
    cases += [
        Case(LLAMA, gpu, flags(kv_cache_dtype=dtype, max_model_len=32768))
        for gpu in ("t4", "a100-80", "l4", "rtx4090", "b200", "rtx5090")
        for dtype in ("auto", "fp8", "int8_per_token_head", "nvfp4")
        if not (gpu == "rtx4090" and dtype != "fp8")
    ]
    cases += [
        Case(LLAMA, "v100", flags(kv_cache_dtype="fp8_e5m2", dtype="float16")),
        Case(LLAMA, "a10", flags(kv_cache_dtype="fp8_per_token_head", max_model_len=32768)),
        Case(LLAMA, "a10", flags(kv_cache_dtype="fp8_e5m2", max_model_len=32768)),
        Case(LLAMA, "b200", flags(kv_cache_dtype="nvfp4_4over6")),
        Case(LLAMA, "b200", flags(block_size=256)),
        Case(LLAMA, flags=flags(block_size=8)),
        Case(LLAMA, flags=flags(block_size=48)),
        Case(LLAMA, flags=flags(block_size=256, kv_cache_dtype="fp8_e5m2")),
        Case(LLAMA, flags=flags(pp=2, tp=2)),
        Case(LLAMA, flags=flags(pp=3)),
        Case(LLAMA, flags=flags(pp=5)),
        Case(LLAMA, flags=flags(tp=16)),
        Case(LLAMA, flags=flags(tp=16, dcp=2)),
        Case(LLAMA, flags=flags(tp=8, dcp=2)),
        Case(LLAMA, flags=flags(tp=3)),
        Case(LLAMA, flags=flags(max_model_len="auto"), available=2 * 10**9),
        Case(LLAMA, available=10**9),
        Case(LLAMA, available=10**6),
        Case(LLAMA, available=17179869184),
        Case(LLAMA, available=17179869184 + 2097152),
        Case(LLAMA, flags=flags(num_gpu_blocks_override=9000)),
        Case(LLAMA, flags=flags(num_gpu_blocks_override=900)),
        Case(LLAMA, flags=flags(max_num_batched_tokens=2048)),
        Case(LLAMA, flags=flags(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=(0, 31))),
        # Layers that do not exist: nothing is skipped, and a block is aligned all the same.
        Case(LLAMA, flags=flags(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=(99,))),
        Case(LLAMA, flags=flags(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=(0, 99))),
        Case(LLAMA, flags=flags(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("sliding_window",))),
        Case(
            NEXT80,
            flags=flags(max_model_len=32768, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=(0,)),
        ),
        Case(LLAMA, flags=flags(kv_cache_dtype="int8_per_token_head", kv_cache_dtype_skip_layers=(0, 1))),
        Case(LLAMA, flags=flags(kv_cache_dtype="nvfp4", kv_cache_dtype_skip_layers=(3,)), gpu="b200"),
        Case(LLAMA, flags=flags(attention_backend="FLASHINFER")),
        Case(LLAMA, flags=flags(attention_backend="TRITON_ATTN", kv_cache_dtype="fp8")),
        Case(LLAMA, flags=flags(attention_backend="FLASH_ATTN", kv_cache_dtype="fp8_e5m2")),
        Case(LLAMA, flags=flags(dtype="float32")),
        Case(QWEN7, flags=flags(tp=8)),
        Case(QWEN7, flags=flags(tp=4)),
        Case(PHI4, flags=flags(tp=4)),
        Case(PHI4, flags=flags(tp=5)),
        Case(PHI3, "a10", flags(kv_cache_dtype="fp8")),
        Case(PHI3, flags=flags(kv_cache_dtype="fp8")),
        Case(PHI3, flags=flags(kv_cache_dtype="turboquant_4bit_nc")),
        Case("nvidia__Qwen3.6-27B-NVFP4", "b200", flags(max_model_len=32768)),
        Case(QWEN2, flags=flags(kv_cache_dtype="nvfp4")),
        Case(QWEN2, flags=flags(tp=4)),
    ]  # fmt: skip
    return cases


def window_cases() -> list[Case]:
    """Sliding windows and chunks: batch size, scheduling, manager, stages, cards, skipped layers."""
    cases = []
    windows = (
        GEMMA2,
        GEMMA3,
        MISTRAL,
        OSS,
        GEMMA3_1B,
        GEMMA4,
        SCOUT,
    )
    for config in windows:
        short = (("max_model_len", 8192 if config == GEMMA2 else 32768),)
        cases += [
            Case(config, flags=(*short, ("max_num_batched_tokens", 2048))),
            Case(config, flags=(*short, ("no_async_scheduling", True))),
            Case(config, flags=(*short, ("disable_hybrid_kv_cache_manager", True))),
            Case(config, flags=(*short, ("pp", 2))),
            Case(config, "a100-80", short),
            Case(config, "b200", short),
            Case(
                config,
                flags=(
                    *short,
                    ("kv_cache_dtype", "fp8"),
                    ("kv_cache_dtype_skip_layers", ("sliding_window",)),
                ),
            ),
        ]
    cases += [
        Case(GEMMA2, "b200", flags(attention_backend="FLASH_ATTN")),
        Case(GEMMA3_12B, "b200", flags(max_model_len=32768, kv_cache_dtype="fp8")),
        Case(GEMMA3_12B, flags=flags(max_model_len=32768, kv_cache_dtype="fp8")),
        Case(GEMMA3_1B, "b200", flags(attention_backend="FLASH_ATTN")),
        Case(GEMMA3_1B, flags=flags(block_size=256)),
        Case(GEMMA3_1B, flags=flags(kv_cache_dtype="fp8_e5m2", block_size=128)),
        Case(GEMMA2, flags=flags(dtype="float16")),
        Case(GEMMA4, flags=flags(max_model_len=32768, kv_cache_dtype="fp8")),
        Case(GEMMA4, flags=flags(max_model_len=32768, kv_cache_dtype="int8_per_token_head")),
        Case(GEMMA4, flags=flags(max_model_len=32768, tp=4)),
        Case(MISTRAL, flags=flags(block_size=128)),
        Case(MISTRAL, flags=flags(max_model_len="auto"), available=2 * 10**9),
        Case(GEMMA3, flags=flags(max_model_len="auto"), available=8 * 10**9),
        Case(OSS, "a100-80", flags(kv_cache_dtype="fp8")),
        Case(OSS, "rtx5090", flags(kv_cache_dtype="fp8")),
        Case(OSS, flags=flags(kv_cache_dtype="turboquant_4bit_nc")),
        Case("openai__gpt-oss-120b", flags=flags(tp=8)),
        Case("openai__gpt-oss-120b", flags=flags(pp=4)),
    ]
    return cases


def latent_cases() -> list[Case]:
    """MLA, MLA with an indexer, DeepSeek-V4."""
    return [
        Case(V2_LITE, flags=flags(dcp=8, tp=8)),
        Case(V2_LITE, flags=flags(pp=4)),
        Case(V2_LITE, "a100-80", flags(kv_cache_dtype="fp8")),
        Case(V2_LITE, "b200"),
        Case(V2_LITE, "rtx5090", flags(kv_cache_dtype="fp8")),
        Case(V2_LITE, "t4", flags(max_model_len=8192, dtype="float16")),
        Case(V2_LITE, flags=flags(kv_cache_dtype="nvfp4")),
        Case(V2_LITE, flags=flags(kv_cache_dtype="int8_per_token_head")),
        Case(V2_LITE, flags=flags(kv_cache_dtype="fp8_e5m2")),
        Case(V2_LITE, flags=flags(kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=(0, 26))),
        Case(V2_LITE, flags=flags(kv_cache_dtype="turboquant_4bit_nc")),
        Case("deepseek-ai__DeepSeek-V3", flags=flags(tp=8, dcp=8)),
        Case("deepseek-ai__DeepSeek-R1", flags=flags(tp=8, kv_cache_dtype="fp8_e5m2")),
        Case(V32, "b200", flags(tp=8)),
        Case(V32, "b200", flags(tp=8, kv_cache_dtype="fp8")),
        Case(V32, "b200", flags(tp=8, kv_cache_dtype="nvfp4_ds_mla")),
        Case(V32, "rtx5090", flags(max_model_len=32768)),
        Case(V32, "a100-80", flags(tp=8)),
        Case(V32, flags=flags(tp=8, kv_cache_dtype="fp8_ds_mla")),
        Case(V32, flags=flags(tp=8, kv_cache_dtype="bfloat16")),
        Case(V32, flags=flags(tp=8, block_size=16)),
        Case(V32, flags=flags(tp=8, pp=2)),
        Case(GLM5, "b200", flags(tp=8, max_model_len=65536)),
        Case(GLM5, flags=flags(tp=8, max_model_len=65536)),
        Case("zai-org__GLM-5", "b200", flags(tp=8, max_model_len=65536)),
        Case(V4, flags=flags(max_model_len=32768)),
        Case(V4, flags=flags(max_model_len=32768, tp=4)),
        Case(V4, flags=flags(max_model_len=32768, pp=2)),
        Case(V4, flags=flags(max_model_len=32768, block_size=512)),
        Case(V4, flags=flags(max_model_len=32768, block_size=64)),
        Case(V4, flags=flags(max_model_len=32768, kv_cache_dtype="bfloat16")),
        Case(V4, "b200", flags(max_model_len=32768)),
        Case(V4, flags=flags(max_model_len=32768, max_num_batched_tokens=2048)),
    ]


def recurrent_cases() -> list[Case]:
    """Hybrids: prefix caching, stages, cards, state dtypes, cache dtypes."""
    cases = []
    for config in (NEXT80, JAMBA, GRANITE, FALCON_H1, NEMOTRON, QWEN35):
        short = (("max_model_len", 8192 if config == NEMOTRON else 32768),)
        cases += [
            Case(config, flags=(*short, ("no_prefix_caching", True))),
            Case(config, flags=(*short, ("pp", 2))),
            Case(config, flags=(*short, ("tp", 4 if config == FALCON_H1 else 8))),
            Case(config, "a100-80", short),
            Case(config, flags=(*short, ("set", 'mamba_ssm_cache_dtype="float16"'))),
            Case(config, flags=(*short, ("kv_cache_dtype", "turboquant_4bit_nc"))),
            Case(config, flags=(*short, ("kv_cache_dtype", "nvfp4"))),
        ]
    cases += [
        Case(NEXT80, "b200", flags(max_model_len=32768)),
        Case(NEXT80, flags=flags(max_model_len=32768, disable_hybrid_kv_cache_manager=True)),
        Case(NEXT80, flags=flags(max_model_len=32768, kv_cache_dtype="fp8_e5m2")),
        Case(
            NEXT80, flags=flags(max_model_len=32768, kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=(3, 47))
        ),
        Case(NEMOTRON, flags=flags(set='mamba_cache_dtype="float32"')),
        Case(GRANITE, flags=flags(max_model_len="auto"), available=2 * 10**9),
        Case(
            NEXT80,
            flags=flags(
                tp=2,
                set=(
                    'speculative_config={"method": "ngram", "num_speculative_tokens": 3, '
                    '"prompt_lookup_max": 4}'
                ),
            ),
        ),
    ]
    return cases


def cpu_cases() -> list[Case]:
    """vLLM's CPU backend."""
    cases = []
    for config in (LLAMA, "google__gemma-2-2b", V2_LITE, NEXT80, OSS, NEMOTRON, QWEN2):
        length = ("max_model_len", 4096)
        cases += [
            Case(config, "cpu", (length,)),
            Case(config, "cpu", (length, ("block_size", 32))),
            Case(config, "cpu", (length, ("kv_cache_dtype", "fp8"))),
        ]
    cases += [
        Case(LLAMA, "cpu", (("max_model_len", 4096), ("kv_cache_dtype", "int8_per_token_head"))),
        Case(LLAMA, "cpu", (("max_model_len", 4096), ("tp", 2))),
        Case(OSS, "cpu", (("max_model_len", 4096), ("tp", 2))),
    ]
    return cases


def made_cases() -> list[Case]:
    """The kinds of layers that the public configs lack."""
    cases = [Case(path.stem) for path in sorted(MADE_CONFIGS.glob("*.json"))]
    cases += [
        Case("made__mamba", flags=(("tp", 2),)),
        Case("made__mamba2", flags=(("tp", 4),)),
        Case("made__kimi-linear", "a100-80", (("tp", 2),)),
        Case("made__kimi-linear", flags=(("no_prefix_caching", True),)),
        Case("made__whisper", flags=(("tp", 2),)),
        Case("made__whisper", "cpu"),
        Case("made__lfm2", flags=(("kv_cache_dtype", "fp8"), ("tp", 2))),
        Case("made__minimax-m3", flags=(("kv_cache_dtype", "fp8"),)),
        Case("made__gemma3n", flags=(("tp", 2),)),
        Case("moonshotai__Kimi-K3", "a100-80", (("max_model_len", 32768), ("tp", 8))),
    ]
    return cases


def config_path(name: str) -> Path:
    """Where a case's config.json lies."""
    return next(path for path in (CONFIGS / f"{name}.json", MADE_CONFIGS / f"{name}.json") if path.exists())


def all_cases() -> list[Case]:
    """Every case once, in the order in which they are asked."""
    return list(
        dict.fromkeys(
            (
                *default_cases(),
                *dense_cases(),
                *window_cases(),
                *latent_cases(),
                *recurrent_cases(),
                *cpu_cases(),
                *product_cases(),
                *made_cases(),
            )
        )
    )


def ask(case: Case, oracle: Path, python: Path) -> dict[str, Any]:
    """vLLM's answer to one case."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / case.config
        folder.mkdir()
        config = json.loads(config_path(case.config).read_text()) | dict(case.overrides)
        (folder / "config.json").write_text(json.dumps(config))
        done = subprocess.run(
            [str(python), str(oracle), *case.argv(folder)],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def facts(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    """What the test compares: the question, vLLM's resolved defaults and its answers."""
    config = answer.get("config") or {}
    kept = {
        key: config[key]
        for key in (
            "dtype", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "async_scheduling",
            "max_in_flight_tokens", "prefix_caching", "is_hybrid", "cache_dtype",
        )
        if key in config
    }  # fmt: skip
    row: dict[str, Any] = {
        "id": case.id,
        "source": "vLLM 0.32.0's own classes",
        "model": case.config.replace("__", "/", 1),
        "gpu": answer.get("gpu") or {"name": "CPU"},
        "flags": dict(case.flags),
        "overrides": dict(case.overrides),
        "available_kv_bytes": case.available,
        "resolved": kept,
    }
    if "error" in answer:
        row["error"] = answer["error"]["message"].partition("\nPlease check if")[0][:1500]
    if "per_stage" in answer:
        row |= {
            "backends": answer["attention_backends"],
            "block_size": answer["block_size_after_alignment"],
            "growing_bytes_per_token": answer["raw_growing_kv_bytes_per_token_this_rank_all_stages"],
            "stages": [
                [s["bytes_per_block"], s["one_max_len_request_bytes"], s["est_max_model_len"]]
                for s in answer["per_stage"]
            ],
            "groups": [
                [
                    g["layers"],
                    g["spec"]["block_size"],
                    g["spec"]["page_size_bytes"],
                    g["blocks_per_max_len_request"],
                ]
                for g in answer["groups"]
            ],
        }
    if "result" in answer:
        result = answer["result"]
        row |= {key: result[key] for key in ("num_gpu_blocks", "kv_cache_size_tokens", "max_concurrency")}
        row["max_model_len"] = result["max_model_len"]
    return row


def main() -> None:
    """Ask what the table does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracle", type=Path, help="the program that asks vLLM's classes")
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="interpreter with vLLM 0.32.0"
    )
    parser.add_argument("--limit", type=int, default=600, help="ask at most that many cases")
    parser.add_argument("--list", action="store_true", help="print the cases that are missing and stop")
    args = parser.parse_args()
    held = {json.loads(line)["id"] for line in TABLE.read_text().splitlines()} if TABLE.exists() else set()
    missing = [case for case in all_cases() if case.id not in held]
    if args.list or args.oracle is None:
        print("\n".join(case.id for case in missing))
        print(f"{len(held)} held, {len(missing)} missing", file=sys.stderr)
        return
    for case in missing[: args.limit]:
        row = facts(case, ask(case, args.oracle, args.python))
        with TABLE.open("a", encoding="utf-8") as table:
            table.write(json.dumps(row, separators=(",", ":")) + "\n")
        print(case.id, row.get("error", "")[:100], flush=True)


if __name__ == "__main__":
    main()
