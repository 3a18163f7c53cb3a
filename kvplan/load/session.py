"""Connections to the server, and what the client must ask of it before it can send prompts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kvplan.errors import LoadError, MissingDependencyError
from kvplan.load.endpoint import shown_url, tls_context
from kvplan.load.prompts import sample_text
from kvplan.load.stream import error_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

    from kvplan.load.records import Endpoint

_CONNECT_TIMEOUT_S: Final = 10.0
_TOKENIZE_TIMEOUT_S: Final = 60.0
_MOST_BYTES: Final = 16 << 20
_SHOWN: Final = 200
_LARGEST_ID: Final = 1 << 31
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
    tls: Any = endpoint.verify_tls if endpoint.ca_file is None else tls_context(endpoint.ca_file)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S, ssl=tls)
    # Uncompressed: a small answer cannot grow to gigabytes here, and no chunk waits in a compressor.
    headers = {"Accept-Encoding": "identity"}
    headers |= {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout, trust_env=not local, auto_decompress=False
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
        async with (
            asyncio.timeout(_TOKENIZE_TIMEOUT_S),
            session.post(url, json=body, allow_redirects=False) as response,
        ):
            answer = await read_at_most(response, _MOST_BYTES)
            if response.status == 200:
                ids = _ids(json.loads(answer)["tokens"])
                if ids:
                    return ids
                complaint = "without a token"
            else:
                complaint = f"{response.status}: {error_text(answer, endpoint.hide)}"
    except (aiohttp.ClientError, OSError) as error:
        raise no_answer(error, endpoint) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        complaint = f"without a list of tokens ({type(error).__name__})"
    raise LoadError(
        f"{url} answered {complaint}",
        "--model must be the served name; for a server that cannot tokenize give --vocab-size",
    )


def _ids(tokens: object) -> list[int]:
    """The ids among what a server calls tokens."""
    if not isinstance(tokens, list):
        raise TypeError("tokens are no list")
    return sorted({n for n in tokens if isinstance(n, int) and n is not True and 0 <= n < _LARGEST_ID})


def sent_on_to(response: aiohttp.ClientResponse) -> str | None:
    """Where a redirect leads, as it may be printed; None if it is none.

    None is followed: the load, and perhaps the prompts' owner's key, would go where nobody sent them.
    """
    if not 300 <= response.status < 400:
        return None
    return shown_url(response.headers.get("Location", "")) or "nowhere"


def compressed_by(response: aiohttp.ClientResponse) -> str | None:
    """How an answer is compressed although none may be; None if it is not."""
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    return None if coding in {"", "identity"} else coding[:_SHOWN]


async def read_at_most(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body, as far as that many bytes: whatever answers there must not fill our memory."""
    body = bytearray()
    while len(body) < most_bytes:
        piece = await response.content.read(most_bytes - len(body))
        if not piece:
            break
        body += piece
    return bytes(body)


def no_answer(error: BaseException, endpoint: Endpoint) -> LoadError:
    """Why a server cannot be spoken to, and what to do about it.

    Args:
        error: what aiohttp, asyncio or the system raised.
        endpoint: the server that was asked.
    """
    import aiohttp

    where = endpoint.base_url
    is_tls = where.startswith("https:")
    other_scheme = "" if is_tls else "is it https:// there, "
    match error:
        case aiohttp.ClientConnectorCertificateError():
            what = f"the certificate of {where} is not trusted: {error.certificate_error}"
            hint = "--ca-file FILE trusts your own authority; --insecure verifies nothing"
        case aiohttp.ClientSSLError():
            what, hint = f"{where} does not speak TLS as it should: {error}", "is it http:// there?"
        case aiohttp.ClientConnectorDNSError():
            what, hint = f"no answer from {where}: the name is unknown here", "is it spelled right?"
        case TimeoutError():
            what = f"no answer from {where} in time"
            hint = "does it hang, does a firewall drop it" + (", or is it http:// there?" if is_tls else "?")
        case (
            aiohttp.ServerDisconnectedError()
            | aiohttp.ClientPayloadError()
            | OSError(errno=errno.ECONNRESET | errno.EPIPE)
        ):
            what = f"{where} closed the connection without an answer"
            hint = f"{other_scheme}does it still start, or did it die?"
        case aiohttp.ClientResponseError():
            what = f"{where} does not speak HTTP: {endpoint.hide(error.message)[:_SHOWN]}"
            hint = f"{other_scheme}or is it another service?"
        case _:
            what, hint = f"no answer from {where}: {error}", "is the server up, and the port right?"
    return LoadError(endpoint.hide(" ".join(what.split())), hint)
