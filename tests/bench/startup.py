"""Start-up of `kvplan estimate` and `kvplan check` against an empty typer app, processes in alternation.

    python tests/bench/startup.py [--runs 25] [--peer "kvfit estimate …" …]

`check` reads a repository with a policy and no launch, and judges one launch with and without a policy.
Prints medians, the difference and the peak resident size. Peers, if given, run in the same rotation.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EMPTY_APP = "import typer\napp = typer.Typer()\n@app.command()\ndef main() -> None: ...\napp()\n"
LAUNCH = "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 8192 --gpu-memory-utilization 0.9\n"
POLICY = """\
gpu: l40s
vllm_version: 0.32.0
workload: chat
target_concurrency: 8
min_headroom_gib: 0.5
rules: {KVP007: off}
paths:
  - {match: [serve.sh], require_judged: true, require_launch: true}
"""


def repository(folder: Path, **files: str) -> Path:
    """A git repository of those files."""
    folder.mkdir()
    for name, text in files.items():
        (folder / {"policy": ".kvplan.yaml"}.get(name, f"{name}.sh")).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)  # noqa: S607  the user's git
    return folder


def run(argv: list[str], folder: Path) -> tuple[float, float, int]:
    """Wall and CPU seconds (a busy machine stretches these less) and peak resident KiB of one process."""
    os.chdir(folder)
    begin = time.perf_counter()
    pid = os.posix_spawn(
        argv[0],
        argv,
        # An installed package has its byte code; a shell that forbids writing it would time the compiler.
        {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - begin
    if os.waitstatus_to_exitcode(status) not in {0, 1}:
        raise SystemExit(f"{shlex.join(argv)} failed")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--peer", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.py"
        empty.write_text(EMPTY_APP)
        python = sys.executable
        kvplan = [python, str(Path(python).with_name("kvplan"))]  # the installed command, as users start it
        estimate = [*kvplan, "estimate", "--model", "qwen2-7b", "--gpu", "4090"]
        here = Path(folder)
        idle = repository(here / "idle", policy=POLICY.partition("paths:")[0], build="make all\n")
        plain = repository(here / "plain", serve=LAUNCH)
        governed = repository(here / "governed", serve=LAUNCH, policy=POLICY)
        commands = {
            "empty typer app": ([python, str(empty)], here),
            "kvplan estimate": (estimate, here),
            "kvplan estimate --format json": ([*estimate, "--format", "json"], here),
            "kvplan --help": ([*kvplan, "--help"], here),
            "kvplan check, no launch": ([*kvplan, "check"], idle),
            "kvplan check --gpu l40s": ([*kvplan, "check", "--gpu", "l40s"], plain),
            "kvplan check, with a policy": ([*kvplan, "check"], governed),
        } | {peer: (shlex.split(peer), here) for peer in options.peer}
        results: dict[str, list[tuple[float, float, int]]] = {name: [] for name in commands}
        for argv, where in commands.values():
            run(argv, where)  # byte code and the profile index are made
        for _ in range(options.runs):
            for name, (argv, where) in commands.items():
                results[name].append(run(argv, where))
        os.chdir("/")
    floors = [statistics.median(r[i] for r in results["empty typer app"]) for i in (0, 1)]
    print(f"{'':32}  wall s  above empty  min..max      CPU s  above empty  peak MiB")
    for name, runs in results.items():
        wall, cpu = (statistics.median(r[i] for r in runs) for i in (0, 1))
        seconds = [r[0] for r in runs]
        print(
            f"{name[:32]:32}  {wall:6.3f}  {wall - floors[0]:11.3f}  {min(seconds):.3f}..{max(seconds):.3f}"
            f"  {cpu:5.3f}  {cpu - floors[1]:11.3f}  {max(r[2] for r in runs) / 1024:8.1f}"
        )


if __name__ == "__main__":
    main()
