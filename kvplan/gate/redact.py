"""Nothing secret and nothing endless leaves the gate: every string that is printed goes through here."""

from __future__ import annotations

import re
from typing import Any, Final

REDACTED: Final = "<redacted>"
_LONGEST: Final = 160
_LOOKED_AT: Final = 4000

# Control characters, those that turn or hide text on the screen, lone surrogates, non-characters.
INVISIBLE: Final = (
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u2069\ufeff\ud800-\udfff\ufffe\uffff\U000e0000-\U000e007f]"
)

SECRET_FLAGS: Final = frozenset({"api_key", "hf_token", "ssl_keyfile_password"})

_URL_LOGIN: Final = re.compile(r"(?<=://)[^\s/@]{1,200}@")
_TOKENS: Final = re.compile(
    r"hf_[A-Za-z0-9]{8,}"
    r"|sk-[A-Za-z0-9_-]{8,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|github_pat_[A-Za-z0-9_]{16,}"
    r"|glpat-[A-Za-z0-9_-]{12,}"
    r"|xox[abprs]-[A-Za-z0-9-]{8,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|AIza[A-Za-z0-9_-]{20,}"
    r"|nvapi-[A-Za-z0-9_-]{8,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"
    r"|(?i:bearer)\s+[A-Za-z0-9._~+/-]{8,}"
    r"|(?i:(?:password|passwd|secret|token|api[_-]?key|access[_-]?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;})]{4,}"
)


def without_invisible(text: str) -> str:
    """The text with a mark in place of every character that is not seen."""
    return text if text.isprintable() else re.sub(INVISIBLE, "\ufffd", text)


def redact_text(text: str, longest: int = _LONGEST) -> str:
    """The text without tokens and logins, cut to a length that a message can hold."""
    text = _TOKENS.sub(REDACTED, _URL_LOGIN.sub(f"{REDACTED}@", text[:_LOOKED_AT]))
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= longest else text[:longest] + "…"


def redact(value: Any, key: str = "") -> Any:
    """The value with every string redacted; the values of secret flags and variables are replaced whole."""
    if _names_secret(key) and value is not None and not isinstance(value, bool):
        return [REDACTED] if isinstance(value, list | tuple) else REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {redact_text(str(k)): redact(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return value


_SECRET_KEY: Final = (
    r"(?i)(^|[_-])"  # noqa: S105  names of secrets
    r"(api_?key|token|secret|password|passwd|access_?key|credentials?)$"
)


def holds_named_secret(value: Any) -> bool:
    """Whether a text anywhere within stands under a secret's name: `{"auth": {"token": "…"}}`."""
    if isinstance(value, dict):
        return any(
            (isinstance(item, str) and item and _names_secret(str(key))) or holds_named_secret(item)
            for key, item in value.items()
        )
    return isinstance(value, list | tuple) and any(holds_named_secret(item) for item in value)


def _names_secret(key: str) -> bool:
    return key in SECRET_FLAGS or bool(re.search(_SECRET_KEY, key))
