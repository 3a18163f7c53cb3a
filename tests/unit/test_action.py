"""The action's steps, run as shell on this machine: a fake event, and a `gh` on PATH that records its calls.

What `uses:` another action is not run. The expressions that the steps take their variables from are evaluated
here, by the few forms that action.yml uses.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[2]
ACTION: Final[dict[str, Any]] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: Final[list[dict[str, Any]]] = ACTION["runs"]["steps"]
BOT: Final = "github-actions[bot]"

# On 24 GB, Llama-3.1-8B holds a request of 4,096 tokens (0.5 GiB of cache) and none of 131,072 (16 GiB).
FITS: Final = "CUDA_VISIBLE_DEVICES=0 vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096\n"
TOO_LONG: Final = FITS.replace("4096", "131072")

GH: Final = """\
#!/bin/sh
# Records what it is asked and what it is given, answers the list of comments.
{ printf '%s\\n' "$*"; case "$*" in *--input*) cat; echo;; esac; } >> "$GH_LOG"
case "$*" in *--paginate*) cat "$GH_COMMENTS";; *) echo '{}';; esac
"""


# The action's own environment has kvplan installed; here it is these files. The action asks for isolation.
LAUNCHER: Final = """\
import runpy, sys
sys.path.insert(0, {root!r})
flag, kind, what, *rest = sys.argv[1:]
assert flag == "-I", sys.argv
sys.argv = [what, *rest]
exec(what) if kind == "-c" else runpy.run_module(what, run_name="__main__", alter_sys=True)
"""


@dataclass
class Host:
    """A runner: a repository with a pull request checked out, and what the steps left."""

    folder: Path
    event: dict[str, Any]
    inputs: dict[str, str] = field(default_factory=dict)
    event_name: str = "pull_request"
    run_id: int = 1001
    comments: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""

    @property
    def repository(self) -> Path:
        """What is checked out."""
        return self.folder / "repository"

    @property
    def calls(self) -> list[str]:
        """What gh was asked for, with the text that it was given below."""
        path = self.folder / "gh.log"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def summary(self) -> str:
        """The page of the job."""
        return (self.folder / "summary.md").read_text()

    def value(self, expression: str) -> str:
        """`inputs.x`, `steps.a.outputs.b`, `github.a.b` as the host gives them; unknown ones are empty."""
        kind, _, rest = expression.partition(".")
        if kind == "inputs":
            default = str(ACTION["inputs"][rest]["default"])
            return self.inputs.get(rest, default)
        if kind == "steps":
            step, _, name = rest.partition(".outputs.")
            return self.outputs.get(step, {}).get(name, "")
        known: dict[str, Any] = {
            "action_path": str(ROOT),
            "event_name": self.event_name,
            "repository": "team/models",
            "event": self.event,
            "token": "a-token",
        }
        found: Any = known
        for part in rest.split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        return str(found)

    def filled(self, text: str) -> str:
        """A text with its expressions evaluated."""
        return re.sub(r"\$\{\{\s*([\w.-]+)\s*\}\}", lambda match: self.value(match[1]), text)

    def wanted(self, step: Mapping[str, Any]) -> bool:
        """A step's `if:`, of comparisons joined by `&&`."""
        for term in re.split(r"\s*&&\s*", step.get("if", "always()").strip()):
            if term == "always()":
                continue
            left, operator, right = re.fullmatch(r"(\S+) (==|!=) (\S+)", term).groups()  # type: ignore[union-attr]
            value = right[1:-1] if right.startswith("'") else self.value(right)
            if (self.value(left) == value) != (operator == "=="):
                return False
        return True

    def run(self) -> int:
        """Every step; the exit code of the last that failed, 0 when none did."""
        (self.folder / "event.json").write_text(json.dumps(self.event))
        (self.folder / "comments.json").write_text(json.dumps(self.comments))
        (self.folder / "gh.log").unlink(missing_ok=True)
        for step in STEPS:
            if "run" in step and step.get("id") != "install" and self.wanted(step):
                code = self._run_step(step)
                if code:
                    return code
        return 0

    def _run_step(self, step: Mapping[str, Any]) -> int:
        output = self.folder / "output.txt"
        output.write_text("")
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            "RUNNER_TEMP": str(self.folder / "temp"),
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_EVENT_PATH": str(self.folder / "event.json"),
            "GITHUB_REPOSITORY": "team/models",
            "GITHUB_RUN_ID": str(self.run_id),
            "GH_LOG": str(self.folder / "gh.log"),
            "GH_COMMENTS": str(self.folder / "comments.json"),
        } | {name: self.filled(text) for name, text in step["env"].items()}
        # As the runner runs `shell: bash`.
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],  # noqa: S607  the machine's
            cwd=self.repository,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        self.log += done.stdout + done.stderr
        pairs = (line.partition("=") for line in output.read_text().splitlines())
        self.outputs[step.get("id", step["name"])] = {name: value for name, _, value in pairs}
        return done.returncode


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A Developer", "-c", "user.email=dev@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],  # noqa: S607  the machine's
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A pull request that makes a launch too long; kvplan is there already."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    (repository / "run.sh").write_text(FITS)
    (repository / "README.md").write_text("Models\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "Start")
    base = git(repository, "rev-parse", "HEAD")
    (repository / "run.sh").write_text(TOO_LONG)
    git(repository, "commit", "-q", "-am", "Longer")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "gh").write_text(GH)
    (binaries / "gh").chmod(0o755)
    folder = tmp_path / "temp/kvplan-check"
    (folder / "venv/bin").mkdir(parents=True)
    # Isolated like the action's own, with this kvplan on the path.
    python = folder / "venv/bin/python"
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER.format(root=str(ROOT)))
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{launcher}" "$@"\n')
    python.chmod(0o755)
    pull = {
        "number": 12,
        "base": {"sha": base},
        "head": {"repo": {"full_name": "team/models"}},
    }
    made = Host(tmp_path, {"pull_request": pull}, {"gpu": "rtx-4090"})
    made.outputs["install"] = {"folder": str(folder)}
    return made


