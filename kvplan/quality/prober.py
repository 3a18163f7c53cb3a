"""Asks a running vLLM what the verdict needs: passages scored, greedy answers, needles."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import LoadError
from kvplan.load.session import open_session
from kvplan.quality.needles import HAYSTACKS, haystack, is_found
from kvplan.quality.passages import PASSAGES
from kvplan.quality.sample import QualitySample, Run, Step, TextScore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

    from kvplan.load.records import Endpoint

TEXT_TOKENS: Final = 160
"""Of a passage. vLLM makes the logits of a whole prompt and their float32 log-softmax at once, outside its
memory budget: TEXT_TOKENS x vocabulary x 6 bytes (bf16 and float32), 146 MB for 152k tokens, 252 MB for 262k.
Source: vLLM 0.32.0 v1/worker/gpu_model_runner.py::_get_prompt_logprobs_dict."""
STEPS: Final = 32
"""Greedy tokens after each passage."""
CONTEXT_TOKENS: Final = 8192
"""Longest needle prompt: twenty of them are a few seconds on a GPU, with a prefix cache four."""
_ANSWER_TOKENS: Final = 12
_COMPANY: Final = 3
"""Requests that keep the batch busy during the repeat."""
_COMPANY_TOKENS: Final = 48
_PAUSE_S: Final = 0.5
"""After a refused request of the company."""
_TIMEOUT_S: Final = 300.0
_FEWEST_TEXT_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class Prompts:
    """Every question as token ids, the same for every server of one model and max_model_len."""

    texts: tuple[tuple[int, ...], ...]
    needles: tuple[tuple[tuple[int, ...], str], ...]
    """Each prompt with the code that answers it."""

    @property
    def digest(self) -> str:
        """Equal for equal token ids."""
        return hashlib.sha256(json.dumps([self.texts, self.needles]).encode()).hexdigest()[:16]


async def sample_quality(endpoint: Endpoint, max_model_len: int, *, with_repeat: bool) -> QualitySample:
    """Ask a server everything; a server that can't answer gives a sample that says why.

    Args:
        endpoint: the server.
        max_model_len: of that server; prompts and answers stay within it.
        with_repeat: ask everything a second time with other requests in the batch, for the noise floor.

    Raises:
        MissingDependencyError: aiohttp is not installed.
    """
    began = time.monotonic()
    text_tokens = min(TEXT_TOKENS, max_model_len - STEPS)
    context = min(CONTEXT_TOKENS, max_model_len) - _ANSWER_TOKENS
    sample = QualitySample("", text_tokens, 0)
    if text_tokens < _FEWEST_TEXT_TOKENS:
        return dataclasses.replace(
            sample, error=f"max_model_len {max_model_len} leaves no room for a passage"
        )
    async with open_session(endpoint) as session:
        prober = _Prober(session, endpoint)
        try:
            prompts = await prober.prompts(text_tokens, context)
            longest = max((len(ids) for ids, _ in prompts.needles), default=0)
            sample = QualitySample(prompts.digest, len(prompts.texts[0]), longest)
            sample = dataclasses.replace(sample, first=await prober.ask(prompts, "first"))
            if with_repeat:
                async with prober.company(prompts):
                    sample = dataclasses.replace(sample, repeat=await prober.ask(prompts, "repeat"))
        except LoadError as error:
            sample = dataclasses.replace(sample, error=error.message)
    return dataclasses.replace(sample, seconds=round(time.monotonic() - began, 3))


@dataclass(frozen=True, slots=True)
class _Prober:
    session: aiohttp.ClientSession
    endpoint: Endpoint

    async def prompts(self, text_tokens: int, context_tokens: int) -> Prompts:
        """The questions in this server's tokens.

        Raises:
            LoadError: the server does not tokenize.
        """
        whole = [await self._tokenize(passage) for passage in PASSAGES]
        text_tokens = min(text_tokens, *map(len, whole))
        per_token = sum(map(len, PASSAGES)) / sum(map(len, whole))
        needles: list[tuple[tuple[int, ...], str]] = []
        for number in range(HAYSTACKS):
            needles += await self._needles(number, context_tokens, per_token)
        return Prompts(tuple(ids[:text_tokens] for ids in whole), tuple(needles))

    async def _needles(
        self, number: int, tokens: int, characters_per_token: float
    ) -> list[tuple[tuple[int, ...], str]]:
        """One haystack's prompts, as long as they may be; none where the facts have no room."""
        characters = tokens * characters_per_token
        while (hidden := haystack(number, int(characters))) is not None:
            hay = await self._tokenize(hidden.text)
            asked = [await self._tokenize(question, special=False) for question in hidden.questions]
            if len(hay) + max(map(len, asked)) <= tokens:
                return [(hay + question, code) for question, code in zip(asked, hidden.answers, strict=True)]
            characters *= 0.9
        return []

    async def ask(self, prompts: Prompts, salt: str) -> Run:
        """Every question once, one at a time; a pass finds nothing cached by one with another `salt`."""
        texts = [_text_score(ids, await self._complete(_scored(ids), salt)) for ids in prompts.texts]
        needles = []
        for ids, code in prompts.needles:
            answer = await self._complete({"prompt": ids, "max_tokens": _ANSWER_TOKENS}, salt)
            needles.append(is_found(answer["text"], code))
        return Run(tuple(texts), tuple(needles))

    @contextlib.asynccontextmanager
    async def company(self, prompts: Prompts) -> AsyncIterator[None]:
        """Other requests in the batch while the block runs. What becomes of them is of no interest."""

        async def keep_busy(number: int) -> None:
            while True:
                ids = prompts.texts[number % len(prompts.texts)][: 24 + number % 40]
                number += 1
                request = {"prompt": ids, "max_tokens": _COMPANY_TOKENS, "ignore_eos": True}
                try:
                    await self._complete(request, "company")
                except LoadError:
                    await asyncio.sleep(_PAUSE_S)

        tasks = [asyncio.create_task(keep_busy(number)) for number in range(_COMPANY)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tokenize(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        answer = await self._post("/tokenize", {"prompt": text, "add_special_tokens": special})
        tokens = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(tokens, list) or not tokens or not all(isinstance(i, int) for i in tokens):
            raise LoadError(
                "the server's /tokenize gave no list of tokens", "is it vLLM's own server, 0.8 or newer?"
            )
        return tuple(tokens)

    async def _complete(self, request: dict[str, Any], salt: str) -> dict[str, Any]:
        """The choice of one greedy completion, whatever the model's own sampling defaults are."""
        greedy = {"temperature": 0.0, "repetition_penalty": 1.0}
        answer = await self._post("/v1/completions", {**greedy, "cache_salt": f"kvplan-{salt}", **request})
        try:
            choice = answer["choices"][0]
        except (KeyError, IndexError, TypeError) as error:
            raise LoadError("the server's answer has no choice in it", "is it vLLM's own server?") from error
        if not isinstance(choice, dict):
            raise LoadError("the server's answer has no choice in it", "is it vLLM's own server?")
        return choice

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        import aiohttp

        try:
            async with (
                asyncio.timeout(_TIMEOUT_S),
                self.session.post(
                    self.endpoint.at(path), json={"model": self.endpoint.model, **body}
                ) as response,
            ):
                raw = await response.read()
                if response.status == 200:
                    return json.loads(raw)
                said = raw.decode(errors="replace")[:200]
                raise LoadError(f"{path} answered {response.status}: {said}", "the server's log says why")
        except TimeoutError as error:
            raise LoadError(
                f"{path} did not answer within {_TIMEOUT_S:.0f} s", "the server's log says what it does"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise LoadError(f"{path}: {error or type(error).__name__}", "is the server still up?") from error
        except ValueError as error:
            raise LoadError(f"{path} answered no JSON", "is it vLLM's own server?") from error


def _scored(ids: tuple[int, ...]) -> dict[str, Any]:
    return {
        "prompt": ids,
        "prompt_logprobs": 1,
        "logprobs": 2,
        "max_tokens": STEPS,
        "ignore_eos": True,
        "return_tokens_as_token_ids": True,
    }


def _text_score(ids: tuple[int, ...], choice: dict[str, Any]) -> TextScore:
    """What a completion says of its prompt and of its own tokens.

    Source: vLLM 0.32.0 entrypoints/openai/completion/protocol.py (prompt_logprobs by token id with rank;
    logprobs.tokens as "token_id:N"; impossible tokens clamped to -9999).

    Raises:
        LoadError: something of it is missing, or is no number.
    """
    try:
        places = [
            _place(token, place) for token, place in zip(ids, choice["prompt_logprobs"], strict=True) if place
        ]
        said = choice["logprobs"]
        steps = tuple(
            _step(token, logprob, top)
            for token, logprob, top in zip(
                said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True
            )
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise LoadError(
            f"the server's log-probabilities can't be read ({error!r})", "is it vLLM's own server?"
        ) from error
    if len(places) != len(ids) - 1 or len(steps) != STEPS:
        raise LoadError("the server's log-probabilities are incomplete", "is it vLLM's own server?")
    return TextScore(tuple(own for own, _ in places), tuple(top for _, top in places), steps)


def _place(token: int, place: dict[str, dict[str, Any]]) -> tuple[float, int]:
    """The log-probability of the passage's own token, and the most probable token."""
    return _number(place[f"{token}"]["logprob"]), int(min(place, key=lambda other: place[other]["rank"]))


def _step(token: str, logprob: float, top: dict[str, float]) -> Step:
    chosen = _token_id(token)
    others = {_token_id(other): value for other, value in top.items()}
    others.pop(chosen, None)
    second = max(others, key=lambda other: others[other])
    return Step(chosen, _number(logprob), second, _number(others[second]))


def _token_id(token: str) -> int:
    return int(token.removeprefix("token_id:"))


def _number(value: float) -> float:
    """Four decimals: the logits are bf16, whose steps are a hundred times that.

    Raises:
        ValueError: not a finite number.
    """
    if not math.isfinite(value):
        raise ValueError(f"a log-probability is {value}")
    return round(float(value), 4)
