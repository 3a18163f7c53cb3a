"""Prompts of exact token counts, as lists of token ids: no tokenizer is needed and no count is off by one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from kvplan.errors import LoadError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_FEWEST_IDS: Final = 16
"""With 16 ids, two prompts share their first 16 tokens once in 16^16."""
_SAMPLE_WORDS: Final = 6000


def safe_token_ids(vocab_size: int, special_ids: Collection[int] = ()) -> range | list[int]:
    """Ids of ordinary tokens of a vocabulary of that size.

    Special tokens are at the start (Llama 2, Gemma) or at the end (Qwen, Llama 3) of a vocabulary: a tenth of
    it, at most a thousand ids, is left out at both. `special_ids` that are known are left out too.

    Raises:
        LoadError: fewer than 16 ids are left.
    """
    margin = min(1000, vocab_size // 10)
    ids = range(margin, vocab_size - margin)
    chosen = [i for i in ids if i not in special_ids] if special_ids else ids
    if len(chosen) < _FEWEST_IDS:
        raise LoadError(
            f"a vocabulary of {vocab_size} tokens leaves too few for prompts",
            "give the model's own size with --vocab-size",
        )
    return chosen


def sample_text(seed: int = 0) -> str:
    """Text whose tokens are ordinary ones in any vocabulary: random short words."""
    rng = random.Random(f"{seed} words")
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    weights = range(len(letters), 0, -1)
    words = ["".join(rng.choices(letters, weights, k=rng.randint(1, 6))) for _ in range(_SAMPLE_WORDS)]
    return " ".join(words)


class PromptSource:
    """Prompts of one load: equal (seed, salt) give equal prompts, an equal seed the same shared prefix."""

    def __init__(self, token_ids: Sequence[int], seed: int, salt: int, shared_prefix_tokens: int = 0) -> None:
        if len(token_ids) < _FEWEST_IDS:
            raise LoadError(
                f"{len(token_ids)} token ids are too few for prompts that differ",
                "give the model's own size with --vocab-size",
            )
        self._ids = token_ids
        self._key = f"{seed} {salt}"
        self._prefix = random.Random(f"{seed} prefix").choices(token_ids, k=shared_prefix_tokens)

    def fresh(self, number: int, length: int, history: Sequence[int] = ()) -> list[int]:
        """The prompt of request `number`, `length` tokens long.

        It begins with the history of its conversation, or else with the shared prefix, as far as the length
        goes; at least the last token is new.
        """
        start = list(history or self._prefix)[: length - 1]
        rng = random.Random(f"{self._key} {number}")
        return start + rng.choices(self._ids, k=length - len(start))
