"""Answers of the gate, made by hand: what the formats say of them is known without judging anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvplan.gate.found import Found, LaunchFound, NotRead
from kvplan.gate.result import Checked, Finding, LaunchResult, Numbers, WaiverNote

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(autouse=True)
def no_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No CI host around the tests, and a fixed number of the run."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "CI_PIPELINE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITHUB_RUN_ID", "1001")
    monkeypatch.chdir(tmp_path)


def launch(path: str = "deploy/chat.yaml", line: int = 12, **facts: Any) -> LaunchFound:
    """A launch as a reader gives it."""
    given: dict[str, Any] = {"model": MODEL, "gpu": "l4", "num_gpus": 1, "flags": {}, "name": "chat"} | facts
    return LaunchFound(path=path, line=line, column=5, format="k8s", **given)


def numbers(**facts: Any) -> Numbers:
    """An estimate's figures."""
    given: dict[str, Any] = {
        "gpu": "NVIDIA L4",
        "num_gpus": 1,
        "vllm_version": "0.20.2",
        "max_model_len": 8192,
        "starts": "yes",
        "start_probability": 1.0,
        "kv_tokens": 40_000,
        "max_requests": 4,
        "headroom_bytes": 2**30,
        "kv_spare_bytes": 4 * 2**30,
    }
    return Numbers(**given | facts)


def finding(of: LaunchFound | None, **facts: Any) -> Finding:
    """What a rule says."""
    given: dict[str, Any] = {
        "rule": "KVP001",
        "name": "will-not-start",
        "severity": "error",
        "message": "will not start on NVIDIA L4",
        "passes": "--max-model-len 30000",
        "path": of.path if of else ".kvplan.yaml",
        "line": 19,
        "column": 15,
        "end_line": 19,
        "flag": "max_model_len",
    }
    return Finding(launch=of, **given | facts)


WAIVER = WaiverNote(until="2027-02-28", reason="the machine is replaced", owner="ml-platform")


def checked(*items: LaunchResult, **facts: Any) -> Checked:
    """A run with a base."""
    found = Found([item.launch for item in items], facts.pop("not_read", []), files_read=max(len(items), 1))
    return Checked(found, list(items), **{"base": "0123456789abcdef0123"} | facts)


@pytest.fixture
def broken() -> Checked:
    """A launch that no longer starts, one that stayed, one that could not be judged, one that is waived."""
    chat = LaunchResult(
        launch(),
        change="changed",
        now=numbers(
            max_model_len=65536, starts="no", start_probability=0.0, max_requests=0, headroom_bytes=2**30
        ),
        before=numbers(),
        assumptions=("vLLM 0.20.2: no image tag or pin names one",),
    )
    stayed = LaunchResult(launch("deploy/embed.yaml", 3), change="unchanged", now=numbers(), before=numbers())
    unknown = LaunchResult(
        launch("deploy/draft.yaml", 7), change="added", not_judged="unknown value of max_num_seqs"
    )
    legacy = LaunchResult(
        launch("legacy/serve.sh", 3), change="changed", now=numbers(starts="no"), before=numbers(starts="no")
    )
    return checked(
        chat,
        stayed,
        unknown,
        legacy,
        findings=[finding(chat.launch, seen="0 % start probability", before="100 %", limit="at least 90 %")],
        waived=[finding(legacy.launch, line=4, waiver=WAIVER)],
        notes=["policy: .kvplan.yaml of the base"],
        not_read=[NotRead("deploy/odd.yaml", 2, "cannot parse this YAML document")],
    )


@pytest.fixture
def nothing_found() -> Checked:
    """No launch at all."""
    return checked(base=None)


HOSTILE = (
    "a`b|c<img src=x onerror=alert(1)>[x](http://e.vil)@team #1 \x1b[31m\u202e%\r\n::error::x,y:z\"'&--.yaml"
)


@pytest.fixture
def hostile() -> Checked:
    """A pull request that names its files, models and variables to break what is printed."""
    evil = launch(HOSTILE, model=HOSTILE, name=HOSTILE)
    secret = "hf_abcdefghijklmnopqrstuvwxyz"
    item = LaunchResult(evil, change="added", now=numbers(gpu=HOSTILE), assumptions=(HOSTILE, secret))
    other = LaunchResult(launch(HOSTILE, 30), change="added", not_judged=f"arguments: {HOSTILE} {secret}")
    one = finding(
        evil, message=f"{HOSTILE} {secret}", passes=HOSTILE, seen=HOSTILE, before=HOSTILE, limit=HOSTILE
    )
    waiver = WaiverNote(until="2027-01-01", reason=f"{HOSTILE} {secret}", owner=HOSTILE)
    return checked(
        item,
        other,
        findings=[one],
        old=[finding(evil, rule="KVP002", message=HOSTILE, status="unchanged")],
        waived=[finding(evil, rule="KVP003", message=HOSTILE, waiver=waiver)],
        fixed=[finding(evil, rule="KVP004", message=HOSTILE)],
        removed=[evil],
        notes=[f"{HOSTILE} {secret}"],
        not_read=[NotRead(HOSTILE, 1, f"{HOSTILE} {secret}")],
    )
