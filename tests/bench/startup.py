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


def run(argv: list[str]) -> tuple[float, float, int]:
    """Wall and CPU seconds (a busy machine stretches these less) and peak resident KiB of one process."""
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
        commands = {
            "empty typer app": [python, str(empty)],
            "kvplan estimate": estimate,
            "kvplan estimate --format json": [*estimate, "--format", "json"],
            "kvplan --help": [*kvplan, "--help"],
        } | {peer: shlex.split(peer) for peer in options.peer}
        results: dict[str, list[tuple[float, float, int]]] = {name: [] for name in commands}
        for argv in commands.values():
            run(argv)  # byte code and the profile index are made
        for _ in range(options.runs):
            for name, argv in commands.items():
                results[name].append(run(argv))
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
