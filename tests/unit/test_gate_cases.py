"""Every format is read as vLLM itself would read it; hostile files cost nothing and give nothing away."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

_SPEC = importlib.util.spec_from_file_location("gate_cases", Path(__file__).with_name("gate_cases.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
gate_cases = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(gate_cases)

EXPECTED: list[dict[str, Any]] = gate_cases.expectations()
HOSTILE = [case for case in EXPECTED if "hostile" in case]
FIELDS = ("model", "gpu", "num_gpus", "flags", "stage", "profile", "mig")


def listed(root: Path) -> dict[str, Any]:
    """What `kvplan check --list --format json` finds in a tree."""
    from kvplan.gate.find import read_paths
    from kvplan.report.check.listing import as_json

    document: dict[str, Any] = json.loads(as_json(read_paths(["."], root)))
    return document


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case["case"])
def test_the_launches_of_a_file_are_read_as_expected(case: dict[str, Any], tmp_path: Path) -> None:
    gate_cases.lay_out(case, tmp_path)
    document = listed(tmp_path)
    assert document["schema"] == "kvplan.launches/1"
    found, expected = document["launches"], case["launches"]
    assert len(found) == len(expected)
    for seen, wanted in zip(found, expected, strict=True):
        assert {name: seen.get(name) for name in FIELDS} == {name: wanted.get(name) for name in FIELDS}
        for names in ("unresolved", "defaulted", "ignored"):
            assert sorted(seen.get(names, [])) == sorted(wanted.get(names, [])), names
        assert seen.get("invalid", {}) == wanted.get("invalid", {})
        assert abs(seen["line"] - wanted["line"]) <= 2
        assert "unknown_flags" not in seen


MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[2:])
peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
open(sys.argv[1], "w").write(str(peak_kib))
sys.exit(done.returncode)
"""
"""Runs a command and writes its peak memory; a small process, for a child begins with its parent's."""


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case["case"])
def test_a_hostile_file_is_read_in_little_time_and_memory_and_nothing_of_it_runs(
    case: dict[str, Any], tmp_path: Path
) -> None:
    gate_cases.lay_out(case, tmp_path)
    canary = Path("/tmp/kvplan_canary_executed")  # noqa: S108  the path that the case's commands would create
    canary.unlink(missing_ok=True)
    limits = case["hostile"]
    begin = time.monotonic()
    peak = tmp_path.with_name("peak-kib")
    command = [sys.executable, "-m", "kvplan", "check", "--list", "--format", "json"]
    result = subprocess.run(
        [sys.executable, "-c", MEASURED, str(peak), *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )
    assert time.monotonic() - begin < limits.get("max_seconds", 5)
    assert int(peak.read_text()) / 1024 < limits.get("max_rss_mb", 300)
    assert result.returncode == 0
    assert "Traceback" not in result.stderr
    for secret in limits.get("must_not_output", []):
        assert secret not in result.stdout + result.stderr
    assert not canary.exists()


def test_references_out_of_the_repository_are_not_opened(tmp_path: Path) -> None:
    case = next(case for case in EXPECTED if case["case"].startswith("29"))
    gate_cases.lay_out(case, tmp_path / "repository")
    opened: list[str] = []

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            opened.append(arguments[0])

    sys.addaudithook(record)
    document = listed(tmp_path / "repository")
    seen = list(opened)
    reasons = [miss["reason"] for miss in document["not_read"]]
    assert reasons.count("env_file outside the repository is not read") == 3
    for path in case["hostile"]["must_not_open"]:
        assert not [name for name in seen if name.startswith(path.replace("~", str(Path.home())))]


def test_a_symlink_that_leaves_the_repository_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.env"
    outside.write_text("SEQS=512\n")
    root = tmp_path / "repository"
    root.mkdir()
    (root / ".env").symlink_to(outside)
    (root / "compose.yaml").write_text(
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.22.1\n"
        "    command: --model a/b --max-num-seqs ${SEQS}\n"
    )
    (launch,) = listed(root)["launches"]
    assert launch["flags"] == {}
    assert launch["unresolved"] == ["SEQS"]
