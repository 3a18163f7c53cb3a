"""The case files of tests/data/gate/cases: an input, where it lies in a repository, and the launches in it.

Expected values were had by giving the same arguments to vLLM 0.32.0's own parser, and shell inputs also by
running them with a stub `vllm` and `docker` on PATH (the hostile ones not).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "data" / "gate" / "cases"


def expectations() -> list[dict[str, Any]]:
    """All expected files, in order."""
    return [json.loads(path.read_text()) for path in sorted(CASES.glob("*.expected.json"))]


def five_mib_line() -> bytes:
    """A comment line of 5 MiB, a launch with a name of 300 characters, and 200,000 backslashes."""
    return (
        b"#!/bin/sh\n# "
        + b"A" * (5 * 1024 * 1024)
        + b"\nvllm serve Qwen/Qwen2-7B-Instruct --max-model-len 2048 --served-model-name "
        + b"n" * 300
        + b"\nexport X='"
        + b"\\" * 200_000
        + b"'\n"
    )


def not_utf8() -> bytes:
    """Latin-1 letters, a byte order mark in the middle, and a NUL."""
    return (
        b"#!/bin/sh\n# r\xe9gl\xe9 par \xff\xfe Andr\xe9\n"
        b"MODEL=Qwen/Qwen2-7B-Instruct\nLOG=/data/mod\xe8les/log\n"
        b"vllm serve $MODEL --max-model-len 4096 --download-dir /data/mod\xe8les --seed 3\n# nul: \x00 end\n"
    )


BUILT = {"28-hostile-5mb-line.sh": five_mib_line, "31-hostile-invalid-utf8.sh": not_utf8}


def lay_out(case: dict[str, Any], root: Path) -> None:
    """Put a case's input where a repository would have it."""
    source = CASES / case["case"]
    target = root / case["as"]
    if case["case"] in BUILT:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(BUILT[case["case"]]())
    elif source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
