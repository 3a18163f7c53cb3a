"""Reading the event stream of `/v1/completions`: which chunk carries a token, and what the server counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_CHOICE: Final = (b'"choices":[{', b'"choices": [{')
"""An event with one of these carries tokens. Inside a JSON string the quotes would be escaped, so no answer
text can look like it; 256 streams of 30 chunks a second are then read without parsing their JSON."""
_LONGEST_LINE: Final = 16 << 20
"""Bytes; the longest event of vLLM's repeats the token ids of a prompt."""
_SHOWN: Final = 200


class StreamError(Exception):
    """The server said inside its stream that it failed."""


class StreamReader:
    """Takes the bytes of one answer as they come; says how many token events were among them."""

    def __init__(self, *, keep_token_ids: bool = False, hide: Callable[[str], str] = str) -> None:
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finished = False
        """The `[DONE]` event came: the answer is whole."""
        self.token_ids: list[int] = []
        """The answer, when it was asked for (a conversation repeats it)."""
        self._keep_token_ids = keep_token_ids
        self._hide = hide
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, data: bytes) -> int:
        """The number of token events in `data` and what was left over before it.

        Raises:
            StreamError: the server reported an error, an event is not as it should be, or a line has no end.
        """
        if b"\n" not in data:
            self._keep(data)
            return 0
        lines = b"".join([*self._rest, data]).split(b"\n")
        self._rest, self._rest_bytes = [], 0
        self._keep(lines.pop())
        tokens = 0
        for line in lines:
            # Comments (":" lines, which servers send to keep a connection alive) are no data.
            if not line.startswith(b"data:"):
                continue
            if not self._keep_token_ids and (_CHOICE[0] in line or _CHOICE[1] in line):
                tokens += 1
            else:
                tokens += self._event(line[5:].strip())
        return tokens

    def _keep(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_bytes += len(piece)
        if self._rest_bytes > _LONGEST_LINE:
            raise StreamError(f"a line of the stream has more than {_LONGEST_LINE >> 20} MiB")

    def _event(self, payload: bytes) -> int:
        if payload == b"[DONE]":
            self.finished = True
            return 0
        if not payload:
            return 0
        try:
            event: Any = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise StreamError(f"not JSON in the stream: {self._quoted(payload)}") from error
        if not isinstance(event, dict):
            raise StreamError(f"not an object in the stream: {self._quoted(payload)}")
        if event.get("error"):
            raise StreamError(error_text(payload, self._hide))
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"))
            self.output_tokens = _count(usage.get("completion_tokens"))
        choices = event.get("choices")
        if not choices:
            return 0
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            raise StreamError(f"choices without a choice in the stream: {self._quoted(payload)}")
        if self._keep_token_ids:
            ids = choices[0].get("token_ids") or []
            if not isinstance(ids, list) or any(_count(number) is None for number in ids):
                raise StreamError(f"token_ids that are none in the stream: {self._quoted(payload)}")
            self.token_ids += ids
        return 1

    def _quoted(self, payload: bytes) -> str:
        return repr(self._hide(payload.decode(errors="replace"))[:_SHOWN])


def error_text(body: bytes, hide: Callable[[str], str] = str) -> str:
    """The message of an OpenAI-style error body, else the start of the body, on one line.

    Args:
        body: what the server sent.
        hide: takes out what must not be shown, before the text is cut.
    """
    try:
        message: Any = json.loads(body)
        for key in ("error", "message", "detail"):
            if isinstance(message, dict) and message.get(key):
                message = message[key]
        text = str(message)
    except (ValueError, RecursionError):
        text = body.decode(errors="replace")
    return hide(" ".join(text.split()))[:500]


_MOST_TOKENS: Final = 10**12
"""More than any answer can hold; arithmetic with larger ones would overflow."""


def _count(value: object) -> int | None:
    """A number of tokens as a server reports it; what is no such number is unknown."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS:
        return value
    return None
