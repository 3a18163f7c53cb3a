"""Connections to the server, and what the client must ask of it before it can send prompts."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from kvplan.errors import LoadError, MissingDependencyError
from kvplan.load.prompts import sample_text
from kvplan.load.stream import error_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

    from kvplan.load.records import Endpoint

_CONNECT_TIMEOUT_S: Final = 10.0
_KEEP_ALIVE_S: Final = 4.0
"""Below uvicorn's 5 s, so that no request is sent on a connection that the server is just closing."""


@contextlib.asynccontextmanager
async def open_session(endpoint: Endpoint) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with the endpoint's key, any number of connections and no timeout but that of connecting.

    Raises:
        MissingDependencyError: aiohttp is not installed.
    """
    try:
        import aiohttp
    except ImportError as error:
        raise MissingDependencyError(
            "the load client needs aiohttp", "pip install 'kvplan-tuner[tune]'"
        ) from error
    # A proxy between the client and a server on this machine would be measured too.
    local = urlsplit(endpoint.base_url).hostname in {"127.0.0.1", "localhost", "::1"}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ssl=endpoint.verify_tls)
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout, trust_env=not local
    ) as session:
        yield session


async def ordinary_token_ids(session: aiohttp.ClientSession, endpoint: Endpoint) -> list[int]:
    """Ids of ordinary tokens: those of random words, by the server's own tokenizer (vLLM's `/tokenize`).

    Raises:
        LoadError: nothing answers there, or it cannot tokenize.
    """
    import aiohttp

    url = endpoint.at("/tokenize")
    body = {"model": endpoint.model, "prompt": sample_text(), "add_special_tokens": False}
    try:
        async with session.post(url, json=body) as response:
            answer = await response.read()
            if response.status == 200:
                return sorted(set(json.loads(answer)["tokens"]))
            complaint = f"{response.status}: {error_text(answer)}"
    except (aiohttp.ClientError, OSError) as error:
        raise LoadError(f"no answer from {endpoint.base_url}: {error}", "is the server up?") from error
    except (ValueError, KeyError, TypeError) as error:
        complaint = f"without a list of tokens ({error!r})"
    raise LoadError(
        f"{url} answered {complaint}",
        "--model must be the served name; for a server that cannot tokenize give --vocab-size",
    )
