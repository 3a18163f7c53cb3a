"""What every test gets: a clean environment, and real vLLM only where it is asked for."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-vllm",
        action="store_true",
        help="fail instead of skip when vLLM is not installed (CI does)",
    )
    parser.addoption(
        "--require-browser",
        action="store_true",
        help="fail instead of skip when Chromium or its driver is not installed",
    )
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden from what is printed now"
    )


SHARED = (
    "tests/browser/",
    "tests/unit/html/",
    "tests/unit/test_calibration_fit.py",
    "tests/unit/test_load_bench.py",
    "tests/unit/test_pre_commit.py",
    "tests/unit/test_tune_faults.py",
    "tests/unit/test_tune_server.py",
)
"""Tests here share something that takes seconds to make: one worker runs them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="vLLM is not installed: pip install 'kvplan-tuner[cpu]'")
    without_vllm = importlib.util.find_spec("vllm") is None and not config.getoption("--require-vllm")
    for item in items:
        group = next((prefix for prefix in SHARED if item.nodeid.startswith(prefix)), None)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if without_vllm and {"vllm", "vllm_full"} & set(item.keywords):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests: what is in it is named by the hash of what it was made from."""
    return tmp_path_factory.mktemp("xdg-cache")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_home: Path) -> None:
    """No variable or file of the developer's reaches a test."""
    for name in ("KVPLAN_PROFILES", "HF_TOKEN", "HF_ENDPOINT", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg-config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg-data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
