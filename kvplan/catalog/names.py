"""Names of models and cards: the one normal form that profiles and queries are compared in."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_GPU_NOISE: Final = frozenset(
    {"nvidia", "geforce", "rtx", "gtx", "tesla", "amd", "instinct", "radeon", "oam", "intel"}
    | {"gpu", "graphics", "edition", "generation", "accelerator"}
)
"""Words that vendors add to a card's name and that tell no two cards apart."""
_FORM_FACTOR: Final = re.compile(r"sxm\d?")
_MEMORY_SIZE: Final = re.compile(r"(\d+)(?:gb|g|gib)")


def model_key(name: str) -> str:
    """`" Qwen/Qwen2_7B Instruct"` -> `"qwen/qwen2-7b-instruct"`."""
    return re.sub(r"[\s_]+", "-", name.strip()).casefold()


def gpu_words(name: str) -> tuple[str, ...]:
    """The words of a card's name that tell it from others, in order.

    `"NVIDIA A100-SXM4-80GB"` -> `("a100", "sxm", "80gb")`: vendor words and the brand RTX go, a form factor
    loses its generation (a card has only one), memory sizes are written `80gb`.
    """
    words: list[str] = []
    for word in re.split(r"[^a-z0-9]+", re.sub(r"\b(rtx|gtx)(?=\d)", r"\1 ", name.casefold())):
        size = _MEMORY_SIZE.fullmatch(word)
        if not word or word in _GPU_NOISE:
            continue
        if size:
            words.append(f"{size[1]}gb")
        elif _FORM_FACTOR.fullmatch(word):
            words.append("sxm")
        elif word == "gb" and words and words[-1].isdigit():
            words[-1] += "gb"
        else:
            words.append(word)
    return tuple(words)


def gpu_key(name: str) -> str:
    """`"NVIDIA GeForce RTX 4090 D"` -> `"4090-d"`."""
    return "-".join(gpu_words(name))


def nearest(query: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The known names that look most like the query, best first; empty when none is near."""
    by_key: dict[str, str] = {}
    for name in known:
        by_key.setdefault(model_key(name), name)
    found = difflib.get_close_matches(model_key(query), by_key, n=3 * count, cutoff=0.5)
    return tuple(dict.fromkeys(by_key[key] for key in found))[:count]
