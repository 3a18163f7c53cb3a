"""Peak of the profile run: which tensors are alive at its three possible peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.memory.interval import Interval

if TYPE_CHECKING:
    from kvplan.memory.overhead.eras import Era
    from kvplan.memory.overhead.inputs import OverheadInputs

BYTES_PER_LOGIT: Final = {"sort": 36, "fused": 12, "v2_fp32": 4, "v2": 0}
"""Beside the logits in the model's dtype: see `sampler_bytes`."""


def sampler_bytes(facts: OverheadInputs, era: Era) -> int:
    """Peak of the dummy sampler run over max_num_seqs rows of logits."""
    rows = min(facts.max_num_seqs, facts.max_num_batched_tokens)
    kind = "fused" if era.sampler == "sort_or_flashinfer" else era.sampler
    logits = rows * facts.vocab_size * (facts.dtype_bytes + BYTES_PER_LOGIT[kind])
    hidden = (facts.max_num_batched_tokens + 2 * rows) * facts.hidden_size * facts.dtype_bytes
    return logits + hidden


def forward_bytes(facts: OverheadInputs, era: Era) -> int:
    """Peak of one decoder layer over max_num_batched_tokens."""
    copies = 4 if era.compiled else 3
    width = 3 * facts.intermediate_size // facts.tensor_parallel_size + copies * facts.hidden_size
    return facts.max_num_batched_tokens * width * facts.dtype_bytes


def moe_workspace_bytes(facts: OverheadInputs) -> int:
    """The two workspaces of the fused experts."""
    if facts.moe is None:
        return 0
    routed = facts.max_num_batched_tokens * facts.moe.top_k
    inner = facts.moe.intermediate_size // facts.tensor_parallel_size
    widths = max(inner, facts.hidden_size) + max(2 * inner, facts.hidden_size)
    return routed * widths * facts.dtype_bytes


def activation_interval(facts: OverheadInputs, era: Era) -> Interval:
    """The peak as an interval."""
    peak = max(sampler_bytes(facts, era), forward_bytes(facts, era)) + moe_workspace_bytes(facts)
    return Interval(round(0.8 * peak), peak, round(1.4 * peak))
