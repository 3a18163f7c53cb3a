"""`kvplan bench` as a process, against a server that speaks like vLLM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvplan.engine.process_tree import all_processes, descendants

if TYPE_CHECKING:
    from collections.abc import Iterator

FAKE = Path(__file__).parents[1] / "fake_vllm.py"
LENGTHS = ("--input-len", "20", "--output-len", "10")


def serve(mood: str = "well") -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = {"start_s": 0.0, "ttft_ms": 20, "itl_ms": 5} | ({} if mood == "well" else {"mood": mood})
    environment = os.environ | {"FAKE_VLLM": json.dumps(script), "VLLM_API_KEY": "secret"}
    command = [sys.executable, str(FAKE), "--port", str(port), "--model", "m", "--served-model-name", "m"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    for _ in range(200):
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()  # noqa: S310  our own server
            break
        except OSError:
            time.sleep(0.05)
    return process, url


def stop(process: subprocess.Popen[bytes]) -> None:
    """The fake and its child, which has a session of its own, as vLLM's engine core has."""
    for pid in [process.pid, *(p.pid for p in descendants(process.pid, all_processes()))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, url = serve()
    yield url
    stop(process)


def command(url: str, *argv: str) -> list[str]:
    key = ("--api-key", "secret", "--vocab-size", "1000", "--warmup-requests", "0")
    return [sys.executable, "-m", "kvplan", "bench", "--url", url, "--model", "m", *key, *argv]


def bench(url: str, *argv: str) -> tuple[int, str, str]:
    done = subprocess.run(command(url, *argv), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_one_load_as_json(url: str) -> None:
    code, printed, _ = bench(url, *LENGTHS, "--concurrency", "4", "--num-requests", "12", "--format", "json")

    (measured,) = json.loads(printed)["measurements"]
    assert code == 0
    assert measured["summary"]["completed"] == 12
    assert (measured["summary"]["total_input_tokens"], measured["summary"]["total_output_tokens"]) == (
        240,
        120,
    )
    assert (measured["server"]["prompt_tokens"], measured["server"]["generation_tokens"]) == (240, 120)
    # The server waits 20 ms before the first token and 5 ms before each of the nine others.
    assert measured["summary"]["p50_ttft_ms"] >= 20
    assert measured["summary"]["p50_e2el_ms"] >= 65
    assert "secret" not in printed


def test_a_sweep_measures_every_number_of_users(url: str) -> None:
    code, printed, _ = bench(url, *LENGTHS, "--concurrency", "1", "--concurrency", "3")

    rows = [line.split() for line in printed.splitlines() if line.startswith("  ")][1:]
    assert code == 0
    # Four requests a user.
    assert [row[:3] for row in rows] == [["1", "4", "0"], ["3", "12", "0"]]


def test_a_server_that_only_fails_exits_2_and_says_why() -> None:
    process, url = serve("answers_500")
    try:
        code, printed, _ = bench(url, *LENGTHS, "--concurrency", "2", "--num-requests", "4")
    finally:
        stop(process)

    assert code == 2
    assert "failed: 4 x 500 Internal Server Error: EngineCore encountered an issue" in printed
    assert "TTFT   n/a" in printed


def test_ctrl_c_prints_what_was_measured(url: str) -> None:
    process = subprocess.Popen(
        command(url, *LENGTHS, "--concurrency", "2", "--duration", "60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(3.0)
    process.send_signal(signal.SIGINT)
    printed, complaints = process.communicate(timeout=20)

    assert process.returncode == 130
    assert "note: the load was stopped: interrupted" in printed
    assert "answered" in printed
    assert "Traceback" not in complaints


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (LENGTHS, "nothing says how many users the load has (give --concurrency)"),
        (("--concurrency", "2"), "the lengths of the requests are missing"),
        ((*LENGTHS, "--concurrency", "0"), "--concurrency below 1"),
        ((*LENGTHS, "--workload", "chat"), "--workload says the lengths already"),
        ((*LENGTHS, "--num-requests", "4", "--duration", "3"), "--num-requests and --duration both"),
        (("--workload", "chatt", "--concurrency", "2"), "no file or preset 'chatt' (did you mean chat?)"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(url: str, argv: tuple[str, ...], complaint: str) -> None:
    code, printed, complaints = bench(url, *argv)

    assert (code, printed) == (2, "")
    assert complaint in complaints
    assert len(complaints.splitlines()) == 1