def test_a_pull_request_that_breaks_a_launch_fails_with_annotation_summary_and_files(host: Host) -> None:
    assert host.run() == 1
    outputs = host.outputs["check"]
    assert {name: outputs[name] for name in ("verdict", "changed", "failed", "code")} == {
        "verdict": "fails", "changed": "true", "failed": "true", "code": "1",
    }  # fmt: skip
    assert "::error file=run.sh,line=1,endLine=1,title=KVP001 will-not-start::" in host.log
    assert host.summary.startswith("### kvplan check fails: 1 of 1 launch changed, 1 no longer starts")
    assert json.loads(Path(outputs["sarif-file"]).read_text())["version"] == "2.1.0"
    assert json.loads(Path(outputs["json-file"]).read_text())["schema"] == "kvplan.check/1"
    assert host.calls == []


def test_a_pull_request_that_changes_no_launch_passes_and_posts_nothing(host: Host) -> None:
    git(host.repository, "checkout", "-q", "main")
    git(host.repository, "reset", "-q", "--hard", host.event["pull_request"]["base"]["sha"])
    (host.repository / "README.md").write_text("All models\n")
    git(host.repository, "commit", "-q", "-am", "Words")
    host.inputs["comment"] = "true"
    assert host.run() == 0
    assert host.outputs["check"]["changed"] == "false"
    assert host.calls == ["api --paginate repos/team/models/issues/12/comments?per_page=100"]


def test_the_comment_is_created_then_left_alone_then_updated_in_place(host: Host) -> None:
    host.inputs["comment"] = "true"
    assert host.run() == 1
    assert host.calls[1] == "api --method POST --input - repos/team/models/issues/12/comments"
    body = json.loads(host.calls[2])["body"]
    assert body.startswith("<!-- kvplan-check tag=default run=1001 -->\n### kvplan check fails: ")

    host.comments = [
        {"id": 1, "body": "Looks good", "user": {"login": "reviewer"}},
        {"id": 7, "body": body, "user": {"login": BOT}},
    ]
    host.run_id = 1002
    assert host.run() == 1
    assert len(host.calls) == 1, "the text is the same"

    (host.repository / "run.sh").write_text(FITS.replace("4096", "8192"))
    git(host.repository, "commit", "-q", "-am", "Shorter")
    host.run_id = 1003
    assert host.run() == 0
    assert host.calls[1] == "api --method PATCH --input - repos/team/models/issues/comments/7"
    assert json.loads(host.calls[2])["body"].startswith(
        "<!-- kvplan-check tag=default run=1003 -->\n### kvplan check passes: 1 of 1 launch changed"
    )


def test_a_late_job_does_not_overwrite_what_a_newer_push_was_told(host: Host) -> None:
    newer = "<!-- kvplan-check tag=default run=2000 -->\n### kvplan check passes: 1 of 1 launch changed\n"
    host.inputs["comment"] = "true"
    host.comments = [{"id": 7, "body": newer, "user": {"login": BOT}}]
    assert host.run() == 1
    assert len(host.calls) == 1
    assert "comment: nothing (run 2000 is newer)" in host.log


