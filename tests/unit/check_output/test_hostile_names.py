"""Names that a terminal, a comment or a workflow would act on, and secrets: the command, in every format."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

import kvplan
from kvplan.errors import InputError
from kvplan.gate import find
from kvplan.report.check.show import FORMATS

ACTS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Whatever moves a cursor, colours, hides or turns text; newlines and tabs are looked at by themselves."""

NAMES: Final = (
    b"two\nlines.sh",
    b"::error title=x::fake.sh",
    b" ::stop-commands::x.sh",
    b"a ##[error] b.sh",
    b"\x1b[2J\x1b]0;owned\x07.sh",
    b"c1-\xc2\x9b31m.sh",
    b"turned-\xe2\x80\xaehs.sh",
    b"no-utf8-\xff.sh",
    b"<!-- kvplan-check tag=default run=9 -->.sh",
    b"| a | b |.sh",
    b"hf_FAKEfakeFAKEfake.sh",
)
SECRETS: Final = (
    "hf_FAKEfakeFAKEfake",
    "sk-FAKEfakeFAKE",
    "plainword99",
    "glpat-FAKEfakeFAKEfake",
    "pa55w0rd9",
)
SCRIPT: Final = (
    "export HF_TOKEN=hf_FAKEfakeFAKEfake\n"
    "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 32768 --gpu-memory-utilization 0.5 "
    "--api-key sk-FAKEfakeFAKE --api-key plainword99 --hf-token hf_FAKEfakeFAKEfake "
    "--glpat-FAKEfakeFAKEfake --max-num-seqs hf_FAKEfakeFAKEfake\n"
    "vllm serve https://user:pa55w0rd9@example.org/model --max-model-len $hf_FAKEfakeFAKEfake\n"
)
POLICY: Final = (
    "gpu: l4\nallowed: {api_key: [plainword99], max_model_len: [8192]}\n"
    "waivers:\n  - {rule: KVP003, path: '**', until: 2027-02-01, reason: token hf_FAKEfakeFAKEfake}\n"
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    for name in NAMES:
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_text(SCRIPT)
    Path(root, ".kvplan.yaml").write_text(POLICY)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)  # noqa: S607  the user's git
    return root


def run(root: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "CI_"))}
    environment |= {"PYTHONPATH": str(Path(kvplan.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "kvplan", "check", "--today", "2026-11-29", *options],
        cwd=root,
        env=environment,
        capture_output=True,
        check=False,
    )


def commands_in(log: bytes) -> list[str]:
    """Lines that GitHub's runner would obey: it trims a line before it looks for `::`."""
    lines = log.decode().splitlines()
    return [line for line in lines if line.strip().startswith("::") or "##[" in line]


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_that_is_printed_acts_or_tells_a_secret(repository: Path, form: str) -> None:
    done = run(repository, "--format", form)
    assert done.returncode == 1, done.stderr.decode()
    printed = (done.stdout + done.stderr).decode()
    assert [secret for secret in SECRETS if secret in printed] == []
    assert ACTS.findall(printed) == []
    if form != "github":
        assert commands_in(done.stdout) == []
    if form in {"json", "gitlab", "sarif"}:
        json.loads(printed)
    elif form == "text":
        # A line is a finding, a launch or the count: no name begins one of its own.
        assert not [line for line in printed.splitlines() if line.startswith("lines.sh")]
        assert "two lines.sh:2: error KVP" in printed
    elif form == "github":
        assert commands_in(done.stdout) == []
        commands = [line for line in done.stderr.decode().splitlines() if line.startswith("::")]
        assert commands
        assert all(re.match(r"::(error|warning|notice) file=[^:]*,line=\d+,", line) for line in commands)
    elif form == "markdown":
        assert printed.count("<!--") == 1


@pytest.mark.parametrize("options", [("--list",), ("--list", "--format", "json")])
def test_nor_does_what_was_read(repository: Path, options: tuple[str, ...]) -> None:
    done = run(repository, *options)
    assert done.returncode == 0, done.stderr.decode()
    printed = (done.stdout + done.stderr).decode()
    assert [secret for secret in SECRETS if secret in printed] == []
    assert ACTS.findall(printed) == []
    assert commands_in(done.stdout) == []


def test_a_first_policy_reads_and_means_those_files(tmp_path: Path) -> None:
    for name in NAMES[:-1]:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text(
            "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 8192\n"
        )
    (tmp_path / "[a]*.sh").write_text("vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len $X\n")
    done = run(tmp_path, "--init", "--gpu", "l4")
    assert done.returncode == 0, done.stderr.decode()
    text = (tmp_path / ".kvplan.yaml").read_text()
    assert ACTS.findall(text) == []
    (entry,) = yaml.safe_load(text)["paths"]
    assert (len(entry["match"]), entry["require_judged"]) == (len(NAMES) - 1, True)
    judged = run(tmp_path)
    # Every pattern finds its launch: KVP028 would say so otherwise.
    assert judged.returncode == 0, judged.stdout.decode()
    assert b"KVP028" not in judged.stdout


def test_a_folder_that_may_be_the_whole_machine_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(12):
        (tmp_path / f"{i}.sh").touch()
    monkeypatch.setattr(find, "_MOST_FILES", 10)
    with pytest.raises(InputError, match="no git repository, and more than 10 files"):
        find.tree_files(tmp_path)
    monkeypatch.setattr(find, "_MOST_FILES", 12)
    assert len(find.tree_files(tmp_path)) == 12
