"""Text from a pull request, made harmless: no secrets, no control characters, no markup of its own."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.redact import INVISIBLE, redact_text, without_invisible

if TYPE_CHECKING:
    from kvplan.gate.result import Finding

LONGEST_MESSAGE: Final = 1000
LONGEST_PATH: Final = 4096
LONGEST_LINE: Final = 8192

_SPACES: Final = r"[\t\n\r\x0b\x0c\x85\u2028\u2029]+"
# What Markdown, HTML, references, math and tables give a meaning to. An underscore between letters is one.
_MARKUP: Final = r"[\\`*\[\]<>&|~$#@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//)|(?<=www)\.|(?<=WWW)\."


def clean(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """One line of visible text without secrets, at most so long."""
    if not text.isprintable():
        text = without_invisible(re.sub(_SPACES, " ", text))
    return redact_text(text, longest)


def clean_path(path: str) -> str:
    """A file's path as it is shown: relative, with forward slashes, without `./`; stdin by its name."""
    path = clean(path, LONGEST_PATH)
    return "stdin" if path == "-" else path.removeprefix("./")


def shown_line(text: str, longest: int = LONGEST_LINE) -> str:
    """A line for a terminal or a job's log, where GitHub's runner takes some for commands to itself.

    Source: actions/runner ActionCommand.cs: a line that begins with `::`, and `##[` anywhere in it.
    """
    line = clean(text, longest).replace("##[", "# #[")
    return f"./{line}" if line.lstrip().startswith("::") else line


def safe_json(document: Any) -> str:
    """A JSON document that acts on no terminal and on no runner's log: what would is spelled out in it."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    text = re.sub(INVISIBLE, lambda match: match[0] if match[0] == "\n" else json.dumps(match[0])[1:-1], text)
    return text.replace("##[", "##\\u005b")


def prose(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """The text for Markdown, all of it literal."""
    return re.sub(_MARKUP, _entity, clean(text, longest))


def code(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """The text for Markdown in monospace; hosts link no names and references inside."""
    return f"<code>{prose(text, longest)}</code>"


def _entity(match: re.Match[str]) -> str:
    # Behind @ and # a host that looks for references in the rendered text finds none.
    return f"&#{ord(match[0])};" + ("\u200b" if match[0] in "@#" else "")


def message_of(finding: Finding) -> str:
    """What a finding says, with the value that would pass."""
    text = clean(finding.message)
    return f"{text}; passes {joint_of(finding.passes)}{clean(finding.passes)}" if finding.passes else text


def told_of(finding: Finding) -> str:
    """What a finding says, and the waiver that it falls or fell under."""
    return f"{message_of(finding)}{waiver_of(finding)}"


def waiver_of(finding: Finding) -> str:
    """The waiver's last day and reason, to stand behind what the finding says; empty where there is none."""
    waiver = finding.waiver
    if waiver is None:
        return ""
    said = f"waiver expired on {waiver.until}" if waiver.expired else f"waived until {waiver.until}"
    return f" ({said}: {clean(waiver.reason)})"


def joint_of(passes: str) -> str:
    """The word before a value that would pass; a flag that is to go brings its own."""
    return "" if passes.startswith("without ") else "with "


def place_of(path: str, line: int) -> str:
    """`path:line` as it is shown."""
    return f"{clean_path(path)}:{line}"
