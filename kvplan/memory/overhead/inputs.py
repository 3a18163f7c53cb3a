"""What the overhead model reads, and what it answers. Sizes in bytes, lengths in tokens."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvplan.memory.interval import Interval
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.config.version import VllmVersion


class MoeShape(FrozenRecord):
    """The routed experts of a mixture-of-experts model."""

    num_experts: int
    top_k: int
    intermediate_size: int
    """Of one expert."""


class EncoderShape(FrozenRecord):
    """The vision (or audio) tower that the profile run executes once at its largest input."""

    hidden_size: int
    intermediate_size: int
    patches_per_token: int
    """Patches of the tower that become one token of the language model."""
    patch_values: int
    """Numbers that describe one patch: channels x frames x patch edge squared."""
    max_item_tokens: int
    """Language-model tokens of the largest single item that the processor makes."""
    gated: bool = False
    """Whether its feed-forward has a gate beside the up projection (SwiGLU)."""
    kept_tokens: int = 0
    """Embeddings that the profile run keeps where they are more than the tower gives (0.11 and 0.12)."""
    rows_per_token: int = 1
    """Rows of the language model's hidden size that the tower gives per token (more with deep stacking)."""


class OverheadInputs(NamedTuple):
    """One launch, as far as the memory beside weights and KV cache depends on it."""

    vllm_version: VllmVersion
    architecture: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    intermediate_size: int
    """Dense feed-forward width; 0 where there is none."""
    num_attention_heads: int
    head_dim: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    dtype_bytes: int = 2
    quantization: str | None = None
    compute_capability: tuple[int, int] | None = None
    platform: Literal["cuda", "cpu", "other"] = "cuda"
    unified_memory: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enforce_eager: bool = False
    moe: MoeShape | None = None
    encoder: EncoderShape | None = None
    is_mla: bool = False
    has_sparse_indexer: bool = False
    is_hybrid: bool = False
    num_speculative_tokens: int = 0

    @property
    def engine(self) -> Literal["V0", "V1"]:
        """V1 is the default engine from 0.8."""
        return "V1" if self.vllm_version >= (0, 8, 0) else "V0"


class Overhead(FrozenRecord):
    """What one GPU holds beside weights and KV cache. Each term is an 80 % interval."""

    activations: Interval
    """Peak of the profile run above the weights."""
    cuda_graphs: Interval
    """Graph memory that this version subtracts from the budget; 0 where it does not."""
    other: Interval
    """Charged memory that is not an activation: kernels, communicators, resident buffers, model error."""
    cuda_graphs_outside: Interval
    """Graph memory, and buffers that the profile run does not see, that must find room beyond the budget."""
    outside_budget: Interval
    """CUDA context and whatever else exists before vLLM's first snapshot."""
    warnings: tuple[str, ...] = ()
    source: str = "overhead model fitted to public launches (docs/calibration.md)"
    explainer: Callable[[str], str] = field(default=lambda _: "", repr=False, compare=False)
    """Term -> its formula with the numbers in it; built only when somebody asks."""

    def explain(self, term: str) -> str:
        """The formula of a term (`activations`, `cuda_graphs`, `other`) with its numbers, for --explain."""
        return self.explainer(term)


def combine(terms: tuple[Interval, ...]) -> Interval:
    """The 80 % interval of a sum of independent terms: mids add, half-widths add in quadrature."""
    mid, below, above = 0, 0, 0
    for term in terms:  # a loop: the search asks this half a million times
        middle = term.mid
        mid += middle
        below += (middle - term.low) ** 2
        above += (term.high - middle) ** 2
    return Interval(mid - round(below**0.5), mid, mid + round(above**0.5))
