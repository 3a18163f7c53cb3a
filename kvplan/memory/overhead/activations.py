"""Peak of the profile run: which tensors are alive at each of its possible peaks.

The profile run executes the vision tower once at its largest input, then the decoder over
max_num_batched_tokens, then the sampler over max_num_seqs rows of logits; its peak is the largest of these,
on top of what stays alive from one to the next. A compile from a cold cache is a fourth candidate: the
kernels that are benchmarked then get arguments of the real sizes, among them a copy of the embedding table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvplan.memory.overhead.hardware_facts import cublas_workspace_bytes, multiprocessors
from kvplan.record import FrozenRecord
from kvplan.units import MIB, cdiv

if TYPE_CHECKING:
    from kvplan.memory.overhead.coefficients import Coefficients
    from kvplan.memory.overhead.eras import Era
    from kvplan.memory.overhead.inputs import OverheadInputs

Peak = Literal["sampler", "decoder", "compile", "encoder"]


class Activations(FrozenRecord):
    """The candidates for the peak and what is alive throughout. Bytes."""

    peaks: dict[Peak, int]
    alive: int
    """Multimodal inputs and embeddings, expert workspaces: held from their first use to the end."""

    @property
    def decisive(self) -> Peak:
        """Which candidate is the peak."""
        return max(self.peaks, key=self.peaks.__getitem__)

    @property
    def bytes(self) -> int:
        """The peak above the weights."""
        return self.peaks[self.decisive]


def activations_of(facts: OverheadInputs, era: Era, fitted: Coefficients) -> Activations:
    """Every candidate for the profile run's peak.

    Source: vLLM 0.6.6 to 0.32.0, v1/worker/gpu_model_runner.py::profile_run, _dummy_run, _dummy_sampler_run.
    """
    kept = encoder_kept_bytes(facts)
    workspace = moe_workspace_bytes(facts)
    indexer = indexer_bytes(facts)
    persistent = workspace if era.expert_workspace_stays else 0
    alive = kept + persistent + indexer
    decoder = decoder_bytes(facts, era, fitted) + (workspace - persistent)
    peaks: dict[Peak, int] = {
        "sampler": sampler_bytes(facts, era, fitted) + alive,
        "decoder": decoder + alive,
    }
    if era.compile_shows:
        peaks["compile"] = compile_bytes(facts) + alive
    if facts.encoder is not None:
        peaks["encoder"] = encoder_bytes(facts, fitted) + kept
    return Activations(peaks, alive)


def sampler_bytes(facts: OverheadInputs, era: Era, fitted: Coefficients) -> int:
    """Peak of the dummy sampler run.

    Per logit: the logits in the model's dtype, their float32 copy, then either the sort's values (4), indices
    (8), scratch of both and reverse keys (20), or the soft-maxed copy (4) and the exponential noise (4).
    Beside them the hidden states of the pass and twice the sampled rows' (as read, and as random ones).
    """
    rows = min(facts.max_num_seqs, facts.max_num_batched_tokens)
    beside = {
        "sort": fitted.sort_bytes_per_logit,
        "fused": fitted.fused_bytes_per_logit,
        "v2_fp32": 4.0,
        "v2": 0.0,
    }[era.sampler]
    if facts.dtype_bytes == 4 and era.sampler != "v2":
        # Already float32: `.to(float32)` makes no copy.
        beside -= 4
    logits = rows * facts.vocab_size * (facts.dtype_bytes + beside)
    stages = 3 if facts.pipeline_parallel_size > 1 else 1
    hidden = (stages * facts.max_num_batched_tokens + 2 * rows) * facts.hidden_size * facts.dtype_bytes
    scratch = multiprocessors(facts) * facts.vocab_size * 4 if era.triton_top_k else 0
    return round(logits) + hidden + scratch + cublas_workspace_bytes(facts)


def decoder_bytes(facts: OverheadInputs, era: Era, fitted: Coefficients) -> int:
    """Peak of one decoder layer over max_num_batched_tokens.

    The gate and up projections and their product (3 x intermediate), or the attention's projections where
    they are wider, and a few rows of the hidden size: residual, normed input, output.
    """
    copies = fitted.compiled_hidden_copies if era.compiled else fitted.eager_hidden_copies
    if facts.is_hybrid:
        copies += fitted.recurrent_hidden_copies
    attention = 4 * facts.num_attention_heads * facts.head_dim
    inner = max(3 * facts.intermediate_size, attention) / facts.tensor_parallel_size
    stages = 2 if facts.pipeline_parallel_size > 1 else 0
    row = (inner + (copies + stages) * facts.hidden_size) * facts.dtype_bytes
    if era.quantises_activations:
        # The activation of the feed-forward again, in one byte.
        row += facts.intermediate_size / facts.tensor_parallel_size
    return round(facts.max_num_batched_tokens * row) + cublas_workspace_bytes(facts) // 2


def compile_bytes(facts: OverheadInputs) -> int:
    """Peak of a compile from a cold cache: a copy of the embedding table and two rows a token."""
    table = cdiv(facts.vocab_size, facts.tensor_parallel_size) * facts.hidden_size
    return (table + 2 * facts.max_num_batched_tokens * facts.hidden_size) * facts.dtype_bytes


def moe_workspace_bytes(facts: OverheadInputs) -> int:
    """The two workspaces of the fused experts: first and third product share one, the second has its own.

    Source: vLLM 0.19.0 model_executor/layers/fused_moe/fused_moe.py::TritonExperts.workspace_shapes.
    """
    if facts.moe is None or facts.quantization == "mxfp4":
        # gpt-oss runs kernels of its own, whose buffers die before the sampler's peak.
        return 0
    routed = facts.max_num_batched_tokens * facts.moe.top_k
    inner = facts.moe.intermediate_size // facts.tensor_parallel_size
    widths = max(inner, facts.hidden_size) + max(2 * inner, facts.hidden_size)
    return routed * widths * facts.dtype_bytes


def encoder_kept_bytes(facts: OverheadInputs) -> int:
    """What the tower's run leaves alive: its output embeddings and the dummy items' pixels."""
    if facts.encoder is None:
        return 0
    tokens = encoder_tokens(facts)
    pixels = tokens * facts.encoder.patches_per_token * facts.encoder.patch_values
    kept = max(tokens, facts.encoder.kept_tokens)
    rows = kept * facts.encoder.rows_per_token * facts.hidden_size
    return (rows + pixels) * facts.dtype_bytes


def encoder_bytes(facts: OverheadInputs, fitted: Coefficients) -> int:
    """Peak of the vision tower over its budget: rows of its hidden and feed-forward size per patch."""
    encoder = facts.encoder
    if encoder is None:
        return 0
    row = fitted.encoder_hidden_copies * encoder.hidden_size
    row += (3 if encoder.gated else 2) * encoder.intermediate_size
    return round(encoder_tokens(facts) * encoder.patches_per_token * row * facts.dtype_bytes)


def encoder_tokens(facts: OverheadInputs) -> int:
    """Embeddings that the profile run makes: whole items of the largest size that the budget admits.

    Source: vLLM 0.19.0 v1/core/encoder_cache_manager.py::compute_mm_encoder_budget.
    """
    encoder = facts.encoder
    if encoder is None:
        return 0
    budget = max(facts.max_num_batched_tokens, encoder.max_item_tokens)
    items = max(min(budget // encoder.max_item_tokens, facts.max_num_seqs), 1)
    return items * encoder.max_item_tokens


def indexer_bytes(facts: OverheadInputs) -> int:
    """Sparse attention's prefill workspace (5 x max_model_len rows of 576), the indexer's logits (512 MiB).

    Source: vLLM 0.24.0 v1/attention/backends/mla/indexer.py::get_max_prefill_buffer_size, envs.py
    VLLM_SPARSE_INDEXER_MAX_LOGITS_MB.
    """
    if not facts.has_sparse_indexer:
        return 0
    return 5 * facts.max_model_len * 576 * 2 + 512 * MIB
