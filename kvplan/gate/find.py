"""Which files are read: those given, those changed, or the whole tree; git decides what belongs to it."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.config.project_file import FILE_NAME
from kvplan.errors import InputError
from kvplan.gate.candidates import is_candidate_name, is_telling
from kvplan.gate.found import Comment, Found, NotRead
from kvplan.gate.git_files import GitFiles, git
from kvplan.gate.read import read_text
from kvplan.gate.repo_files import MAX_FILE_BYTES, DiskFiles, NotedFiles, decode
from kvplan.gate.terms import AS_WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvplan.gate.repo_files import RepoFiles
    from kvplan.gate.terms import HowToRead

_COMMENT: Final = re.compile(r"\s{0,200}(?:#|//|\{\{-?\s*/\*)\s{0,20}kvplan:\s{0,20}(\S.{0,400})")

SKIPPED_FOLDERS: Final = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "node_modules",
        "vendor",
        "third_party",
        "site-packages",
        ".venv",
        "venv",
        ".tox",
        "__pycache__",
        ".mypy_cache",
    }
)


OWN_FAULT: Final = "a fault of kvplan's own keeps it from reading this file"

_MOST_FILES: Final = 300_000
"""Of a folder that no git repository says the extent of; it may be the whole machine."""


def repository_root(start: Path) -> Path:
    """The root of the git repository around a folder, else the folder itself.

    Looked up as git does, without asking it: that would be most of a small run's time.
    """
    folder = Path(os.path.realpath(start if start.is_dir() else start.parent))
    for candidate in (folder, *folder.parents):
        mark = candidate / ".git"
        # A worktree's and a submodule's `.git` is a file; an empty folder of that name is no repository.
        if mark.is_file() or (mark / "HEAD").is_file():
            return candidate
    return folder


def tree_files(root: Path, below: str = "") -> list[str]:
    """Candidate files under the root, sorted: tracked and unignored ones with git, else all."""
    names = _git_names(root, below)
    if names is None:
        names = list(_walk(root, below))
    # The policy speaks of launches and holds none.
    return sorted(
        name for name in names if is_candidate_name(name) and not _vendored(name) and name != FILE_NAME
    )


def _vendored(path: str) -> bool:
    return not SKIPPED_FOLDERS.isdisjoint(path.split("/"))


def _git_names(root: Path, below: str) -> list[str] | None:
    if not (root / ".git").exists():
        return None
    try:
        arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        out = git(root, *arguments, *(["--", below] if below else []))
    except InputError:
        return None
    return list(dict.fromkeys(name for name in out.split("\0") if name))


def _walk(root: Path, below: str) -> Iterator[str]:
    stack = [below]
    count = 0
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    count += 1
                    if count > _MOST_FILES:
                        raise InputError(
                            f"{root / below}: no git repository, and more than {_MOST_FILES:,} files",
                            "give the folders that hold serving configs",
                        )
                    path = posixpath.join(folder, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in SKIPPED_FOLDERS:
                            stack.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        yield path
        except OSError:
            continue


def read_tree(
    root: Path,
    names: Iterable[str],
    how: HowToRead = AS_WRITTEN,
    asked: dict[str, set[str]] | None = None,
) -> Found:
    """Read every file of the working tree that may hold a launch.

    Args:
        root: of the repository.
        names: the files.
        how: what the policy says of the files beforehand.
        asked: is told, for every file that was read, which other files its reader asked for.
    """
    files = DiskFiles(root)
    found = Found()
    prefix = f"{files.root}/"
    for name in names:
        data = _quick_bytes(prefix + name)
        if data is None:
            _say_unread(files, name, found)
        elif is_telling(data) or posixpath.basename(name).lower().startswith("kustomization"):
            if asked is None:
                read_into(found, name, decode(data), files, how)
            else:
                noted = NotedFiles(files, asked.setdefault(name, set()))
                read_into(found, name, decode(data), noted, how)
    return found


def _quick_bytes(path: str) -> bytes | None:
    """Bytes of a listed file. Git lists nothing behind a linked folder, and a link itself is not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.read(descriptor, 65536)
        if len(data) == 65536:
            parts = [data]
            total = len(data)
            while total <= MAX_FILE_BYTES and (more := os.read(descriptor, 1 << 20)):
                parts.append(more)
                total += len(more)
            data = b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data if len(data) <= MAX_FILE_BYTES else None


