"""Files of a commit and of a working tree, as git names and keeps them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.gate.find import read_commit, read_tree, repository_root, tree_files
from kvplan.gate.git_files import GitFiles
from kvplan.gate.repo_files import MAX_FILE_BYTES
from kvplan.gate.run import Asked, checked
from kvplan.gate.scope import against

SERVE = "vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 8192\n"
USER = ("-c", "user.name=t", "-c", "user.email=t@example.org")


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *USER, *arguments],  # noqa: S607  the user's git
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def commit(root: Path) -> str:
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "base")
    return git(root, "rev-parse", "HEAD")


def test_a_commits_files_are_read_one_after_the_other(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / f"{i}.sh").write_text(f"vllm serve a/b --max-num-seqs {i + 1}\n")
    (tmp_path / "link.sh").symlink_to("0.sh")
    (tmp_path / "empty.sh").write_text("")
    head = commit(tmp_path)
    (tmp_path / "0.sh").write_text("changed since\n")
    with GitFiles(tmp_path, head) as files:
        assert files.names() == {*(f"{i}.sh" for i in range(40)), "empty.sh"}
        assert [files.read(f"{i}.sh") for i in range(40)] == [
            f"vllm serve a/b --max-num-seqs {i + 1}\n" for i in range(40)
        ]
        assert (files.read("empty.sh"), files.read("link.sh"), files.read("none.sh")) == ("", None, None)
        assert files.occupied("link.sh")
        assert not files.exists("link.sh")


def test_a_file_of_a_commit_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(SERVE)
    (tmp_path / "large.sh").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    head = commit(tmp_path)
    with GitFiles(tmp_path, head) as files:
        assert files.read("large.sh") is None
        assert files.read("a.sh") == SERVE


def test_an_object_that_the_clone_lacks_is_an_error_and_no_absent_file(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(SERVE)
    head = commit(tmp_path)
    name = git(tmp_path, "rev-parse", "HEAD:a.sh")
    (tmp_path / ".git" / "objects" / name[:2] / name[2:]).unlink()
    with pytest.raises(InputError, match="this clone lacks the object"):
        read_commit(tmp_path, head)


def test_names_that_are_no_utf8_are_read_from_disk_and_from_a_commit(tmp_path: Path) -> None:
    name = os.fsdecode(b"serve-\xff.sh")
    (tmp_path / name).write_text(SERVE)
    head = commit(tmp_path)
    assert [launch.path for launch in read_tree(tmp_path, tree_files(tmp_path)).launches] == [name]
    assert [launch.path for launch in read_commit(tmp_path, head).launches] == [name]


def test_the_root_is_the_one_that_git_names(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert repository_root(inner) == inner
    (inner / "a.sh").write_text(SERVE)
    commit(tmp_path)
    (tmp_path / "a" / ".git").mkdir()  # an empty folder of that name is no repository
    tree = tmp_path.parent / f"{tmp_path.name}-tree"
    git(tmp_path, "worktree", "add", "-q", str(tree))
    (tmp_path.parent / f"{tmp_path.name}-link").symlink_to(inner)
    for folder in (tmp_path, inner, tree / "a" / "b", tmp_path.parent / f"{tmp_path.name}-link"):
        assert repository_root(folder) == Path(git(folder, "rev-parse", "--show-toplevel"))
    assert repository_root(inner / "a.sh") == tmp_path


def test_a_large_text_is_said_and_a_large_program_is_not(tmp_path: Path) -> None:
    (tmp_path / "large.sh").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "program").write_bytes(b"\x7fELF\0" + b"#" * MAX_FILE_BYTES)
    found = read_tree(tmp_path, tree_files(tmp_path))
    assert [(miss.path, miss.reason) for miss in found.not_read] == [("large.sh", "file too large, skipped")]


def test_a_file_that_its_reader_may_not_open_is_said(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("closed")
    (folder / "open.sh").write_text(SERVE)
    (folder / "closed.sh").write_text(SERVE)
    (folder / "closed.sh").chmod(0)
    names = tree_files(folder)
    # Root may open everything, so the reading is done as somebody else, in a folder that all may enter.
    is_root = os.geteuid() == 0
    parents = [folder, *folder.parents] if is_root else []
    modes = {parent: parent.stat().st_mode for parent in parents}
    try:
        for parent, mode in modes.items():
            if not mode & 0o001:
                parent.chmod(mode | 0o011)
        if is_root:
            os.seteuid(65534)
        found = read_tree(folder, names)
    finally:
        if is_root:
            os.seteuid(0)
        for parent, mode in modes.items():
            parent.chmod(mode)
    assert [launch.path for launch in found.launches] == ["open.sh"]
    assert [(miss.path, miss.reason) for miss in found.not_read] == [
        ("closed.sh", "not readable (Permission denied)")
    ]
    assert found.unread == {"closed.sh"}


PROGRAMS = (
    "filter.evil.clean",
    "filter.evil.smudge",
    "filter.long.process",
    "filter.a.b.clean",
    "filter.never chosen.clean",
    "diff.evil.textconv",
    "diff.evil.command",
    "diff.external",
    "core.fsmonitor",
    "core.pager",
    "core.sshCommand",
)
"""Settings that make git start a program."""
ATTRIBUTES = """\
*.sh filter=evil diff=evil
*.yaml filter=long diff=evil
*.conf filter=a.b
"""


def booby_trapped(root: Path) -> tuple[Path, str]:
    """A folder that fills when git starts any program of its configuration; and the base commit."""
    (root / "kept.sh").write_text(SERVE)
    (root / "changed.sh").write_text(SERVE)
    (root / "own.conf").write_text("[x]\n")
    (root / "moved.yaml").write_text(f"# {SERVE}" * 20)
    base = commit(root)
    git(root, "mv", "moved.yaml", "new.yaml")
    traces = root.parent / f"{root.name}-traces"
    traces.mkdir()
    for number, name in enumerate(PROGRAMS):
        program = traces.parent / f"{root.name}-program-{number}"
        program.write_text(f'#!/bin/sh\ntouch "{traces}/{number}"\n[ -t 0 ] || cat\n')
        program.chmod(0o755)
        git(root, "config", name, str(program))
    for driver in ("evil", "long", "a.b"):
        git(root, "config", f"filter.{driver}.required", "true")
    hooks = root / ".git" / "hooks"
    for hook in ("post-index-change", "post-checkout", "pre-commit", "fsmonitor-watchman"):
        (hooks / hook).write_text(f'#!/bin/sh\ntouch "{traces}/{hook}"\n')
        (hooks / hook).chmod(0o755)
    # The change: two files, a new name, times that tell git nothing, and what runs on them.
    (root / "changed.sh").write_text(SERVE.replace("8192", "4096"))
    (root / "own.conf").write_text("[y]\n")
    (root / "new.yaml").write_text(f"# {SERVE}" * 21)
    (root / "kept.sh").write_text(SERVE)
    os.utime(root / "kept.sh", (1, 1))
    (root / ".gitattributes").write_text(ATTRIBUTES)
    return traces, base


def test_nothing_that_gits_configuration_names_is_started(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    traces, base = booby_trapped(root)
    scope = against(root, base)
    read_tree(root, tree_files(root))
    checked(Asked(here=root, base=base, gpu="l40s"))
    checked(Asked(here=root, gpu="l40s"))
    assert list(traces.iterdir()) == []
    assert scope.changed == {"changed.sh", "own.conf", "moved.yaml", "new.yaml", ".gitattributes"}
    assert scope.renames == {"new.yaml": "moved.yaml"}
    assert [launch.flags["max_model_len"] for launch in scope.now.launches] == [4096]
    assert [launch.flags["max_model_len"] for launch in scope.before.launches] == [8192]


def test_the_trap_works(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    traces, base = booby_trapped(root)
    subprocess.run(["git", "diff", base], cwd=root, check=False, capture_output=True)  # noqa: S607
    names = ("filter.evil.clean", "filter.long.process", "filter.a.b.clean", "core.fsmonitor")
    assert {trace.name for trace in traces.iterdir()} >= {str(PROGRAMS.index(name)) for name in names}


def test_a_filter_that_cannot_be_switched_off_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(SERVE)
    head = commit(tmp_path)
    git(tmp_path, "config", "filter.a=b.clean", "touch x; cat")
    with pytest.raises(InputError, match=r"a filter named 'a=b'"):
        against(tmp_path, head)