@pytest.mark.parametrize("change", ["fork", "event"])
def test_a_fork_gets_summary_and_annotations_and_no_comment(host: Host, change: str) -> None:
    host.inputs["comment"] = "true"
    if change == "fork":
        host.event["pull_request"]["head"]["repo"]["full_name"] = "somebody/models"
    else:
        host.event_name = "pull_request_target"
    assert host.run() == 1
    assert host.calls == []
    assert "::error " in host.log
    assert host.summary


def test_a_history_too_shallow_to_compare_could_not_be_judged_and_is_not_passed_over(host: Host) -> None:
    host.event["pull_request"]["base"]["sha"] = "0" * 40
    assert host.run() == 2
    outputs = host.outputs["check"]
    assert (outputs["verdict"], outputs["failed"], outputs["changed"]) == ("could-not-judge", "true", "false")
    assert "json-file" not in outputs
    assert "fetch the base branch with its history" in host.log
    assert "::error title=kvplan check::Could not judge (exit 2)" in host.log


def test_without_a_pull_request_the_whole_tree_is_judged(host: Host) -> None:
    host.event, host.event_name = {"ref": "refs/heads/main"}, "push"
    assert host.run() == 1
    assert host.summary.startswith("### kvplan check fails: 1 launch read")


def test_paths_are_taken_one_a_line_and_none_of_them_as_an_option(host: Host) -> None:
    (host.repository / "a b").mkdir()
    (host.repository / "a b/one.sh").write_text(FITS)
    (host.repository / "--gpu.sh").write_text(FITS)
    host.inputs["paths"] = "a b/one.sh\n--gpu.sh\n"
    assert host.run() == 0
    assert host.summary.startswith("### kvplan check passes: 2 launches read")


@pytest.mark.parametrize("name", ["gpu", "tag", "paths", "base", "fail-on"])
def test_an_input_is_never_run(host: Host, name: str) -> None:
    host.inputs[name] = '$(touch pwned) `touch pwned` "; touch pwned; " \' ${IFS} && touch pwned'
    assert host.run() in {0, 2}
    assert not (host.repository / "pwned").exists()


def test_nothing_that_the_pull_request_brings_is_imported(host: Host) -> None:
    trap = "import pathlib\npathlib.Path(__file__).with_name('pwned').touch()\n"
    for name in (
        "json.py",
        "os.py",
        "kvplan.py",
        "sitecustomize.py",
        "typing.py",
        "yaml.py",
        "usercustomize.py",
    ):
        (host.repository / name).write_text(trap)
    host.inputs["comment"] = "true"
    assert host.run() == 1
    assert not (host.repository / "pwned").exists()


def test_installs_from_its_own_checkout_into_an_environment_of_its_own(tmp_path: Path) -> None:
    """The step as it is, with a pip that records: the real installation is that of the pre-commit test."""
    step = next(step for step in STEPS if step.get("id") == "install")
    host = Host(tmp_path, {})
    host.repository.mkdir()
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/python.log\n'
        'case "$*" in *"-m venv"*) for to; do :; done; mkdir -p "$to/bin"; cp "$0" "$to/bin/python"; esac\n'
    )
    python.chmod(0o755)
    assert host._run_step(step) == 0
    folder = tmp_path / "temp/kvplan-check"
    assert host.outputs["install"] == {"folder": str(folder)}
    assert (tmp_path / "python.log").read_text().splitlines() == [
        f"-I -m venv {folder}/venv",
        f"-I -m pip install --quiet --disable-pip-version-check {ROOT}",
    ]


# What the file promises


def test_no_expression_stands_in_the_text_of_a_script() -> None:
    for step in STEPS:
        if "run" in step:
            assert "${{" not in step["run"]
            assert step["shell"] == "bash"


def test_other_actions_are_pinned_by_commit_with_their_tag() -> None:
    lines = [line for line in (ROOT / "action.yml").read_text().splitlines() if "uses:" in line]
    assert len(lines) == 3
    for line in lines:
        assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_every_input_is_used_and_documented_and_every_output_is_set() -> None:
    text = (ROOT / "action.yml").read_text()
    page = (ROOT / "docs/check-ci.md").read_text()
    for name in ACTION["inputs"]:
        assert f"inputs.{name}" in text
        assert f"| `{name}` |" in page
    for name in ACTION["outputs"]:
        assert f'"{name}=' in text
        assert f"`{name}`" in page