def _say_unread(files: DiskFiles, name: str, found: Found) -> None:
    why = files.why_unread(name)
    if why is not None:
        found.not_read.append(NotRead(name, 1, why))
        found.unread.add(name)


def read_into(
    found: Found,
    path: str,
    text: str,
    files: RepoFiles,
    how: HowToRead = AS_WRITTEN,
    *,
    named: bool = False,
) -> None:
    """Read one text and add what it holds; one that was asked for by name must be readable.

    A reader that fails on a text that nobody thought of must not take the other files' answers with it.
    """
    try:
        reading = read_text(path, text, files, how, named=named)
    except Exception as error:  # noqa: BLE001  whatever a reader may raise; it is said, and tests look for it
        found.not_read.append(NotRead(path, 1, f"{OWN_FAULT} ({type(error).__name__}): please report it"))
        found.unread.add(path)
        found.named_unread |= named
        return
    unread = reading.unreadable and not reading.launches
    found.files_read += not unread
    if unread:
        found.unread.add(path)
    found.named_unread |= named and unread
    found.launches += reading.launches
    found.not_read += reading.not_read
    if "kvplan:" in text:
        found.comments += _comments(path, text)


def _comments(path: str, text: str) -> list[Comment]:
    lines = enumerate(text.split("\n"), start=1)
    return [Comment(path, number, match[1]) for number, line in lines if (match := _COMMENT.match(line))]


def read_paths(paths: list[str], start: Path, how: HowToRead = AS_WRITTEN) -> Found:
    """Read the files and folders that a user names.

    Raises:
        InputError: a path that does not exist.
    """
    found = Found()
    top = repository_root(start)
    for text in paths:
        path = start / text
        if not path.exists():
            raise InputError(f"{text}: no such file or folder", "give files, folders, or - for stdin")
        real = Path(os.path.realpath(path))
        root = top if real.is_relative_to(os.path.realpath(top)) else repository_root(real)
        below = os.path.relpath(real, os.path.realpath(root)).replace(os.sep, "/")
        if real.is_dir():
            part = read_tree(root, tree_files(root, "" if below == "." else below), how)
            found.launches += part.launches
            found.not_read += part.not_read
            found.comments += part.comments
            found.files_read += part.files_read
            found.unread |= part.unread
            found.named_unread |= part.named_unread
        else:
            _read_named(found, root, below, how)
    return found


def _read_named(found: Found, root: Path, name: str, how: HowToRead) -> None:
    files = DiskFiles(root)
    data = files.read_bytes(name)
    if data is None:
        found.not_read.append(NotRead(name, 1, "file too large or not readable, skipped"))
        found.unread.add(name)
        found.named_unread = True
    elif is_telling(data) or posixpath.basename(name).lower().startswith("kustomization"):
        read_into(found, name, decode(data), files, how, named=True)
    else:
        found.files_read += 1


def merge_base(root: Path, ref: str) -> str:
    """The commit that the working tree's branch left the reference at.

    Raises:
        InputError: no such reference, or a history too shallow to know.
    """
    if ref.startswith("-"):
        raise InputError(f"--base {ref}: not a reference", "name a branch, a tag or a commit")
    try:
        return git(root, "merge-base", "--end-of-options", ref, "HEAD").strip()
    except InputError as error:
        raise InputError(
            f"--base {ref}: no merge base with HEAD ({error.message})",
            "fetch the base branch with its history",
        ) from None


def read_commit(
    root: Path, commit: str, names: Iterable[str] | None = None, how: HowToRead = AS_WRITTEN
) -> Found:
    """Read files as a commit holds them; nothing is checked out.

    Args:
        root: the repository.
        commit: its id.
        names: files to read; all candidates when None.
        how: what the policy says of the files beforehand.
    """
    found = Found()
    with GitFiles(root, commit) as files:
        wanted = sorted(files.names() if names is None else files.names() & set(names))
        for name in wanted:
            if not is_candidate_name(name) or _vendored(name):
                continue
            text = files.read(name)
            if text is not None and (
                is_telling(text.encode("utf-8", "replace"))
                or posixpath.basename(name).lower().startswith("kustomization")
            ):
                read_into(found, name, text, files, how)
    return found
