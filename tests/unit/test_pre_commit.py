"""The hook in a real pre-commit installation: it builds kvplan from these files and runs on a commit.

Takes 10 to 20 s, nearly all of it pip in pre-commit's own environment (PyPI is reached for the dependencies).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvplan.gate.candidates import is_candidate_name

ROOT = Path(__file__).parents[2]
SHIPPED = ("kvplan", "profiles", "docs", "pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml")
# One request of 131,072 tokens of Llama-3.1-8B alone takes 16 GiB of cache, beside 15 GiB of weights.
TOO_LONG = "CUDA_VISIBLE_DEVICES=0 vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 131072\n"
CONFIG = """\
repos:
  - repo: {repo}
    rev: {rev}
    hooks:
      - id: kvplan-check
        args: [--gpu, rtx-4090, --]
"""


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "GITHUB_"))
    }
    environment |= {
        "PRE_COMMIT_HOME": str(folder.parent / "pre-commit"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    for who in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{who}_NAME": "A Developer", f"GIT_{who}_EMAIL": "dev@example.org"}
    return subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=500
    )


def committed(folder: Path, message: str) -> str:
    """A repository of everything in the folder; gives the commit's id."""
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--no-verify", "-m", message]):
        done = run(folder, "git", *arguments)
        assert done.returncode == 0, done.stderr
    return run(folder, "git", "rev-parse", "HEAD").stdout.strip()


@pytest.fixture(scope="module")
def hook_repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """These files as the repository that a user's configuration names."""
    folder = tmp_path_factory.mktemp("hooks") / "kvplan"
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_profiles"))
        else:
            shutil.copy(source, folder / name)
    return folder, committed(folder, "Release")


def test_a_commit_with_a_launch_that_cannot_start_is_refused_and_a_good_one_is_made(
    hook_repository: tuple[Path, str], tmp_path: Path
) -> None:
    repo, rev = hook_repository
    user = tmp_path / "user"
    (user / "-deploy").mkdir(parents=True)
    (user / ".pre-commit-config.yaml").write_text(CONFIG.format(repo=repo, rev=rev))
    (user / "notes.txt").write_text("vllm serve, some day\n")
    committed(user, "Start")
    installed = run(user, sys.executable, "-m", "pre_commit", "install", "--install-hooks")
    assert installed.returncode == 0, installed.stdout + installed.stderr

    # A folder whose name looks like an option is a file's name all the same.
    (user / "-deploy/run.sh").write_text(TOO_LONG)
    run(user, "git", "add", "-A")
    refused = run(user, "git", "commit", "-m", "Longer")
    assert refused.returncode == 1
    assert re.search(r"kvplan check\.+Failed", refused.stderr + refused.stdout)
    assert "-deploy/run.sh:1: error KVP001: will not start" in refused.stderr + refused.stdout

    (user / "-deploy/run.sh").write_text(TOO_LONG.replace("131072", "4096"))
    run(user, "git", "add", "-A")
    made = run(user, "git", "commit", "-m", "Shorter")
    assert made.returncode == 0, made.stdout + made.stderr
    assert re.search(r"kvplan check\.+Passed", made.stderr + made.stdout)

    # What was installed is a wheel: the rules' pages are in it.
    (python,) = (user.parent / "pre-commit").glob("repo*/py_env-*/bin/python")
    shown = run(user, str(python), "-I", "-m", "kvplan", "check", "--format", "sarif", "./-deploy")
    rules = json.loads(shown.stdout)["runs"][0]["tool"]["driver"]["rules"]
    assert rules[0]["help"]["markdown"].startswith("# KVP001: will-not-start")


NAMES = (
    "deploy/chat.yaml", "values.yml", "sweep.json", "run.sh", "job.sbatch", "train.slurm", "Dockerfile",
    "docker/Dockerfile.gpu", "Containerfile", "app.dockerfile", "vllm.service", "vllm.container", "serve.py",
    "supervisord.conf", "x.ini", "job.nomad", "job.hcl", "chart/templates/_x.tpl", "play.yml.j2", "setup.cfg",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_hook_takes_the_files_that_the_gate_reads(name: str) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert is_candidate_name(name)
    assert re.search(hook["files"], name)


@pytest.mark.parametrize("name", ["README.md", "src/main.rs", "go.sum", "a.yaml.bak"])
def test_the_hook_leaves_other_files_alone(name: str) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert not re.search(hook["files"], name)
