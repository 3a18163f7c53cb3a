"""Give every reader and the judge hostile text and see that nothing ends in a traceback, a hang or a secret.

usage: python tests/bench/gate_fuzz.py [--inputs 20000] [--seed 0]

Inputs are the case files of tests/data/gate, mutated (cut, spliced with one another, brackets and quotes
repeated, bytes flipped), texts grown from the words of each format, and command lines of real models with
flags and values drawn at random, each read under a name drawn at random. What is found is judged, and
compared with itself. Prints the number of inputs, of launches found, the slowest input and every failure;
exits 1 on any.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import sys
import time
import traceback
from pathlib import Path

from kvplan.gate.check import Base, check_launches
from kvplan.gate.find import OWN_FAULT, read_into
from kvplan.gate.found import Found
from kvplan.gate.repo_files import DiskFiles, decode
from kvplan.report.check import listing
from kvplan.report.check.show import FORMATS, render

CASES = Path(__file__).parents[1] / "data" / "gate" / "cases"
NAMES = [
    "vllm.yaml", "run.sh", "Dockerfile", "compose.yaml", "deploy.yaml", "kustomization.yaml",
    "values.yaml", "chart/templates/d.yaml", "sky.yaml", "vllm.service", "supervisord.conf",
    ".github/workflows/w.yml", "serve.py", "job.nomad.hcl", "play.yml", "sweep.json", "config.json",
    "noext",
]  # fmt: skip
WORDS = [
    "vllm serve", "python -m vllm.entrypoints.openai.api_server", "--model", "--max-model-len", "8k",
    "${X:-4}", "$(VAR)", "{{ .Values.a | default 3 }}", "%(ENV_X)s", "${{ matrix.m }}", "$((1+$N))",
    "<<EOF\n", "EOF\n", "[", "{", "]", "}", "'", '"', "\\\n", "\n", "---\n", "&a ", "*a ", "- ", ": ",
    'if [ -z "$M" ]; then M=a; fi\n', "case $1 in a) T=1;; esac\n", "|\n  ", ">-\n  ",
    "docker run --gpus all vllm/vllm-openai:v0.20.0", "A=$A$A\n", "A+=(x)\n", "f() { f; }\n", "LLM(model=",
    "**d", ")", "--hf-overrides", '{"a": 1}', "-O3", "--config", "x.yaml", "services:\n", "  llm:\n",
    "    image: vllm/vllm-openai\n", "kind: Deployment\n", "apiVersion: v1\n", "containers:\n", "\t",
    "\u0000", "\ue000", "\ue0010\ue001", "\u00e9", "hf_FAKEfakeFAKEfake", "#",
]  # fmt: skip
FLAGS = [
    "--max-model-len", "--max-num-seqs", "--gpu-memory-utilization", "--kv-cache-dtype", "--block-size",
    "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--quantization", "--dtype",
    "--max-num-batched-tokens", "--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--cpu-offload-gb",
    "--enable-lora", "--max-loras", "--speculative-config", "--kv-transfer-config", "--kv-offloading-size",
    "--limit-mm-per-prompt", "--enforce-eager", "--swap-space", "--decode-context-parallel-size",
    "--attention-backend", "--mamba-cache-dtype", "--compilation-config", "--enable-prefix-caching", "--nope",
]  # fmt: skip
VALUES = [
    "0", "1", "-1", "3", "8", "64", "256", "8192", "131072", "1e9", "99999999999999999999", "0.5", "0.97",
    "1.5", "nan", "inf", "auto", "fp8", "nvfp4", "awq", "half", "None", "{}",
    '{"method":"ngram","num_speculative_tokens":4}',
    '{"image":0}', "[]", "true", "8k", "16G", "FLASHINFER", "''", '{"a":{"b":[1]}}',
    '{"kv_connector_extra_config":{"cpu_bytes_to_use":1e400}}',
]  # fmt: skip
MODELS = [
    "Qwen/Qwen2-7B-Instruct", "google/gemma-3-4b-it", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b",
    "ibm-granite/granite-4.0-h-tiny", "Qwen/Qwen2.5-VL-7B-Instruct", "a/b",
]  # fmt: skip
IMAGES = ["v0.6.6", "v0.8.5", "v0.12.0", "v0.19.1", "v0.20.0", "v0.32.0", "v0.99.0", "latest"]
TODAY = dt.date(2026, 11, 29)
SECRET = "hf_FAKEfakeFAKEfake"


def corpus() -> list[bytes]:
    """The case files, large ones cut."""
    files = [
        path
        for path in sorted(CASES.rglob("*"))
        if path.is_file() and not path.name.endswith(".expected.json")
    ]
    return [path.read_bytes()[:4000] for path in files]


def mutate(rng: random.Random, seeds: list[bytes]) -> bytes:
    """One hostile input."""
    if rng.random() < 0.4:
        flags = " ".join(f"{rng.choice(FLAGS)} {rng.choice(VALUES)}" for _ in range(rng.randrange(1, 8)))
        image = f"vllm/vllm-openai:{rng.choice(IMAGES)}"
        return f"docker run --gpus 2 {image} --model {rng.choice(MODELS)} {flags}\n".encode()
    if rng.random() < 0.3:
        return "".join(
            rng.choice(WORDS) + rng.choice(["", " ", "\n"]) for _ in range(rng.randrange(1, 60))
        ).encode()
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                del data[at : at + rng.randrange(1, 200)]
            case 1:
                data[at:at] = rng.choice(WORDS).encode()
            case 2:
                other = rng.choice(seeds)
                begin = rng.randrange(len(other) + 1)
                data[at:at] = other[begin : begin + rng.randrange(1, 400)]
            case 3:
                data[at:at] = rng.choice(
                    [b"[", b"{", b"(", b"${", b"$(", b"- ", b"'", b"{{", b"{%", b"&a [*a]"]
                ) * rng.randrange(1, 300)
            case 4:
                if data:
                    data[at % len(data)] = rng.randrange(256)
            case _:
                line = bytes(data[at : at + 80])
                data[at:at] = line * rng.randrange(1, 20)
    return bytes(data)


def try_one(data: bytes, name: str, files: DiskFiles) -> int:
    """Read one input and print it in every format; gives the launches found.

    Raises:
        AssertionError: a secret came out, or a reader failed.
    """
    found = Found()
    read_into(found, name, decode(data), files)
    assert not any(OWN_FAULT in item.reason for item in found.not_read), found.not_read
    printed = listing.as_json(found) + listing.as_text(found)
    checked = check_launches(found, gpu="l4", base=Base(found, "base"), today=TODAY)
    assert not checked.findings or all(item.launch is None for item in checked.findings), (
        "compared with itself"
    )
    checked = check_launches(found, gpu="rtx-4090", today=TODAY)
    printed += "".join(render(checked, form, tag="fuzz", root=CASES) for form in FORMATS)
    printed.encode("utf-8")
    assert SECRET not in printed, "secret printed"
    return len(found.launches)


def run(inputs: int, seed: int) -> tuple[int, int, tuple[float, str], list[tuple[str, bytes]]]:
    """Read that many inputs: how many, launches found, slowest, failures."""
    rng = random.Random(seed)
    seeds = corpus()
    files = DiskFiles(CASES)
    launches = 0
    slowest = (0.0, "")
    failures: list[tuple[str, bytes]] = []
    for _ in range(inputs):
        data, name = mutate(rng, seeds), rng.choice(NAMES)
        begin = time.process_time()  # what other processes take is no fault of the input
        try:
            launches += try_one(data, name, files)
        except Exception:  # noqa: BLE001  any escape is what is looked for
            failures.append((f"{name}\n{traceback.format_exc()}", data))
        slowest = max(slowest, (time.process_time() - begin, name))
    return inputs, launches, slowest, failures


def main() -> None:
    """Fuzz and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin = time.monotonic()
    count, launches, slowest, failures = run(arguments.inputs, arguments.seed)
    print(
        f"{count} inputs, {launches} launches, {len(failures)} failures, slowest "
        f"{slowest[0] * 1000:.0f} ms of CPU ({slowest[1]}), {time.monotonic() - begin:.0f} s"
    )
    for text, data in failures[:10]:
        print(text, repr(data[:2000]))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
