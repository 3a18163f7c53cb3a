"""`kvplan tune --url` as a process, against a server that speaks like vLLM and is there afterwards too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.tune.journal import FILE_NAME, read_journal
from tests.unit.test_load_bench import serve, stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LENGTHS = ("--input-len", "20", "--output-len", "10", "--vocab-size", "1000", "--max-minutes", "0.08")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, url = serve()
    yield url
    assert process.poll() is None, "the measured server was ended"
    stop(process)


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "kvplan", "tune", *argv]


def tune(runs: Path, *argv: str, key: str | None = "secret") -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) | ({} if key is None else {"VLLM_API_KEY": key})
    return subprocess.run(
        command(*argv, "--runs-dir", str(runs)),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def measured(runs: Path, *argv: str) -> dict[str, Any]:
    done = tune(runs, *argv, "--format", "json")
    assert done.returncode in {0, 1}, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["met"] == (done.returncode == 0)
    return report


def test_a_target_is_answered_with_figures_settings_and_kv_arithmetic(url: str, tmp_path: Path) -> None:
    report = measured(tmp_path, "--url", f"{url}/v1", *LENGTHS, "--target-concurrency", "3")

    assert report["schema"] == "kvplan.server-report/1"
    assert report["finished"]
    assert report["met"]
    # The server names its one model itself.
    assert report["context"]["model"]["served"] == "m"
    users = [load["users"] for load in report["loads"]]
    assert users[:3] == [1, 2, 3]
    for load in report["loads"]:
        assert load["failed"] == 0
        assert load["completed"] == max(8, 3 * load["users"])
        # The server waits 20 ms before the first token and 5 ms before each of the nine others.
        assert load["p50_ttft_ms"] >= 20
        assert load["p50_tpot_ms"] >= 5
    # 1,024 blocks of 128, one of them the null block; a request of 30 tokens needs one.
    assert (report["kv"]["kv_cache_tokens"], report["kv"]["requests_at_longest"]) == (131_072, 1023)
    assert "secret" not in (tmp_path / report["run"] / FILE_NAME).read_text()


def test_a_limit_that_nothing_keeps_exits_1(url: str, tmp_path: Path) -> None:
    report = measured(tmp_path, "--url", url, *LENGTHS, "--ttft-p99-ms", "1")

    assert not report["met"]
    assert report["highest_load_kept"] is None
    assert [load["users"] for load in report["loads"]] == [1]


def test_text_markdown_and_html_tell_the_same_from_the_journal(url: str, tmp_path: Path) -> None:
    done = tune(tmp_path, "--url", url, *LENGTHS, "--ttft-p99-ms", "500", "--target-concurrency", "2")
    assert done.returncode == 0, done.stderr
    assert "the target of 2 users is kept" in done.stdout.splitlines()[0]
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    for output_format, mark in (("markdown", "## Loads"), ("html", "<h2"), ("json", "{")):
        options = ["--runs-dir", str(tmp_path), "--format", output_format]
        again = subprocess.run(
            [sys.executable, "-m", "kvplan", "report", "last", *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert again.returncode == 0, again.stderr
        assert mark in again.stdout


def test_a_killed_run_goes_on_and_repeats_no_load(url: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--url", url, *LENGTHS, "--runs-dir", str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"VLLM_API_KEY": "secret"},
    )
    try:
        deadline = time.monotonic() + 60
        while not (found := list(tmp_path.glob(f"*/{FILE_NAME}"))) or b'"load"' not in found[0].read_bytes():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = [line["point"] for line in read_journal(found[0]).lines if line["kind"] == "load"]

    report = measured(tmp_path, "--resume", "last", "--vocab-size", "1000", "--url", url)

    after = [line["point"] for line in read_journal(found[0]).lines if line["kind"] == "load"]
    assert after[: len(before)] == before
    users = [load["users"] for load in after]
    assert len(users) == len(set(users))
    assert report["finished"]


def test_ctrl_c_keeps_what_was_measured_and_says_how_to_go_on(url: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--url", url, *LENGTHS, "--runs-dir", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"VLLM_API_KEY": "secret"},
    )
    while not (found := list(tmp_path.glob(f"*/{FILE_NAME}"))) or b'"load"' not in found[0].read_bytes():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=30)

    assert process.returncode == 130
    assert f"--resume {found[0].parent}" in complaints
    assert "Traceback" not in complaints


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--model", "other", *LENGTHS), "does not serve 'other' (it serves m"),
        ((), "the length of the requests is not known"),
        (("--input-len", "20"), "one length of the requests is missing"),
        ((*LENGTHS, "--kv-cache-dtype", "fp8"), "--kv-cache-dtype would change nothing of it"),
        ((*LENGTHS, "--demo", "--enforce-eager"), "--demo, --enforce-eager would change nothing of it"),
        ((*LENGTHS, "--resume", "nothing"), "no run 'nothing'"),
        ((*LENGTHS, "--dry-run"), "--dry-run plans launches, and --url makes none"),
        ((*LENGTHS, "--api-key-env", "NO_SUCH"), "--api-key-env NO_SUCH"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(
    url: str, tmp_path: Path, argv: tuple[str, ...], complaint: str
) -> None:
    done = tune(tmp_path, "--url", url, *argv)

    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_key_is_named(url: str, tmp_path: Path) -> None:
    done = tune(tmp_path, "--url", url, *LENGTHS, key=None)

    assert done.returncode == 2
    assert "answered 401: it wants a key, and none was given" in done.stderr


def test_another_server_is_not_mixed_into_a_run(url: str, tmp_path: Path) -> None:
    measured(tmp_path, "--url", url, *LENGTHS, "--ttft-p99-ms", "1")
    process, other = serve()
    try:
        done = tune(tmp_path, "--url", other, "--vocab-size", "1000", "--resume", "last")
    finally:
        stop(process)

    assert done.returncode == 2
    assert "measured something else: " in done.stderr


@pytest.mark.parametrize("mood", ["answers_500", "garbage_metrics"])
def test_a_server_in_a_mood(tmp_path: Path, mood: str) -> None:
    process, url = serve(mood)
    try:
        done = tune(tmp_path, "--url", url, *LENGTHS, "--target-concurrency", "2", "--format", "json")
    finally:
        stop(process)

    if mood == "answers_500":
        assert done.returncode == 2
        assert "no request was answered: 500 Internal Server Error" in done.stderr
    else:
        report = json.loads(done.stdout)
        assert (report["kv"], report["has_metrics"]) == (None, False)
        assert any("no vLLM /metrics" in finding["text"] for finding in report["findings"])
