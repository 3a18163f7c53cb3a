"""The load client keeps off the cores that vLLM's worker is bound to."""

from __future__ import annotations

import os

import pytest

from kvplan.load.cores import client_off, parse_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", {0}),
        ("0,1", {0, 1}),
        ("0-3", {0, 1, 2, 3}),
        ("0,2-3", {0, 2, 3}),
        ("auto", set()),
        ("nobind", set()),
    ],
)
def test_cores_are_read_as_vllm_writes_them(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be shared out")
def test_the_client_runs_on_what_is_left_and_goes_back() -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    with client_off(str(first)):
        assert os.sched_getaffinity(0) == before - {first}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("bound", [None, "auto", "0-1023"])
def test_without_cores_left_over_nothing_changes(bound: str | None) -> None:
    before = os.sched_getaffinity(0)
    with client_off(bound):
        assert os.sched_getaffinity(0) == before
