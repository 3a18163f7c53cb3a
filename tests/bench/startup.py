"""Start-up of `kvplan estimate` against an empty typer app, whole processes in alternation.

    python tests/bench/startup.py [--runs 25] [--peer "kvfit estimate …" …]

Prints medians, the difference and the peak resident size. Peers, if given, run in the same rotation.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path

EMPTY_APP = "import typer\napp = typer.Typer()\n@app.command()\ndef main() -> None: ...\napp()\n"


def run(argv: list[str]) -> tuple[float, int]:
    """Wall seconds and peak resident KiB of one process."""
    begin = time.perf_counter()
    pid = os.posix_spawn(
        argv[0],
        argv,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - begin
    if os.waitstatus_to_exitcode(status) not in {0, 1}:
        raise SystemExit(f"{shlex.join(argv)} failed")
    return seconds, usage.ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=25)
    parser.add_argument("--peer", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.py"
        empty.write_text(EMPTY_APP)
        python = sys.executable
        estimate = [python, "-m", "kvplan", "estimate", "--model", "qwen2-7b", "--gpu", "4090"]
        commands = {
            "empty typer app": [python, str(empty)],
            "kvplan estimate": estimate,
            "kvplan estimate --format json": [*estimate, "--format", "json"],
            "kvplan --help": [python, "-m", "kvplan", "--help"],
        } | {peer: shlex.split(peer) for peer in options.peer}
        results: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
        for argv in commands.values():
            run(argv)  # byte code and the profile index are made
        for _ in range(options.runs):
            for name, argv in commands.items():
                results[name].append(run(argv))
    floor = statistics.median(seconds for seconds, _ in results["empty typer app"])
    print(f"{'':32}  median s  above empty s  min s  max s  peak MiB")
    for name, runs in results.items():
        seconds = [s for s, _ in runs]
        median = statistics.median(seconds)
        peak = max(kib for _, kib in runs) / 1024
        print(
            f"{name[:32]:32}  {median:8.3f}  {median - floor:13.3f}  {min(seconds):5.3f}  {max(seconds):5.3f}"
            f"  {peak:8.1f}"
        )


if __name__ == "__main__":
    main()
