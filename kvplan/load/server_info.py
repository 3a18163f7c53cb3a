"""What a running server says of itself before it is loaded: its models, its version, its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import LoadError
from kvplan.load.server_metrics import fetch_metrics
from kvplan.load.session import no_answer, open_session, read_at_most, sent_on_to
from kvplan.load.stream import error_text
from kvplan.visible import visible

if TYPE_CHECKING:
    import aiohttp

    from kvplan.engine.metrics import MetricsSnapshot
    from kvplan.load.records import Endpoint

_TIMEOUT_S: Final = 15.0
_MOST_BYTES: Final = 4 << 20
_NAMES_SHOWN: Final = 5
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of `/v1/models`."""

    name: str
    max_model_len: int | None = None
    """As vLLM states it; other servers do not."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server before the load; None is "it does not say"."""

    models: tuple[ServedModel, ...] | None
    """None if it has no `/v1/models`."""
    version: str | None
    """vLLM's version."""
    metrics: MetricsSnapshot | None
    """None if it has no vLLM /metrics."""

    def model(self, name: str) -> ServedModel | None:
        """The entry of that name."""
        return next((model for model in self.models or () if model.name == name), None)


async def ask_server(endpoint: Endpoint) -> ServerInfo:
    """Ask a server what it is, and whether it lets us in.

    Raises:
        LoadError: nothing answers, it is no API server, it refuses the key, or hangs.
        MissingDependencyError: aiohttp is not installed.
    """
    import aiohttp

    async with open_session(endpoint) as session:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                models = await _models(session, endpoint)
        except (aiohttp.ClientError, OSError) as error:
            raise no_answer(error, endpoint) from error
        return ServerInfo(models, await _version(session, endpoint), await fetch_metrics(session, endpoint))


def require_served(info: ServerInfo, endpoint: Endpoint) -> None:
    """Refuse a model name that the server does not serve.

    Raises:
        LoadError: it lists its models, and this is none of them.
    """
    if info.models is not None and info.model(endpoint.model) is None:
        raise LoadError(
            f"{endpoint.base_url} does not serve {endpoint.model[:_LONGEST_NAME]!r}",
            f"it serves {served_names(info)}: --model must be one of them",
        )


def served_names(info: ServerInfo) -> str:
    """The models that it serves, in words."""
    names = [visible(model.name[:_LONGEST_NAME]) for model in info.models or ()]
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (", ".join(names[:_NAMES_SHOWN]) + more) or "no model"


async def _models(session: aiohttp.ClientSession, endpoint: Endpoint) -> tuple[ServedModel, ...] | None:
    url = endpoint.at("/v1/models")
    async with session.get(url, allow_redirects=False) as response:
        elsewhere = sent_on_to(response)
        if elsewhere is not None:
            raise LoadError(
                f"{url} answered {response.status}: it sends requests on to {endpoint.hide(elsewhere)}",
                "give that address with --url, if it is the server that you mean: none is followed",
            )
        body = await read_at_most(response, _MOST_BYTES)
        if response.status in {401, 403}:
            key = "the key was refused" if endpoint.api_key else "it wants a key, and none was given"
            raise LoadError(
                f"{endpoint.base_url} answered {response.status}: {key}",
                "put the key into VLLM_API_KEY, or name its variable with --api-key-env",
            )
        if response.status in {404, 405, 501}:
            # Not every server lists its models; whether it completes is seen by the first request.
            return None
        if response.status != 200:
            raise LoadError(
                f"{url} answered {response.status}: {error_text(body, endpoint.hide)}",
                "look at the server's own log",
            )
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
        what = "a web page" if body.lstrip()[:1] == b"<" else "something that is no list of models"
        raise LoadError(
            f"{url} answered with {what}", "--url must be the address of an OpenAI-compatible server"
        )
    return tuple(_model(entry) for entry in answer["data"] if isinstance(entry, dict) and entry.get("id"))


def _model(entry: dict[str, Any]) -> ServedModel:
    longest = entry.get("max_model_len")
    is_count = isinstance(longest, int) and not isinstance(longest, bool) and longest > 0
    return ServedModel(str(entry["id"]), longest if is_count else None)


async def _version(session: aiohttp.ClientSession, endpoint: Endpoint) -> str | None:
    """vLLM's `/version`; None where there is none."""
    import aiohttp

    with contextlib.suppress(aiohttp.ClientError, OSError, ValueError, RecursionError):
        async with (
            asyncio.timeout(_TIMEOUT_S),
            session.get(endpoint.at("/version"), allow_redirects=False) as response,
        ):
            if response.status == 200:
                answer = json.loads(await read_at_most(response, _MOST_BYTES))
                version = answer.get("version") if isinstance(answer, dict) else None
                return version[:_LONGEST_NAME] if isinstance(version, str) else None
    return None
