"""Era: which of vLLM's KV-cache rules hold in a release.

Each boundary was read in the Python files of two releases: the rule is absent from the earlier and present
in the later one (0.6.6, 0.7.3, 0.8.5, 0.9.1, 0.9.2, 0.10.1, 0.10.2, 0.11.2, 0.12.0, 0.13.0, 0.14.1, 0.15.1,
0.16.0, 0.17.1, 0.18.1, 0.19.1, 0.20.0, 0.20.1, 0.21.0, 0.22.1, 0.24.0, 0.25.1, 0.26.0, 0.27.0, 0.28.0 to
0.32.0 were compared).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from kvplan.config.version import VllmVersion

_T = TypeVar("_T")


class Era(FrozenRecord):
    """The rules of one release. Sources are files of vLLM."""

    has_hybrid_manager: bool
    """0.9.1: windows hold less than full attention does (before, all layers are allocated alike)."""
    hybrid_manager_on_cpu: bool
    """0.10: on the CPU backend too (platforms/cpu.py::support_hybrid_kv_cache)."""
    chunks_under_hybrid_manager: bool
    """0.14: chunked-local attention too (VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE is on)."""
    shares_blocks: bool
    """0.9.1: printed tokens and concurrency share the blocks out among the groups."""
    prints_tokens_of_longest: bool
    """0.20.1: "GPU KV cache size" is the concurrency times max_model_len (get_kv_cache_capacity)."""
    checks_by_groups: bool
    """0.14: one request's need is summed over groups, padding layers included; before, over layers."""
    unifies_pages: bool
    """0.12: pages of different sizes are brought together (unify_kv_cache_spec_page_size)."""
    pads_attention_pages: bool
    """0.24: by padding too, where no longer block does it."""
    near_ratio: float
    """Up to which ratio of their lengths two kinds of layers make groups of the longer one's size."""
    aligns_skipped_layers: bool
    """0.25: quantised blocks grow until they cover a skipped layer's page."""
    forces_latent_blocks: bool
    """0.8 to 0.17: MLA backends dictate the block size, whatever the user asks for."""
    aligns_to_backend: bool
    """0.20: blocks of hybrids are multiples of the backend's or the user's size; before, of 16 (MLA: 64)."""
    latent_hybrid_unit: int
    """0.27: blocks of MLA hybrids are multiples of 128."""
    hybrid_prefix_caching: bool
    """0.26: hybrids have prefix caching on by default."""
    states_by_block: bool
    """0.15: prefix caching keeps recurrent states at block ends (mamba_cache_mode); before, otherwise."""
    keeps_every_mamba_state: bool
    """0.15 to 0.27: of Mamba models every block's state (mode `all`), later two (`align`)."""
    aligned_block_fits_batch: bool
    """0.17 to 0.26: in mode `align` a block must not be longer than a batch."""
    half_precision_nemotron: bool
    """Up to 0.19: Nemotron-H's recurrent state has two bytes where its config names no dtype; then four."""
    indexes_every_layer: bool
    """Up to 0.23: an indexer in every sparse layer, also in those that share another's choice."""
    aligns_latents: bool
    """0.7: MLA rows are padded to 256 bytes (VLLM_CUDA_MEM_ALIGN_KV_CACHE)."""
    state_checkpoints: bool
    """0.29: Mamba-2 holds one more block for a state exported from inside a prefill."""
    counts_concurrent_batches: bool
    """0.26: windows allow for every batch in flight, not one."""
    second_runner_for_all: bool
    """0.29: model runner V2 serves every model; 0.26 to 0.28 only those without experts or state."""
    reserves_null_block: bool
    """0.29: the start-up check sets the null block aside."""
    reads_modelopt_cache: bool
    """0.14: a ModelOpt checkpoint decides what `auto` is (resolve_kv_cache_dtype_string)."""
    reads_modelopt_nvfp4: bool
    """0.20: NVFP4 among its formats; before, `auto` stays the model's dtype."""
    reads_compressed_tensors_cache: bool
    """0.15: so does a compressed-tensors checkpoint with a kv_cache_scheme."""
    checkpoint_overrides_dtype: bool
    """0.15 to 0.21: and even a --kv-cache-dtype that was given."""
    compressed_tensors_take_e5m2: bool
    """0.24: compressed-tensors checkpoints without KV scales take fp8_e5m2."""
    packs_deepseek_v4: bool
    """0.31: DeepSeek-V4's groups are packed as in 0.32."""


@lru_cache(maxsize=128)
def era_of(version: VllmVersion, *, first_engine: bool = False) -> Era:
    """The rules of that release; a newer one than 0.32 has those of 0.32.

    `first_engine`: vLLM falls back to its first engine (V0), which has neither groups nor their figures.
    """
    return Era(
        has_hybrid_manager=version >= (0, 9, 1) and not first_engine,
        hybrid_manager_on_cpu=version >= (0, 10, 0),
        chunks_under_hybrid_manager=version >= (0, 14, 0),
        shares_blocks=version >= (0, 9, 1) and not first_engine,
        prints_tokens_of_longest=version >= (0, 20, 1),
        checks_by_groups=version >= (0, 14, 0),
        unifies_pages=version >= (0, 12, 0),
        pads_attention_pages=version >= (0, 24, 0),
        near_ratio=_newest(version, {(0, 18, 0): 1.5, (0, 12, 0): 1.25}, before=0.0),
        aligns_skipped_layers=version >= (0, 25, 0),
        forces_latent_blocks=(0, 8, 0) <= version < (0, 18, 0),
        aligns_to_backend=version >= (0, 20, 0),
        latent_hybrid_unit=_newest(version, {(0, 27, 0): 128, (0, 20, 0): 1}, before=64),
        hybrid_prefix_caching=version >= (0, 26, 0),
        states_by_block=version >= (0, 15, 0),
        keeps_every_mamba_state=(0, 15, 0) <= version < (0, 28, 0),
        aligned_block_fits_batch=(0, 17, 0) <= version < (0, 27, 0),
        half_precision_nemotron=version < (0, 20, 0),
        indexes_every_layer=version < (0, 24, 0),
        aligns_latents=version < (0, 8, 0),
        state_checkpoints=version >= (0, 29, 0),
        counts_concurrent_batches=version >= (0, 26, 0),
        second_runner_for_all=version >= (0, 29, 0),
        reserves_null_block=version >= (0, 29, 0),
        reads_modelopt_cache=version >= (0, 14, 0),
        reads_modelopt_nvfp4=version >= (0, 20, 0),
        reads_compressed_tensors_cache=version >= (0, 15, 0),
        checkpoint_overrides_dtype=(0, 15, 0) <= version < (0, 22, 0),
        compressed_tensors_take_e5m2=version >= (0, 24, 0),
        packs_deepseek_v4=version >= (0, 31, 0),
    )


def _newest(version: VllmVersion, rules: dict[VllmVersion, _T], *, before: _T) -> _T:
    """The rule of the newest release that is not newer than `version`; rules stand newest first."""
    return next((rule for first, rule in rules.items() if version >= first), before)
