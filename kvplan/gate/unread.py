"""What looks like a launch and became none: said, not passed over."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.word_tables import TELLING_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.gate.reading import Reading

_COMMAND: Final = re.compile(
    r"(?:^|[\s\"'`;&|(/])vllm\s{1,20}serve\s{1,20}[\"'$\w./{-]"
    r"|-m\s{1,20}vllm\.entrypoints\.(?:openai\.)?api_server\b"
    r"|\"vllm\",\s{0,20}\"serve\"\s{0,20},"
)
_TALK: Final = re.compile(
    r"(?i)\b(echo|printf|p?kill(all)?|pgrep|grep|log\w*|info|warn\w*|err\w*|die|print|ps|usage|help|example|e\.g|cat"
    r"|tail|sed|awk|which|pip\d?|install|description|title|name|summary|comment|note|message|msg)\b|#"
)
"""Words before a command on its line that say it is only spoken of."""
_OPTION: Final = r"(?<![\w-])--([a-z][a-z0-9]*(?:[-_][a-z0-9]+)+)"
_NEAR_ABOVE: Final = 8
_NEAR_BELOW: Final = 3
_LONGEST_LINE: Final = 4000


def note_leftovers(reading: Reading) -> None:
    """Note the lines that start vLLM, or hold its options, and belong to no launch that was read."""
    if reading.path.endswith(".py") or _is_prose(reading):
        # A Python file's strings are messages more often than commands; its calls and lists were all seen.
        return
    told = [*(launch.line for launch in reading.launches), *(miss.line for miss in reading.not_read)]
    apart = set(told)
    alone: list[int] = []
    for line in _commands(reading.text):
        near = {other for other in told if line - _NEAR_ABOVE <= other <= line + _NEAR_BELOW}
        apart -= near
        if not near:
            alone.append(line)
    # A command that is put together in one place and run in another is a launch far from its words.
    for line in alone[len(apart) :]:
        reading.miss(line, "a command that starts vLLM, which could not be followed")
    first = None if told or alone else _first_option(reading.text)
    if first is not None:
        reading.miss(first, "options of vLLM, but no launch that is understood")


def _is_prose(reading: Reading) -> bool:
    """Whether a file without an ending is a LICENSE, a README or the like: one that no reader knew."""
    name = reading.path.rpartition("/")[2]
    return not (reading.launches or "." in name or name == "-" or "docker" in name.lower())


def _commands(text: str) -> Iterator[int]:
    if "vllm" not in text:
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if "vllm" not in line or len(line) > _LONGEST_LINE:
            continue
        match = _COMMAND.search(line)
        if match is not None and not _TALK.search(line[: match.start() + 1]):
            yield number


def _first_option(text: str) -> int | None:
    """The first line of two different telling options, comments apart."""
    first: int | None = None
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if "--" not in line or len(line) > _LONGEST_LINE or line.lstrip().startswith(("#", "//", "*")):
            continue
        names = {
            name.replace("-", "_") for name in re.findall(_OPTION, line.partition(" #")[0])
        } & TELLING_SETTINGS
        if names and first is None:
            first = number
        seen |= names
    return first if len(seen) > 1 else None
