"""The journal: nothing finished is lost or repeated, nothing torn is believed, no two runs are mixed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.config.serving import ServingConfig
from kvplan.errors import FailureClass, InputError, KvplanError
from kvplan.launch import Launch
from kvplan.tune.journal import (
    FILE_NAME,
    find_run,
    new_journal,
    read_journal,
    refuse_mixing,
    reopened_journal,
    write_line,
)
from kvplan.tune.trial import LoadLevel, LoadResult, Trial, TrialSpec

if TYPE_CHECKING:
    from pathlib import Path

HEADER: dict[str, Any] = {"problem": {"target_concurrency": 8}, "context": {"vllm_version": "0.32.0"}}


def trial(number: int = 1, utilization: float = 0.5) -> Trial:
    settings = ServingConfig(model="m", gpu_memory_utilization=utilization, other_flags={"seed": 3})
    level = LoadLevel("target", 8, repeats=2)
    return Trial(
        number=number,
        spec=TrialSpec("boundary", settings, (level,), "does it survive"),
        status="infeasible",
        launch=Launch("failed", settings.given(), "cpu", "m", failure=FailureClass.KILLED, oom_kill_count=1),
        loads=(LoadResult(level, 0, completed=3, failed=0, output_throughput=12.5),),
        failure=FailureClass.KILLED,
        evidence="oom_kill 1",
        kv_cache_bytes=10**9,
        wall_s=31.5,
    )


def run_with_trials(runs_dir: Path, count: int) -> Path:
    with new_journal(runs_dir, HEADER) as journal:
        for number in range(1, count + 1):
            journal.append("trial", key=f"key{number}", trial=trial(number, number / 10).as_dict())
        return journal.folder


def test_a_trial_comes_back_from_the_journal_as_it_was(tmp_path: Path) -> None:
    contents = read_journal(run_with_trials(tmp_path, 2))
    assert contents.trials == (trial(1, 0.1), trial(2, 0.2))
    assert contents.finished() == {"key1": trial(1, 0.1), "key2": trial(2, 0.2)}
    assert contents.measured_s == 63.0
    assert contents.warnings == ()


def test_every_line_is_a_self_contained_object_with_its_schema_and_run(tmp_path: Path) -> None:
    folder = run_with_trials(tmp_path, 2)
    lines = [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]
    assert [(line["schema"], line["run"], line["seq"], line["kind"]) for line in lines] == [
        ("kvplan.journal/1", folder.name, 0, "run"),
        ("kvplan.journal/1", folder.name, 1, "trial"),
        ("kvplan.journal/1", folder.name, 2, "trial"),
    ]


@pytest.mark.parametrize("bytes_kept", [1, 40, -1])
def test_a_torn_last_line_is_dropped_with_a_warning_and_overwritten_by_the_next(
    tmp_path: Path, bytes_kept: int
) -> None:
    folder = run_with_trials(tmp_path, 2)
    path = folder / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:bytes_kept])

    contents = read_journal(folder)
    assert set(contents.finished()) == {"key1"}
    assert len(contents.warnings) == 1
    assert f"{path}:3" in contents.warnings[0]

    with reopened_journal(folder) as journal:
        journal.append("trial", key="key2", trial=trial(2, 0.2).as_dict())
    again = read_journal(folder)
    assert again.warnings == ()
    assert set(again.finished()) == {"key1", "key2"}
    assert [line["seq"] for line in again.lines] == [0, 1, 2]


def test_zeros_that_a_power_loss_leaves_are_a_torn_line(tmp_path: Path) -> None:
    folder = run_with_trials(tmp_path, 1)
    with (folder / FILE_NAME).open("ab") as file:
        file.write(b"\0" * 4096)
    contents = read_journal(folder)
    assert set(contents.finished()) == {"key1"}
    assert len(contents.warnings) == 1


def test_a_broken_line_in_the_middle_is_refused_with_its_number(tmp_path: Path) -> None:
    folder = run_with_trials(tmp_path, 2)
    path = folder / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:50] + b"\n" + lines[2])
    with pytest.raises(InputError, match=f"{FILE_NAME}:2 is not a line"):
        read_journal(folder)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"a": 1}\n')
    with pytest.raises(InputError, match=r"not a line of a kvplan\.journal/1 journal"):
        read_journal(tmp_path)
    (tmp_path / FILE_NAME).write_text("")
    with pytest.raises(InputError, match="does not begin with a run"):
        read_journal(tmp_path)


def test_a_full_disk_is_told_with_the_way_on_and_costs_only_the_line_that_was_refused(tmp_path: Path) -> None:
    folder = run_with_trials(tmp_path, 1)
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(KvplanError, match="No space left on device") as caught:
        write_line(full, {"a": 1}, 0, folder / FILE_NAME)
    os.close(full)
    assert caught.value.hint is not None
    assert f"kvplan tune --resume {folder}" in caught.value.hint


def test_a_write_that_stops_half_way_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    # A file size limit makes the kernel take the first bytes of the line and then refuse, like a full disk.
    folder = run_with_trials(tmp_path, 1)
    before = (folder / FILE_NAME).read_bytes()
    program = f"""
