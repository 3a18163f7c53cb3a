"""`kvplan report` of whatever lies where a journal should: the documented exit codes, never a traceback."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.errors import ExitCode

DEMO = Path(__file__).parents[1] / "data" / "runs" / "demo-cpu" / "journal.jsonl"
LINES = DEMO.read_text().splitlines()


def report(folder: Path, run: str = "r", *more: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", "report", run, "--runs-dir", str(folder), *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=folder,
    )
    return done.returncode, done.stdout, done.stderr


def journal(folder: Path, content: str | bytes) -> Path:
    path = folder / "r" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def assert_cannot_judge(answer: tuple[int, str, str], said: str) -> None:
    code, out, err = answer
    assert (code, out) == (ExitCode.CANNOT_JUDGE, "")
    assert err.count("\n") == 1
    assert re.search(said, err), err
    assert err.rstrip().endswith(")"), "a hint"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "does not begin with a run"),
        (b"\n\n", "not a line of|does not begin with a run"),
        (b'{"a": 1}\n', "journal.jsonl:1 is not a line of a kvplan.journal/1 journal"),
        (b"[1, 2]\n", "journal.jsonl:1 is not a line of"),
        (random.Random(1).randbytes(3000), "journal.jsonl:1 is not a line of|not UTF-8"),
        (b"\x1f\x8b\x08" + bytes(200), "journal.jsonl:1 is not a line of"),
        (LINES[0][:200], "journal.jsonl:1 is not a line of"),
        (
            "\n".join(LINES).replace("kvplan.journal/1", "kvplan.journal/9"),
            "journal.jsonl:1 is not a line of",
        ),
        ("\n".join([*LINES[:4], '{"garbage', *LINES[5:], ""]), "journal.jsonl:5 is not a line of"),
        ("\n".join([*LINES[:4], *LINES[5:], ""]), r"journal.jsonl:5 has seq 5 where 4 is due"),
        ("\n".join([*LINES[1:], ""]), "journal.jsonl:1 has seq 1 where 0 is due"),
    ],
    ids=[
        "empty",
        "blank",
        "other-json",
        "list",
        "random",
        "gzip",
        "torn-first",
        "other-version",
        "damaged",
        "gap",
        "no-header",
    ],
)
def test_what_is_no_journal_cannot_be_judged(tmp_path: Path, content: str | bytes, said: str) -> None:
    journal(tmp_path, content)
    assert_cannot_judge(report(tmp_path), said)


def test_where_there_is_no_file(tmp_path: Path) -> None:
    assert_cannot_judge(report(tmp_path), "no run 'r'")
    assert_cannot_judge(report(tmp_path / "none", cwd_safe(tmp_path)), "no run|no journal")


def cwd_safe(folder: Path) -> str:
    (folder / "none").mkdir()
    return "r"


def test_a_folder_or_a_device_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "r" / "journal.jsonl").mkdir(parents=True)
    assert_cannot_judge(report(tmp_path), "is no regular file")
    (tmp_path / "r" / "journal.jsonl").rmdir()
    (tmp_path / "r" / "journal.jsonl").symlink_to("/dev/zero")
    assert_cannot_judge(report(tmp_path), "is no regular file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_journal_that_may_not_be_read(tmp_path: Path) -> None:
    journal(tmp_path, "\n".join(LINES)).chmod(0)
    assert_cannot_judge(report(tmp_path), "Permission denied")


def test_a_whole_run_that_met_its_target(tmp_path: Path) -> None:
    journal(tmp_path, "\n".join([*LINES, ""]))
    code, out, err = report(tmp_path)
    assert (code, err) == (ExitCode.OK, "")
    assert out


def test_a_run_that_was_cut_short_has_met_nothing(tmp_path: Path) -> None:
    """A torn last line is dropped with a warning; without a confirmed setting the answer is no."""
    journal(tmp_path, "\n".join(LINES[:6]) + "\n" + LINES[6][:100])
    code, out, err = report(tmp_path)
    assert (code, err) == (ExitCode.NO, "")
    assert "journal.jsonl:7: the last line is torn" in out


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    journal(tmp_path, "\n".join([*LINES, ""]))
    assert_cannot_judge(report(tmp_path, "r", "--output", "none/x"), "--output none/x: No such file")


@pytest.mark.parametrize("number", range(0, len(LINES), 3))
def test_values_of_the_wrong_kind_are_never_a_traceback(tmp_path: Path, number: int) -> None:
    lines = [*LINES]
    lines[number] = re.sub(r"(?<=:)-?\d+\.\d+", lambda _: r'"\u001b[2J"', lines[number])
    journal(tmp_path, "\n".join([*lines, ""]))
    code, out, err = report(tmp_path)
    assert code in {ExitCode.OK, ExitCode.NO, ExitCode.CANNOT_JUDGE}
    assert "\x1b" not in out + err
    assert "Traceback" not in err
