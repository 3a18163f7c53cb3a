"""Path patterns of the policy: `*` within a folder, `**` over folders, `deploy` for all below it."""

from __future__ import annotations

import functools
import re
from typing import Final

_PARTS: Final = r"\*\*/|\*\*|\*|\?|\[!?[^]/]+\]|[^*?\[]+|\["


def path_matches(pattern: str, path: str) -> bool:
    """Whether a root-relative path falls under the pattern."""
    return _compiled(pattern).fullmatch(path) is not None


def value_matches(pattern: str, value: str) -> bool:
    """Whether a label's value falls under the pattern; case counts, `*` is anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), value) is not None


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    text = pattern.removeprefix("./").rstrip("/")
    out = []
    for part in re.findall(_PARTS, text):
        if part == "**/":
            out.append("(?:[^/]+/)*")
        elif part == "**":
            out.append(".*")
        elif part == "*":
            out.append("[^/]*")
        elif part == "?":
            out.append("[^/]")
        elif part.startswith("[") and len(part) > 1:
            out.append("[" + ("^" if part[1] == "!" else "") + re.escape(part.strip("[]!")) + "]")
        else:
            out.append(re.escape(part))
    # A folder's name stands for all that lies below it; "." is the repository.
    body = "" if text in {"", "."} else "".join(out)
    return re.compile(f"{body}(?:/.*)?" if body else ".*")
