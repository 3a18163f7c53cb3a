"""The examples that the project's own CI runs the gate on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "data/gate/examples"


def test_every_example_is_judged_and_passes_without_a_warning() -> None:
    done = subprocess.run(
        [
            *[sys.executable, "-m", "kvplan", "check", "--gpu", "l4", "--fail-on", "warning"],
            *["--format", "json", str(EXAMPLES)],
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    launches = json.loads(done.stdout)["launches"]
    assert [(Path(item["path"]).name, item["not_judged"]) for item in launches] == [
        ("chat.yaml", None),
        ("compose.yaml", None),
        ("batch.sh", None),
    ]
    assert all(item["now"]["starts"] == "yes" for item in launches)
