"""Time `kvplan check` (read, judged, compared) on a tree of 50,000 files of which 1,000 are serving configs.

usage: python tests/bench/gate_speed.py [--files 50000] [--configs 1000] [--runs 3]

The configs are the case files of tests/data/gate without the hostile ones, in folders of their own; the
others are Python, TypeScript, Markdown, JSON and YAML files of 0.2 to 6 KB that have nothing to do with
vLLM. Prints the fastest run's wall time and CPU time (its own and git's; a busy machine stretches it
less), with the files in the page cache and without (`cold`), and the peak memory; the limits are 3 s warm and
150 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = Path(__file__).parents[1] / "data" / "gate" / "cases"


def build(root: Path, files: int, configs: int) -> int:
    """Lay the tree out; gives the launches that its configs hold."""
    rng = random.Random(0)
    expected = [json.loads(path.read_text()) for path in sorted(CASES.glob("*.expected.json"))]
    usable = [case for case in expected if "hostile" not in case and (CASES / case["case"]).is_file()]
    launches = 0
    for i in range(configs):
        case = usable[i % len(usable)]
        target = root / f"team{i % 37}" / f"service{i}" / case["as"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((CASES / case["case"]).read_bytes())
        launches += len(case["launches"])
    endings = [".py"] * 45 + [".ts"] * 20 + [".md"] * 10 + [".json"] * 10 + [".yaml"] * 10 + [".txt"] * 5
    for i in range(files - configs):
        folder = root / "src" / f"m{i % 200}"
        folder.mkdir(parents=True, exist_ok=True)
        body = f"# {i}\nvalue: {rng.random()}\n" * rng.randrange(8, 200)
        (folder / f"f{i}{rng.choice(endings)}").write_text(body)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)  # noqa: S607  the user's git
    subprocess.run(["git", "config", "gc.auto", "0"], cwd=root, check=True)  # noqa: S607  no git in the background
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)  # noqa: S607  the user's git
    user = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *user, "commit", "-q", "-m", "base"], cwd=root, check=True)  # noqa: S607  the user's git
    return launches


MODES = {
    "read": ["--list"],
    "judged": ["--gpu", "h100-sxm", "--fail-on", "never"],
    "judged against a base": ["--gpu", "h100-sxm", "--fail-on", "never", "--base", "HEAD"],
}


def timed(root: Path, options: list[str], *, cold: bool) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and launches of one run."""
    if cold:
        forget(root)
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", "kvplan", "check", *options, "--format", "json"],
        cwd=root,
        capture_output=True,
        check=True,
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, len(json.loads(result.stdout)["launches"])


def forget(root: Path) -> None:
    """Ask the kernel to drop the files' pages, which it does for those that are written."""
    os.sync()
    for folder, _, names in os.walk(root):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:  # noqa: PTH118, PTH123  50,000 of them
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Build, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--configs", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        launches = build(root, arguments.files, arguments.configs)
        changed = next(path for path in sorted(root.glob("team0/**/*")) if path.is_file())
        changed.write_bytes(changed.read_bytes() + b"\n")
        slowest = 0.0
        for mode, options in MODES.items():
            for cold in (False, True):
                runs = [timed(root, options, cold=cold) for _ in range(arguments.runs)]
                wall, cpu, found = min(runs)
                state = "cold" if cold else "warm"
                print(f"{mode}, {state}: {wall:.2f} s, {cpu:.2f} s of CPU; {found} launches of {launches}")
                slowest = slowest if cold else max(slowest, wall)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"slowest warm {slowest:.2f} s, peak {peak:.0f} MiB of all children (git among them)")
        sys.exit(slowest > 3 or peak > 150)


if __name__ == "__main__":
    main()
