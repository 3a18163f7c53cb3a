"""What a pull request touches: the launches of changed files, and of files that read a changed one."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kvplan.gate import find
from kvplan.gate.found import Found
from kvplan.gate.git_files import git, without_filters
from kvplan.gate.terms import AS_WRITTEN
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvplan.gate.terms import HowToRead


class Scope(FrozenRecord):
    """Both sides of a comparison."""

    commit: str
    """The merge base."""
    now: Found
    before: Found
    renames: Mapping[str, str] = field(default_factory=dict)
    """Path now -> path in the base."""
    changed: frozenset[str] = frozenset()
    """Every path that differs, under both names."""
    launch_paths: frozenset[str] = frozenset()
    """Files of the whole working tree that hold launches."""


def against(root: Path, ref: str, how: HowToRead = AS_WRITTEN, base_how: HowToRead | None = None) -> Scope:
    """What the working tree changes since it left a reference, and what stood there before.

    A compose file whose `.env` changed and an overlay whose base changed are changed launches too: which
    files a reader asked for is written down while the tree is read.

    Args:
        root: the repository.
        ref: the base branch.
        how: how to read the working tree.
        base_how: how to read the base; the same where None.

    Raises:
        InputError: no such reference, or a history too shallow to know.
    """
    commit = find.merge_base(root, ref)
    renames, changed = _changes(root, commit)
    asked: dict[str, set[str]] = {}
    whole = find.read_tree(root, find.tree_files(root), how, asked)
    touched = {name for name, others in asked.items() if name in changed or others & changed}
    old_names = {renames.get(name, name) for name in touched} | changed
    return Scope(
        commit=commit,
        now=_only(whole, touched | changed, len(touched - whole.unread)),
        before=find.read_commit(root, commit, old_names, base_how or how),
        renames=renames,
        changed=frozenset(changed),
        launch_paths=frozenset(launch.path for launch in whole.launches),
    )


def _only(whole: Found, names: set[str], files_read: int) -> Found:
    return Found(
        launches=[launch for launch in whole.launches if launch.path in names],
        not_read=[miss for miss in whole.not_read if miss.path in names],
        files_read=files_read,
        unread=whole.unread & names,
        comments=[comment for comment in whole.comments if comment.path in names],
    )


def _changes(root: Path, commit: str) -> tuple[dict[str, str], set[str]]:
    """Renames (new path -> old), and every path that differs, under both names, new files included."""
    out = git(
        root,
        "diff",
        "--name-status",
        "-z",
        "--find-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules",
        commit,
        "--",
        settings=without_filters(root),
    )
    fields = iter(out.split("\0"))
    renames: dict[str, str] = {}
    changed: set[str] = set()
    for status in fields:
        if not status:
            continue
        first = next(fields, "")
        changed.add(first)
        if status[0] in "RC":
            second = next(fields, "")
            changed.add(second)
            if status[0] == "R":
                renames[second] = first
    new = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    changed.update(name for name in new.split("\0") if name)
    return renames, changed
