"""Where the card's memory goes: as the chosen trial measured it, and as the memory model had it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from kvplan.tune.card import learn_card

if TYPE_CHECKING:
    from kvplan.memory.estimate import Estimate
    from kvplan.tune.trial import Trial

LineName = Literal["weights", "before_kv", "kv_cache", "outside", "free", "unknown"]

TITLES: Final[dict[LineName, str]] = {
    "weights": "weights",
    "before_kv": "before the KV cache: activations, graphs, the process itself",
    "kv_cache": "KV cache",
    "outside": "outside vLLM's budget",
    "free": "free at the highest use",
    "unknown": "not measured",
}


@dataclass(frozen=True, slots=True)
class Ledger:
    """Parts of one card that sum to it. Bytes; None is unknown, and then `unknown` holds what is left."""

    name: str
    total_bytes: int
    parts: tuple[tuple[LineName, int], ...]

    def bytes_of(self, line: LineName) -> int | None:
        """The bytes of one part."""
        return dict(self.parts).get(line)


def measured_ledger(card_bytes: int, trial: Trial | None) -> Ledger | None:
    """The card as a started trial used it; None when nothing of it was measured."""
    if trial is None or trial.launch is None or trial.kv_cache_bytes is None or trial.non_kv_bytes is None:
        return None
    card = learn_card(card_bytes, trial)
    weights = trial.launch.facts.weights_bytes
    weights = None if weights is None or weights > card.non_kv_bytes else weights
    parts: list[tuple[LineName, int]] = [] if weights is None else [("weights", weights)]
    parts += [("before_kv", card.non_kv_bytes - (weights or 0)), ("kv_cache", trial.kv_cache_bytes)]
    if card.unbudgeted_bytes is not None:
        parts.append(("outside", card.unbudgeted_bytes))
    rest = card_bytes - sum(size for _, size in parts)
    parts.append(("unknown" if card.unbudgeted_bytes is None else "free", rest))
    return Ledger(f"measured in trial {trial.number}", card_bytes, tuple(parts))


def predicted_ledger(answer: Estimate) -> Ledger:
    """The card as the memory model has it, nothing launched."""
    lines = {line.name: line.bytes.mid for line in answer.budget.lines}
    outside = answer.overhead.outside_budget.mid + answer.overhead.cuda_graphs_outside.mid
    before_kv = lines["activations"] + lines["cuda_graphs"] + lines["other"]
    total = answer.budget.total_bytes
    parts: tuple[tuple[LineName, int], ...] = (
        ("weights", lines["weights"]),
        ("before_kv", before_kv),
        ("kv_cache", lines["kv_cache"]),
        ("outside", outside),
        ("free", total - lines["weights"] - before_kv - lines["kv_cache"] - outside),
    )
    return Ledger("memory model", total, parts)