import resource, signal
from pathlib import Path
from kvplan.errors import KvplanError
from kvplan.tune.journal import reopened_journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 20}, {len(before) + 20}))
with reopened_journal(Path({str(folder)!r})) as journal:
    try:
        journal.append("note", text="x" * 1000)
    except KvplanError as error:
        print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert (folder / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(("bytes_written", "kept"), [(0, [0, 1, 2]), (30, [0, 1, 2]), (None, [0, 1, 2, 3])])
def test_an_interrupt_while_a_line_is_written_leaves_it_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_written: int | None, kept: list[int]
) -> None:
    folder, write = run_with_trials(tmp_path, 1), os.write

    def interrupted(file: int, data: bytes) -> int:
        # A signal's handler runs between steps: before the call, behind it, or behind a short one.
        write(file, data[:bytes_written])
        raise KeyboardInterrupt

    with reopened_journal(folder) as journal:
        line = trial(2, 0.2).as_dict()
        with monkeypatch.context() as patch:
            patch.setattr("kvplan.tune.journal.os.write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                journal.append("trial", key="key2", trial=line)
        journal.append("outcome", finished=False, recommendation={})
    contents = read_journal(folder)
    assert contents.warnings == ()
    assert [line["seq"] for line in contents.lines] == kept
    assert contents.lines[-1]["kind"] == "outcome"


def test_a_run_that_could_not_be_begun_for_lack_of_disk_is_not_there(tmp_path: Path) -> None:
    program = f"""
import resource, signal
from pathlib import Path
from kvplan.errors import KvplanError
from kvplan.tune.journal import new_journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
try:
    with new_journal(Path({str(tmp_path)!r}), {{"problem": {{}}}}):
        print("it began")
except KvplanError as error:
    print(error.message, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert "--runs-dir" in done.stdout
    assert list(tmp_path.glob("*")) == []


def test_a_second_tuner_is_refused_while_the_first_lives_and_only_then(tmp_path: Path) -> None:
    folder = run_with_trials(tmp_path, 1)
    with (
        reopened_journal(folder),
        pytest.raises(InputError, match=rf"is being tuned by process {os.getpid()}"),
        reopened_journal(folder),
    ):
        pass
    with reopened_journal(folder):
        pass


def test_a_run_of_other_settings_is_not_continued_and_the_difference_is_named(tmp_path: Path) -> None:
    contents = read_journal(run_with_trials(tmp_path, 1))
    refuse_mixing(contents, HEADER["problem"], HEADER["context"])
    with pytest.raises(InputError, match=r"problem\.target_concurrency: 8 in the run, 16 now"):
        refuse_mixing(contents, {"target_concurrency": 16}, HEADER["context"])
    with pytest.raises(InputError, match=r"context\.vllm_version: 0\.32\.0 in the run, 0\.33\.0 now"):
        refuse_mixing(contents, HEADER["problem"], {"vllm_version": "0.33.0"})


def test_a_run_is_found_by_name_by_path_and_as_the_last(tmp_path: Path) -> None:
    folder = run_with_trials(tmp_path, 1)
    assert find_run(folder.name, tmp_path) == folder
    assert find_run(str(folder), tmp_path / "elsewhere") == folder
    assert find_run(str(folder / FILE_NAME), tmp_path) == folder
    assert find_run("last", tmp_path) == folder
    with pytest.raises(InputError, match="no run 'nope'") as caught:
        find_run("nope", tmp_path)
    assert caught.value.hint == f"known runs: {folder.name}"


def test_the_key_of_a_trial_knows_settings_loads_attempt_and_context_and_nothing_else() -> None:
    spec = trial().spec
    same = TrialSpec("confirm", spec.settings, spec.levels, "another sentence")
    context = {"model": "m", "vllm_version": "0.32.0"}
    assert spec.key(context) == same.key(context)
    others = [
        TrialSpec("boundary", spec.settings.with_flags(block_size=32), spec.levels, ""),
        TrialSpec("boundary", spec.settings.with_flags(seed=4), spec.levels, ""),
        TrialSpec("boundary", spec.settings, (), ""),
        TrialSpec("boundary", spec.settings, spec.levels, "", attempt=2),
    ]
    keys = {spec.key(context), spec.key({**context, "vllm_version": "0.33.0"})}
    assert len(keys | {other.key(context) for other in others}) == 6


def test_a_pipe_is_no_journal_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE_NAME)

    with pytest.raises(InputError, match="no regular file"):
        read_journal(tmp_path)
