"""The formula of a term with the numbers of one launch in it, for --explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.memory.overhead.graphs import captured_graphs
from kvplan.record import FrozenRecord
from kvplan.units import format_gib

if TYPE_CHECKING:
    from kvplan.memory.overhead.activations import Activations
    from kvplan.memory.overhead.eras import Era
    from kvplan.memory.overhead.inputs import OverheadInputs
    from kvplan.memory.overhead.resident import Resident


class Explainer(FrozenRecord):
    """What is needed to put one launch's terms into words."""

    facts: OverheadInputs
    era: Era
    activations: Activations
    resident: Resident
    graph_bytes: int

    def __call__(self, term: str) -> str:
        """The formula of `activations`, `cuda_graphs` or `other`; empty for any other name."""
        if term == "activations":
            return self._activations()
        if term == "cuda_graphs":
            return self._graphs()
        return self._other() if term == "other" else ""

    def _activations(self) -> str:
        facts = self.facts
        shown = ", ".join(f"{name} {format_gib(size)}" for name, size in self.activations.peaks.items())
        kept = self.activations.alive
        return (
            f"peak of the profile run over {facts.max_num_batched_tokens:,} tokens and "
            f"{facts.max_num_seqs:,} sequences x {facts.vocab_size:,} logits ({self.era.sampler} sampler): "
            f"the largest of {shown}" + (f"; {format_gib(kept)} of it alive throughout" if kept else "")
        )

    def _graphs(self) -> str:
        if not self.era.graphs_captured:
            return "none captured"
        charged = (
            "subtracted from the budget" if self.era.graphs_charged else "not subtracted by this version"
        )
        return (
            f"{captured_graphs(self.facts)} graphs x {self.facts.num_layers} layers: "
            f"{format_gib(self.graph_bytes)}, {charged}"
        )

    def _other(self) -> str:
        parts = {
            "kernels and library workspaces": self.resident.kernels,
            "tensor-parallel communicators": self.resident.peers,
            "sampler counters": self.resident.buffers,
            "CUDA context": self.resident.context,
            "host memory of the process (unified memory)": self.resident.unified,
        }
        return " + ".join(f"{name} {format_gib(size)}" for name, size in parts.items() if size)
