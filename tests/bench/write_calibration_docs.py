"""Put the figures of `kvplan profiles calibrate` into docs/calibration.md, and its plots beside it.

usage: python tests/bench/write_calibration_docs.py
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from kvplan.calibration.fit import PRIORS
from kvplan.calibration.plots import write_plots
from kvplan.calibration.study import default_launches_path, score_fitted, score_left_out
from kvplan.calibration.write_fit import rounded
from kvplan.memory.overhead.fitted import FITTED
from kvplan.report.calibration import render_study
from kvplan.report.table import render_table

DOCS = Path(__file__).parents[2] / "docs"


def main() -> None:
    """Fill every marked part of the page."""
    page = DOCS / "calibration.md"
    text = page.read_text(encoding="utf-8")
    left_out = score_left_out(default_launches_path())
    parts = {
        "coefficients": _coefficients(),
        "left out": render_study(left_out, markdown=True),
        "fitted": render_study(score_fitted(default_launches_path()), markdown=True).split("\n\n## ")[0],
    }
    for name, content in parts.items():
        lower = re.sub(r"^## ", "### ", content, flags=re.MULTILINE)
        marked = f"<!-- {name}: begin -->\n\n{lower}\n\n<!-- {name}: end -->"
        pattern = rf"<!-- {name}: begin -->.*?<!-- {name}: end -->"
        text, found = re.subn(pattern, lambda _, m=marked: m, text, flags=re.DOTALL)  # type: ignore[misc]
        if not found:
            raise SystemExit(f"{page} has no part marked {name!r}")
    page.write_text(text, encoding="utf-8")
    for path in write_plots(left_out, DOCS / "calibration"):
        print(path)


def _coefficients() -> str:
    rows = [
        (name, f"{PRIORS[name].start:g}" if name in PRIORS else "", f"{rounded(value):g}")
        for name, value in dataclasses.asdict(FITTED).items()
    ]
    return render_table(("coefficient", "started from", "fitted"), rows, markdown=True)


if __name__ == "__main__":
    main()
