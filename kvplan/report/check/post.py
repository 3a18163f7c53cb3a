"""Post the comment on a GitHub pull request, with the `gh` that every runner has; the action runs this.

    python -I -m kvplan.report.check.post --repo OWNER/NAME --pull 12 --body comment.md [--tag default]

The one comment of this gate is found by its hidden first line and its author, and updated in place. Nothing
is posted when there is nothing to say, when the text is the same, or when a newer run has written it already.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from kvplan.report.check.marker import Marker, new_marker, read_marker

BOT: Final = "github-actions[bot]"
_NOTHING: Final = "### kvplan check passes: no launch changed any more\n"


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done, and why."""

    kind: Literal["create", "update", "nothing"]
    reason: str
    comment: int | None = None
    body: str = ""


def decide(comments: list[dict[str, Any]], body: str, marker: Marker, author: str) -> Step:
    """What to do with a new comment beside those that are there.

    Args:
        comments: of the pull request, as GitHub's API gives them.
        body: the new comment; empty when there is nothing to say.
        marker: of this run.
        author: whose comments are ours. A marker in somebody else's comment means nothing.
    """
    own = [comment for comment in comments if _is_ours(comment, marker.tag, author)]
    if not own:
        return (
            Step("create", "the first comment", body=body) if body else Step("nothing", "no launch changed")
        )
    last = own[-1]
    there = read_marker(last["body"])
    if there is not None and there.run > marker.run:
        return Step("nothing", f"run {there.run} is newer")
    body = body or f"{marker}\n{_NOTHING}"
    if _text(last["body"]) == _text(body):
        return Step("nothing", "the text is the same")
    return Step("update", "the text changed", comment=last["id"], body=body)


def _is_ours(comment: dict[str, Any], tag: str, author: str) -> bool:
    marker = read_marker(comment.get("body") or "")
    user = comment.get("user") or {}
    return marker is not None and marker.tag == tag and user.get("login") == author


def _text(body: str) -> str:
    """What people see: the body without the marker, whose run number always differs."""
    return body.replace("\r\n", "\n").partition("\n")[2].strip()


def _gh(arguments: list[str], body: str | None = None) -> str:
    result = subprocess.run(
        ["gh", "api", *arguments],  # noqa: S607  the runner's gh
        input=None if body is None else json.dumps({"body": body}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if result.returncode:
        raise SystemExit(f"gh api {arguments[-1]}: {result.stderr.strip() or 'failed'}")
    return result.stdout


def _comments(repo: str, pull: int) -> list[dict[str, Any]]:
    """All pages; gh prints one array after the other."""
    text = _gh(["--paginate", f"repos/{repo}/issues/{pull}/comments?per_page=100"])
    decoder, found = json.JSONDecoder(), []
    while text := text.lstrip():
        page, end = decoder.raw_decode(text)
        found += page
        text = text[end:]
    return found


def main(argv: list[str] | None = None) -> None:
    """Find, decide, and post."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repo", required=True)
    parser.add_argument("--pull", required=True, type=int)
    parser.add_argument("--body", required=True, type=Path)
    parser.add_argument("--tag", default="default")
    parser.add_argument("--author", default=BOT)
    options = parser.parse_args(argv)
    body = options.body.read_text(encoding="utf-8")
    marker = read_marker(body) or new_marker(options.tag)
    step = decide(_comments(options.repo, options.pull), body, marker, options.author)
    if step.kind == "create":
        _gh(
            ["--method", "POST", "--input", "-", f"repos/{options.repo}/issues/{options.pull}/comments"],
            step.body,
        )
    elif step.kind == "update":
        path = f"repos/{options.repo}/issues/comments/{step.comment}"
        _gh(["--method", "PATCH", "--input", "-", path], step.body)
    sys.stdout.write(f"comment: {step.kind} ({step.reason})\n")


if __name__ == "__main__":
    main()
