"""From what the user gives (URL, key, certificate) to an Endpoint; whatever is wrong with it is said here."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from kvplan.errors import InputError
from kvplan.load.records import Endpoint

DEFAULT_KEY_VARIABLE: Final = "VLLM_API_KEY"
"""Where vLLM itself takes its key from; a key meant for somebody else's API is sent only when it is named."""
_EXAMPLE: Final = "write it as http://127.0.0.1:8000"
_LONGEST_URL: Final = 2000
_ENDPOINT: Final = re.compile(
    r"/v1/.+|/(?:chat/completions|completions|tokenize|detokenize|metrics|health|version|ping|docs|openapi\.json)$"
)
"""What follows a server's address in the URL of one of its endpoints (vLLM 0.32.0 entrypoints/openai)."""
_HEADER_SAFE: Final = re.compile(r"[\x21-\x7e]+")
_SHOWN: Final = 120
_LOGIN: Final = re.compile(r"^((?:[^:/?#@]*:)?//|).*@", re.DOTALL)
_BEHIND: Final = re.compile(r"[?#].*", re.DOTALL)


def make_endpoint(
    url: str,
    model: str,
    *,
    api_key: str | None = None,
    api_key_env: str | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
) -> Endpoint:
    """The server that the user names.

    Args:
        url: with or without `/v1`.
        model: the served name.
        api_key: the key itself.
        api_key_env: the variable that holds it; wins over `api_key`.
        ca_file: certificates (PEM) to trust instead of the system's.
        insecure: do not verify the certificate.

    Raises:
        InputError: no URL of a server, a key that cannot be sent, certificates that cannot be read.
    """
    base_url = _base_url(url)
    if ca_file is not None:
        if insecure:
            raise InputError("--insecure verifies no certificate, --ca-file asks for it", "give one of them")
        tls_context(ca_file)
    key = _key(api_key, api_key_env)
    return Endpoint(base_url, model, key, verify_tls=not insecure, ca_file=ca_file)


def tls_context(ca_file: str) -> object:
    """An SSL context that trusts these certificates only.

    Raises:
        InputError: the file cannot be read, or holds no certificate.
    """
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise InputError(f"--ca-file {ca_file}: no certificate in it", "it must be a PEM file") from error
    except OSError as error:
        raise InputError(f"--ca-file {ca_file}: {error.strerror}", "name a readable PEM file") from error


def shown_url(url: str) -> str:
    """An address as it may be printed, whatever it is: nothing of a login, nothing behind a question mark."""
    without_login = _LOGIN.sub(r"\1***@", url)
    return _BEHIND.sub(lambda match: f"{match[0][0]}***", without_login)[:_SHOWN]


def _base_url(url: str) -> str:
    parts = _split(url)
    shown = shown_url(url)
    if parts.username is not None or parts.password is not None:
        # Not shown: it would put the password into logs.
        raise InputError(
            "--url holds a user name or a password",
            f"leave it out; the key belongs into the variable {DEFAULT_KEY_VARIABLE}, or --api-key-env NAME",
        )
    if parts.query or parts.fragment:
        raise InputError(f"--url {shown}: nothing may follow the path", _EXAMPLE)
    base_url = parts.geturl().rstrip("/").removesuffix("/v1").rstrip("/")
    endpoint = _ENDPOINT.search(urlsplit(base_url).path)
    if endpoint is not None:
        raise InputError(
            f"--url {shown} is one endpoint of a server, not its address",
            f"give the server's address, without {endpoint[0][:_SHOWN]}",
        )
    return base_url


def _split(url: str) -> SplitResult:
    shown = shown_url(url)
    if len(url) > _LONGEST_URL or not url.isprintable() or " " in url:
        raise InputError(f"--url {shown!r} is no address of a server", _EXAMPLE)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:  # UnicodeError is one too
        # What it says may quote a password.
        why = str(error) if shown == url[:_SHOWN] else "no address of a server"
        raise InputError(f"--url {shown}: {why}", _EXAMPLE) from error
    if parts.scheme not in {"http", "https"}:
        raise InputError(f"--url {shown} does not begin with http:// or https://", _EXAMPLE)
    if not host or port == 0:
        raise InputError(f"--url {shown} names no {'host' if not host else 'port'}", _EXAMPLE)
    return parts


def _key(api_key: str | None, api_key_env: str | None) -> str | None:
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            raise InputError(
                f"--api-key-env {api_key_env}: there is no such variable, or it is empty",
                "name the variable that holds the key, not the key",
            )
    else:
        key = api_key
    if not key:
        return None
    if not _HEADER_SAFE.fullmatch(key):
        raise InputError(
            "the API key holds spaces, line ends or characters that no header can carry",
            "a newline at its end is the usual reason",
        )
    return key
