"""Hostile text never ends in a traceback: a smaller run of tests/bench/gate_fuzz.py, and any bytes at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.gate.repo_files import DiskFiles

if TYPE_CHECKING:
    from types import ModuleType


def bench(name: str) -> ModuleType:
    """A script of tests/bench as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FUZZ = bench("gate_fuzz")


def test_mutated_case_files_are_read_without_a_traceback() -> None:
    _, launches, slowest, failures = FUZZ.run(600, seed=1)
    assert failures == []
    # Mutation must not break everything: otherwise only the first check of each reader would have been tried.
    assert launches > 60
    assert slowest[0] < 5


@pytest.mark.parametrize("name", FUZZ.NAMES)
@settings(max_examples=15, deadline=None)
@given(
    data=st.one_of(
        st.binary(max_size=400),
        st.lists(st.sampled_from(FUZZ.WORDS), max_size=30).map(lambda w: " ".join(w).encode()),
    )
)
def test_any_bytes_under_any_name_are_read_without_a_traceback(name: str, data: bytes) -> None:
    FUZZ.try_one(b"vllm serve a/b --max-model-len 1\n" + data, name, DiskFiles(FUZZ.CASES))


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("a.yaml", b"["),
        ("a.yaml", b"- "),
        ("a.yaml", b"{a: "),
        ("a.yaml", b"&a [*a, "),
        ("run.sh", b"$("),
        ("run.sh", b"a && "),
        ("run.sh", b"if a; then "),
        ("run.sh", b"A=$A$A$A\n"),
        ("run.sh", b"${A:-"),
        ("run.sh", b"f() { f; f; }\nf\n"),
        ("serve.py", b"("),
        ("serve.py", b"LLM(model="),
        ("serve.py", b"x = x + x\n"),
        ("serve.py", b"-"),
        ("job.hcl", b"/*"),
        ("job.hcl", b"a {"),
        ("templates/a.yaml", b"{{ "),
        ("templates/a.yaml", b"{{ if .Values.x }}\n"),
        ("sweep.json", b'{"a":['),
        ("Dockerfile", b"ENV A=$A$A\n"),
        ("play.yml", b"- {% if a %}"),
    ],
)
def test_repetition_costs_neither_time_nor_depth(name: str, unit: bytes) -> None:
    import time

    data = b"vllm serve a/b\n" if name.endswith(".sh") else b"# vllm serve\n"
    begin = time.process_time()
    FUZZ.try_one(data + unit * (200_000 // len(unit)) + b"\nvllm", name, DiskFiles(FUZZ.CASES))
    assert time.process_time() - begin < 8
