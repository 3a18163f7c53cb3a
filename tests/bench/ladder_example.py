"""Makes docs/examples/ladder-demo.txt and tests/data/runs/ladder-cpu: the demo's ladder on real engines.

python -m tests.bench.ladder_example [--tuned-run RUN]     # alone on the machine: about 7 minutes with RUN
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from kvplan.report.runs import special_report_of
from kvplan.tune.journal import read_journal

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Climb, keep the journal without this machine's paths, and the report that it gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tuned-run", help="as for kvplan tune --ladder; default: a search")
    options = parser.parse_args()
    shown = ["kvplan", "tune", "--ladder", "--demo"]
    named = [] if options.tuned_run is None else ["--tuned-run", options.tuned_run]
    with tempfile.TemporaryDirectory() as runs:
        subprocess.run(
            [sys.executable, "-m", *shown, *named, "--runs-dir", runs], check=False, stdout=subprocess.DEVNULL
        )
        journals = sorted(Path(runs).glob("*/journal.jsonl"))
        journal = next(path for path in journals if read_journal(path).header.get("what") == "ladder")
        text = journal.read_text()
        for ours, shown_as in ((runs, "kvplan-runs"), (sys.prefix, ".venv"), (str(Path.home()), "~")):
            text = text.replace(ours, shown_as)
    kept = ROOT / "tests" / "data" / "runs" / "ladder-cpu"
    kept.mkdir(exist_ok=True)
    (kept / "journal.jsonl").write_text(text)
    report = special_report_of(read_journal(kept))
    assert report is not None
    example = f"$ {' '.join(shown)}\n{report.render('text')}\n"
    (ROOT / "docs" / "examples" / "ladder-demo.txt").write_text(example)
    print(example)


if __name__ == "__main__":
    main()
