"""One request and its streamed answer, timed as `vllm bench serve` times them.

A request begins just before it is sent; its first token is the first chunk with a choice, its end the last
such chunk (vLLM 0.32.0 benchmarks/lib/endpoint_request_func.py, async_request_openai_completions).
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Final

from kvplan.load.records import Endpoint, RequestRecord
from kvplan.load.session import compressed_by, read_at_most, sent_on_to
from kvplan.load.stream import StreamError, StreamReader, error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import aiohttp

    from kvplan.load.lengths import LengthSample

_MOST_ERROR_BYTES: Final = 64 << 10
"""Of a refusal's body, which may have no end."""
_SLACK: Final = 1.1
"""Some servers count a token or two more than they were asked for: the end mark, the role."""


class Exchange:
    """A request from its sending to its end; a watchdog may give it up meanwhile."""

    def __init__(
        self, number: int, lengths: LengthSample, origin_s: float, on_tokens: Callable[[Exchange, int], None]
    ) -> None:
        self.number = number
        self.lengths = lengths
        self.started_s = self.heard_s = origin_s
        """When it was sent, and when the last token came (perf_counter)."""
        self.answer_ids: list[int] = []
        self._origin_s = origin_s
        self._on_tokens = on_tokens
        self._timeout: asyncio.Timeout | None = None
        self._given_up: str | None = None
        self._ttft_s: float | None = None
        self._itl_s: list[float] = []

    def give_up(self, reason: str) -> None:
        """End it as failed, with this reason."""
        if self._timeout is not None and self._given_up is None:
            self._given_up = reason
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def run(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        prompt: Sequence[int],
        *,
        keep_answer: bool = False,
        logprobs: int | None = None,
    ) -> RequestRecord:
        """Send it and read the answer to its end; a failure is a record with an error.

        Args:
            session: connections.
            endpoint: the server.
            prompt: token ids.
            keep_answer: ask for the answer's token ids too (`answer_ids`).
            logprobs: ask for the log-probabilities of that many tokens at each place.
        """
        import aiohttp

        request = {
            "model": endpoint.model,
            "prompt": prompt,
            "max_tokens": self.lengths.output_len,
            "ignore_eos": True,
            "repetition_penalty": 1.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if keep_answer:
            request["return_token_ids"] = True
        if logprobs is not None:
            request["logprobs"] = logprobs
        body = json.dumps(request, separators=(",", ":")).encode()
        reader = StreamReader(keep_token_ids=keep_answer, hide=endpoint.hide)
        error: str | None = None
        self.started_s = self.heard_s = time.perf_counter()
        try:
            async with asyncio.timeout(None) as self._timeout:
                error = await self._read(session, endpoint, body, reader)
        except TimeoutError as caught:
            error = self._given_up or _reason(caught)
        except (aiohttp.ClientError, StreamError, OSError) as caught:
            error = _reason(caught)
        self.answer_ids = reader.token_ids
        return self._record(reader, None if error is None else endpoint.hide(error))

    async def _read(
        self, session: aiohttp.ClientSession, endpoint: Endpoint, body: bytes, reader: StreamReader
    ) -> str | None:
        headers = {"Content-Type": "application/json"}
        url = endpoint.at("/v1/completions")
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            status = f"{response.status} {response.reason}"
            elsewhere = sent_on_to(response)
            if elsewhere is not None:
                return f"{status}: it sends requests on to {elsewhere}; requests are not sent on"
            if response.status != 200:
                text = error_text(await read_at_most(response, _MOST_ERROR_BYTES), endpoint.hide)
                return f"{status}: {text}"
            coding = compressed_by(response)
            if coding is not None:
                return f"the answer is compressed ({coding}), which nobody asked for"
            async for data in response.content.iter_any():
                now = time.perf_counter()
                tokens = reader.feed(data)
                if tokens:
                    self._heard(now, tokens)
        if self._ttft_s is None:
            return "the answer has no token"
        return None if reader.finished else "the stream ended before its end mark"

    def _heard(self, now: float, tokens: int) -> None:
        if self._ttft_s is None:
            self._ttft_s = now - self.started_s
            # Chunks that arrive together have no gap between them.
            self._itl_s += [0.0] * (tokens - 1)
        else:
            self._itl_s.append(now - self.heard_s)
            self._itl_s += [0.0] * (tokens - 1)
        self.heard_s = now
        self._on_tokens(self, tokens)

    def _record(self, reader: StreamReader, error: str | None) -> RequestRecord:
        heard = self._ttft_s is not None
        counted = reader.output_tokens
        is_true = counted is None or self._can_be_true(counted)
        return RequestRecord(
            number=self.number,
            start_s=self.started_s - self._origin_s,
            input_len=self.lengths.input_len,
            output_len=self.lengths.output_len,
            prompt_tokens=reader.prompt_tokens,
            output_tokens=counted if is_true else None,
            ttft_s=self._ttft_s,
            itl_s=tuple(self._itl_s),
            e2e_s=self.heard_s - self.started_s if heard else None,
            error=error,
            claimed_tokens=None if is_true else counted,
        )

    def _can_be_true(self, counted: int) -> bool:
        """Whether the server's count goes with what was asked for and what came; a chunk may hold several."""
        chunks = 0 if self._ttft_s is None else 1 + len(self._itl_s)
        if not counted:
            return not chunks
        return counted <= max(_SLACK * self.lengths.output_len + 1, chunks)


def _reason(error: BaseException) -> str:
    """One line for an exception that may have no text of its own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
