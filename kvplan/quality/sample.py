"""What a server said to the probe's questions: the raw material of a verdict, as the journal keeps it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Step:
    """One token of a greedy answer: what was chosen, and what came next to it."""

    token: int
    logprob: float
    second: int
    second_logprob: float


@dataclass(frozen=True, slots=True)
class TextScore:
    """One passage: how probable the model found each of its tokens, and how it went on."""

    logprobs: tuple[float, ...]
    """Natural logarithm of the probability of the passage's own token, from the second token on."""
    top_tokens: tuple[int, ...]
    """The token that the model found most probable in the same place."""
    steps: tuple[Step, ...]
    """The greedy continuation; all but its first token come from decode steps, which read the cache."""


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over all questions."""

    texts: tuple[TextScore, ...]
    needles: tuple[bool, ...]
    """Whether each fact was given back; empty where the context is too short to hide anything."""


@dataclass(frozen=True, slots=True)
class QualitySample:
    """What one server was asked and said; two of them make a verdict."""

    prompts: str
    """Digest of every prompt's token ids: only samples of the same prompts are compared."""
    text_tokens: int
    """Tokens of a passage."""
    context_tokens: int
    """Tokens of the longest needle prompt; 0: no needle test."""
    first: Run | None = None
    """Each question alone."""
    repeat: Run | None = None
    """The same questions with other requests in the batch: how much the numbers move by themselves."""
    seconds: float = 0.0
    error: str | None = None
    """Why there is nothing to judge: the server refused, broke off or died."""

    def as_dict(self) -> dict[str, Any]:
        """The sample as JSON types; steps as short lists, because there are hundreds."""
        record: dict[str, Any] = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in {"first", "repeat"}
        }
        return record | {
            name: None if run is None else _run_as_dict(run)
            for name, run in (("first", self.first), ("repeat", self.repeat))
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> QualitySample:
        """The sample back from JSON; keys that a newer kvplan added are ignored."""
        known = {f.name for f in dataclasses.fields(cls)} - {"first", "repeat"}
        return cls(
            **{name: value for name, value in record.items() if name in known},
            first=_run_from_dict(record.get("first")),
            repeat=_run_from_dict(record.get("repeat")),
        )


def _run_as_dict(run: Run) -> dict[str, Any]:
    return {
        "needles": list(run.needles),
        "texts": [
            {
                "logprobs": list(text.logprobs),
                "top_tokens": list(text.top_tokens),
                "steps": [list(dataclasses.astuple(step)) for step in text.steps],
            }
            for text in run.texts
        ],
    }


def _run_from_dict(record: Mapping[str, Any] | None) -> Run | None:
    if record is None:
        return None
    return Run(
        needles=tuple(record["needles"]),
        texts=tuple(
            TextScore(
                logprobs=tuple(text["logprobs"]),
                top_tokens=tuple(text["top_tokens"]),
                steps=tuple(Step(*step) for step in text["steps"]),
            )
            for text in record["texts"]
        ),
    )
