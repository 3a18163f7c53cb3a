"""What one decoder layer keeps per token or per request: the facts of a model, before any parallelism.

Head counts and widths are those of the whole model; `kvplan.memory.kv_cache` divides them over the ranks.
"""

from __future__ import annotations

from kvplan.record import FrozenRecord


class FullAttention(FrozenRecord):
    """Keys and values of every token so far (MHA, GQA, MQA)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    """Differs from `head_dim` only where the model says so (MiMo-V2)."""
    has_sinks: bool = False
    """Learned attention sinks (gpt-oss) narrow the choice of attention backends."""


class SlidingWindow(FrozenRecord):
    """Keys and values of the last `window` tokens."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int
    has_sinks: bool = False


class ChunkedLocal(FrozenRecord):
    """Keys and values of the chunk of `chunk` tokens that the current token is in (Llama 4)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    chunk: int
    has_sinks: bool = False


class CrossAttention(FrozenRecord):
    """Keys and values of the encoder's output, at most `max_encoder_tokens` of them (Whisper)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    max_encoder_tokens: int
    has_sinks: bool = False


class BlockSparseAttention(FrozenRecord):
    """Keys and values of every token, of which an indexer picks blocks (MiniMax-M3)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    has_sinks: bool = False


class IndexKeys(FrozenRecord):
    """The indexer's keys beside block-sparse attention: one vector a token, in bfloat16."""

    head_dim: int


class Mla(FrozenRecord):
    """One latent vector and one rotary key a token, shared by all heads (DeepSeek V2/V3, Kimi)."""

    num_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    sparse: bool = False
    """DeepSeek sparse attention: an indexer picks the tokens that are attended to."""


class MlaIndexer(FrozenRecord):
    """The indexer's keys beside a sparse MLA layer: fp8 values and one fp32 scale per 128 of them."""

    head_dim: int


class DeepseekV4Attention(FrozenRecord):
    """The caches of one DeepSeek-V4 layer.

    A sliding window of uncompressed latents in every layer; where `compress_ratio` is 4 or 128 also one
    compressed latent per that many tokens and the state of its compressor; at 4 also an indexer with its
    own compressor.
    """

    num_heads: int
    head_dim: int
    index_head_dim: int
    window: int
    compress_ratio: int
    """0 or 1: the layer has nothing but the window."""


class Mamba1State(FrozenRecord):
    """Convolution and SSM state of a Mamba-1 mixer."""

    intermediate_size: int
    state_size: int
    conv_kernel: int


class Mamba2State(FrozenRecord):
    """Convolution and SSM state of a Mamba-2 mixer."""

    intermediate_size: int
    num_groups: int
    num_heads: int
    head_dim: int
    state_size: int
    conv_kernel: int


class GatedDeltaNetState(FrozenRecord):
    """Convolution and recurrent state of a gated delta net (Qwen3-Next, Qwen3.5)."""

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel: int


class KdaState(FrozenRecord):
    """Convolution and recurrent state of Kimi delta attention."""

    num_heads: int
    head_dim: int
    conv_kernel: int
    bounded_gate: bool
    """The decay gate has a lower bound: vLLM's fast prefill kernel needs it."""


class ShortConvState(FrozenRecord):
    """State of a short convolution (LFM2)."""

    conv_dim: int
    conv_kernel: int


KvHeadsCache = FullAttention | SlidingWindow | ChunkedLocal | CrossAttention | BlockSparseAttention
"""Caches that store a key and a value for each KV head."""
RecurrentState = Mamba1State | Mamba2State | GatedDeltaNetState | KdaState | ShortConvState
"""Caches of a fixed size a request."""
AttendedCache = KvHeadsCache | IndexKeys | Mla | MlaIndexer | DeepseekV4Attention
"""Caches that an attention backend reads."""
LayerCache = AttendedCache | RecurrentState
Layer = tuple[LayerCache, ...]
"""The caches of one decoder layer, in the order in which vLLM registers them; empty keeps nothing."""
