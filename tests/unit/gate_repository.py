"""A git repository with a base and eight pull requests, as a team that serves two models would have it.

`make_repository(root)` makes it: `main` is the base, each pull request is a branch of `PULL_REQUESTS`, one
commit on top of it. Names, dates and contents are fixed, so commit ids are the same on every machine.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

TODAY: Final = "2026-11-29"
"""The day that the gate is told it is: the waivers below hold on it."""

POLICY: Final = """\
# What the gate holds pull requests against.
gpu_map:
  pool=chat-l4: l4
rules:
  KVP007: off
max_capacity_regression_percent: 5
paths:
  - match: deploy/chat.yaml
    target_concurrency: 16
    workload: workloads/chat.yaml
    require_judged: true
  - match: legacy/**
    gpu: rtx-4090
waivers:
  - rule: KVP001
    path: legacy/**
    until: 2027-02-28
    reason: the machine is replaced in February
    owner: ml-platform
"""

WORKLOAD: Final = """\
schema: kvplan.workload/1
name: chat of the support page
lengths:
  samples:
  - [400, 120]
  - [700, 150]
  - [1000, 200]
  - [300, 80]
"""

# Llama-3.1-8B on a 24 GB L4: 16.06 GB of weights, 131,072 B of KV cache a token. One request of 8,192
# tokens takes 1 GiB, one of 65,536 takes 8 GiB, which is more than the card has left.
CHAT: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: chat
spec:
  replicas: 2
  template:
    spec:
      nodeSelector:
        pool: chat-l4
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.19.1
          args:
            - --model=meta-llama/Llama-3.1-8B-Instruct
            - --max-model-len=8192
            - --max-num-seqs=32
          resources:
            limits:
              nvidia.com/gpu: "1"
"""

LEGACY: Final = """\
#!/bin/sh
# The old machine under the desk.
exec vllm serve Qwen/Qwen2-7B-Instruct \\
  --max-model-len 8192 \\
  --gpu-memory-utilization 0.9
"""

BASE: Final = {
    ".kvplan.yaml": POLICY,
    "workloads/chat.yaml": WORKLOAD,
    "deploy/chat.yaml": CHAT,
    "legacy/serve.sh": LEGACY,
    "README.md": "Two models, two machines.\n",
}


def _chat(old: str, new: str) -> dict[str, str]:
    assert old in CHAT
    return {"deploy/chat.yaml": CHAT.replace(old, new)}


_TOO_LONG: Final = _chat("--max-model-len=8192", "--max-model-len=65536")

_SECRET_LENGTH: Final = """\
          env:
            - name: MAX_LEN
              valueFrom: {secretKeyRef: {name: chat, key: max-len}}
          args:
"""
_UNRESOLVABLE: Final = {
    "deploy/chat.yaml": CHAT.replace("          args:\n", _SECRET_LENGTH).replace("=8192", "=$(MAX_LEN)")
}

PULL_REQUESTS: Final[dict[str, dict[str, str]]] = {
    "does-not-start": _TOO_LONG,
    "capacity-regression": _chat(
        "--max-num-seqs=32", "--max-num-seqs=32\n            - --gpu-memory-utilization=0.86"
    ),
    "improved": _chat("--max-num-seqs=32", "--max-num-seqs=32\n            - --kv-cache-dtype=fp8"),
    "comments-only": _chat("          args:\n", "          # As measured in May.\n          args:\n"),
    "unresolvable": _UNRESOLVABLE,
    "waived": {
        "legacy/serve.sh": LEGACY.replace("8192", "32768").replace(
            "Qwen2-7B-Instruct", "Qwen2.5-14B-Instruct"
        )
    },
    "image-tag": _chat("v0.19.1", "v0.20.2"),
    "policy-loosened": _TOO_LONG
    | {".kvplan.yaml": POLICY.replace("  KVP007: off\n", "  KVP001: off\n  KVP006: off\n  KVP007: off\n")},
}
"""Branch name -> the files that it changes."""
_ENVIRONMENT: Final = {
    "GIT_AUTHOR_NAME": "A Developer",
    "GIT_AUTHOR_EMAIL": "dev@example.org",
    "GIT_COMMITTER_NAME": "A Developer",
    "GIT_COMMITTER_EMAIL": "dev@example.org",
    "GIT_AUTHOR_DATE": "2026-11-01T09:00:00+0000",
    "GIT_COMMITTER_DATE": "2026-11-01T09:00:00+0000",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def git(root: Path, *arguments: str) -> str:
    """Run git in the repository with a fixed identity, date and configuration."""
    return subprocess.run(
        ["git", "-C", str(root), *arguments],  # noqa: S607  the machine's git
        env={**os.environ, **_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def commit(root: Path, files: dict[str, str], message: str) -> None:
    """Write the files and commit everything."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", message)


def make_repository(root: Path) -> Path:
    """Make the repository, with `main` checked out; gives its root."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    commit(root, BASE, "Serve two models")
    for name, files in PULL_REQUESTS.items():
        git(root, "checkout", "--quiet", "-b", name, "main")
        commit(root, files, name)
    git(root, "checkout", "--quiet", "main")
    return root


def check_out(root: Path, name: str) -> None:
    """Put a pull request's branch into the working tree."""
    git(root, "checkout", "--quiet", name)
