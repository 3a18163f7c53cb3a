"""From a command line to an answer: which files, which policy, which base."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from kvplan.config.project_file import FILE_NAME
from kvplan.errors import InputError
from kvplan.gate import find
from kvplan.gate.found import Found
from kvplan.gate.git_files import GitFiles, git
from kvplan.gate.load_policy import load_policy, refuse_unknown_card
from kvplan.gate.policy import NO_POLICY
from kvplan.gate.repo_files import MAX_FILE_BYTES, DiskFiles, decode
from kvplan.gate.terms import AS_WRITTEN
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvplan.gate.check import Base
    from kvplan.gate.policy import Policy
    from kvplan.gate.result import Checked, FailOn
    from kvplan.gate.terms import HowToRead


class Asked(FrozenRecord):
    """What the user gave."""

    here: Path
    paths: tuple[str, ...] = ()
    base: str | None = None
    head_policy: bool = False
    gpu: str | None = None
    vllm_version: str | None = None
    fail_on: FailOn = "error"
    today: dt.date | None = None
    stdin: Callable[[int], bytes] | None = None
    """Gives so many bytes of the text to judge, where `-` was given."""

    @property
    def root(self) -> Path:
        """The repository around the current folder."""
        return find.repository_root(self.here)

    @property
    def day(self) -> dt.date:
        """Today, in UTC."""
        return self.today or dt.datetime.now(dt.UTC).date()


def day(text: str | None) -> dt.date | None:
    """A day as the user writes it.

    Raises:
        InputError: no date.
    """
    try:
        return None if text is None else dt.date.fromisoformat(text)
    except ValueError:
        raise InputError(f"--today {text}: not a date", "write it like 2026-11-29") from None


def read(asked: Asked) -> Found:
    """The launches, read and not judged.

    Raises:
        InputError: a path or a reference that does not exist, or a bad policy.
    """
    _refuse_both(asked)
    if asked.stdin is None and asked.base is not None:
        from kvplan.gate import scope

        policy, _ = _policy(asked)
        return scope.against(asked.root, asked.base, policy.how_to_read(asked.vllm_version)).now
    policy, _ = _policy(asked)
    return _read(asked, policy.how_to_read(asked.vllm_version))


def checked(asked: Asked) -> tuple[Checked, Path]:
    """The launches, judged; and the repository's root.

    Raises:
        InputError: a path or a reference that does not exist, or a bad policy.
    """
    from kvplan.gate.check import Base, check_launches

    _refuse_both(asked)
    _refuse_bad_version(asked.vllm_version)
    _refuse_bad_card(asked.gpu)
    policy, notes = _policy(asked)
    how = policy.how_to_read(asked.vllm_version)
    base: Base | None = None
    launch_paths: frozenset[str] | None = None
    if asked.base is not None:
        from kvplan.gate import scope

        seen = scope.against(asked.root, asked.base, how)
        found = seen.now
        base = Base(
            seen.before, seen.commit, seen.renames, asked.vllm_version, comments_count=asked.head_policy
        )
        launch_paths = seen.launch_paths
        if FILE_NAME in seen.changed and not asked.head_policy:
            notes.append(f"this change touches {FILE_NAME}: it is judged by the one of {asked.base}")
    else:
        found = _read(asked, how)
        base = _as_pinned(asked, policy)
        if asked.stdin is None and not asked.paths:
            launch_paths = frozenset(launch.path for launch in found.launches)
    answer = check_launches(
        found,
        policy=policy,
        gpu=asked.gpu,
        vllm_version=asked.vllm_version,
        base=base,
        fail_on=asked.fail_on,
        today=asked.day,
        launch_paths=launch_paths,
    )
    answer.notes = notes
    return answer, asked.root


def _refuse_both(asked: Asked) -> None:
    if asked.base is not None and asked.paths:
        raise InputError("--base and paths together", "--base reads what changed; leave the paths out")
    if asked.stdin is None and "-" in asked.paths:
        raise InputError("- beside other paths", "what comes in on stdin is judged by itself")


def _refuse_bad_card(name: str | None) -> None:
    if name is not None:
        try:
            refuse_unknown_card(name)
        except InputError as error:
            raise InputError(f"--gpu {name}: {error.message}", error.hint) from None


def _refuse_bad_version(text: str | None) -> None:
    if text is not None:
        from kvplan.catalog.engines import rules_for
        from kvplan.config.version import parse_vllm_version

        rules_for(parse_vllm_version(text))


def _policy(asked: Asked) -> tuple[Policy, list[str]]:
    """The policy: the base branch's where there is one (a pull request must not judge itself)."""
    root = asked.root
    if asked.base is None or asked.head_policy:
        return load_policy(DiskFiles(root), today=asked.day) or NO_POLICY, []
    if asked.base.startswith("-"):
        raise InputError(f"--base {asked.base}: not a reference", "name a branch, a tag or a commit")
    try:
        tip = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{asked.base}^{{commit}}")
    except InputError:
        raise InputError(
            f"--base {asked.base}: no such commit here", "fetch the base branch with its history"
        ) from None
    with GitFiles(root, tip.strip()) as files:
        policy = load_policy(files, today=asked.day, where=f"{asked.base}:")
    if policy is None and (root / FILE_NAME).is_file():
        note = f"{asked.base} has no {FILE_NAME}: the one of this change counts once it is merged"
        return NO_POLICY, [note]
    return policy or NO_POLICY, []


def _read(asked: Asked, how: HowToRead) -> Found:
    if asked.stdin is not None:
        data = asked.stdin(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputError(
                f"-: more than {MAX_FILE_BYTES >> 20} MiB on stdin", "judge it in parts, or name its files"
            )
        text = decode(data)
        if not text.strip():
            raise InputError("-: nothing came in on stdin", "did the command before the pipe fail?")
        found = Found()
        find.read_into(found, "-", text, DiskFiles(asked.root), how, named=True)
        return found
    return find.read_paths(list(asked.paths), asked.here, how) if asked.paths else _read_all(asked.root, how)


def _read_all(root: Path, how: HowToRead = AS_WRITTEN) -> Found:
    return find.read_tree(root, find.tree_files(root), how)


def _as_pinned(asked: Asked, policy: Policy) -> Base | None:
    """With another release to judge by: the same launches with the release that they pin.

    What is wrong with both is no news of the upgrade. A launch that pins none has nothing to compare with.
    """
    if asked.vllm_version is None or asked.stdin is not None:
        return None
    from kvplan.gate.check import Base

    found = _read(asked, policy.how_to_read())
    found.launches = [launch for launch in found.launches if launch.vllm_version is not None]
    return Base(found) if found.launches else None


def write_policy(asked: Asked) -> str:
    """Write a commented policy from what is found; gives what to say.

    Raises:
        InputError: there is one already, or it cannot be written.
    """
    from kvplan.gate.first_policy import first_policy

    _refuse_bad_card(asked.gpu)
    path = asked.root / FILE_NAME
    if path.exists():
        raise InputError(f"{path} is there already", "edit it, or move it away first")
    found = _read_all(asked.root)
    text = first_policy(found, today=asked.day, gpu=asked.gpu)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}", "name a file in a folder that is there"
        ) from error
    count = len(found.launches)
    return f"wrote {path} for {count} launch{'' if count == 1 else 'es'}; read it, then commit it"
