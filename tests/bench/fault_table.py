"""docs/faults.md, from what the tests saw: `python -m tests.bench.fault_table [--real]`.

Runs tests/unit/test_tune_faults.py; with `--real` also those on real vLLM, whose rows are kept in
tests/data/faults-real.jsonl, so that the table can be made anew without them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.faults import RECORDS_VARIABLE

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "faults.md"
REAL: Final = ROOT / "tests" / "data" / "faults-real.jsonl"
MOST_EVIDENCE: Final = 110
PREFACE: Final = """\
# Faults: what goes wrong around a run, and what comes of it

Made by `python -m tests.bench.fault_table` from what the tests saw. Every row is a test of
tests/unit/test_tune_faults.py (scripted engine) or tests/vllm/test_faults_real.py (real vLLM on CPU), and
fails there if it comes out otherwise, or if one process, segment of shared memory, temporary folder, cgroup
or note is left.

- **Scripted** is a program in vLLM's place that speaks its HTTP and its log, has its three processes, and
  touches real memory. kvplan's command line, the kernel's OOM killer, the guard, signals, file systems, the
  journal, and pynvml (on a driver library that can lose its card) are real.
- **Expected** is `ok`: what was measured stands. `failed`: nothing explains it, so the same is asked again,
  and after three of those in a row the run ends. `infeasible`: an answer about the settings, not asked again.
- **Exit code** is that of the whole run. The scripted rows with a trial's outcome are one run, which meets
  all of these faults and still ends with a confirmed setting; with 1, because that setting lies above the
  faults' own memory failures, and is not called met. Those on real vLLM end with 1, because their budget of
  launches is the faults'.
- **Kept**: finished trials of before that are in the journal afterwards, unchanged and made once.

The same for hours: [ten real trials with random kills](examples/soak.md).

"""
HEADER: Final = (
    "| fault | phase | engine | expected | seen | exit code | left | kept | what kvplan says |\n"
    "| :-- | :-- | :-- | :-- | :-- | :-- | --: | :-- | :-- |\n"
)


def rows_of(tests: list[str], *options: str) -> list[dict[str, Any]]:
    """Run these tests; the rows that they leave.

    Raises:
        SystemExit: one of them fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", *options, *tests]
        done = subprocess.run(
            command, env={**os.environ, RECORDS_VARIABLE: str(records)}, cwd=ROOT, check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.returncode)
        return [json.loads(line) for line in records.read_text().splitlines()]


def line_of(row: dict[str, Any]) -> str:
    """The row as Markdown."""
    evidence = re.sub(r"/[\w./-]+/(runs/[\w.-]+|[\w.-]+)", r"\1", row["evidence"].replace("kvplan: ", ""))
    evidence = re.sub(r"\bruns/[\w.-]+", "RUN", re.sub(r"\bpid \d+|process \d+", "pid N", evidence))
    if len(evidence) > MOST_EVIDENCE:
        evidence = evidence[:MOST_EVIDENCE].rsplit(" ", 1)[0] + " …"
    cells = [row["fault"], row["phase"], row["engine"], row["expected"], row["seen"], row["exit_code"]]
    cells += [str(row["left"]), row["kept"], evidence]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> None:
    """Run, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", action="store_true", help="run those on real vLLM too (about 8 minutes)")
    if parser.parse_args().real:
        real = rows_of(
            ["tests/vllm/test_faults_real.py"], "--require-vllm", "-m", "vllm_full", "-k", "each_process"
        )
        REAL.write_text("".join(json.dumps(row) + "\n" for row in real))
    scripted = rows_of(["tests/unit/test_tune_faults.py"])
    real = [json.loads(line) for line in REAL.read_text().splitlines()] if REAL.exists() else []
    rows = sorted(
        [*scripted, *real], key=lambda row: (row["engine"] == "scripted", row["fault"], row["phase"])
    )
    PAGE.write_text(PREFACE + HEADER + "".join(line_of(row) for row in rows))
    print(f"{PAGE}: {len(rows)} faults, {len(real)} of them on real vLLM")


if __name__ == "__main__":
    main()
