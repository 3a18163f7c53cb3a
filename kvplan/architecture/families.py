"""The architectures that have an exact rule: name in config.json -> how its layers are read.

To add one: find its attention module in vLLM's model file, see which config fields give the heads, the head
size and the kind of each layer, and register a builder here; then add its config.json to
tests/data/configs and ask vLLM for its figures with tests/bench/make_kv_table.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvplan.architecture import attention_families as attention
from kvplan.architecture import latent_families as latent
from kvplan.architecture import recurrent_families as recurrent

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.architecture.config_fields import ConfigFields
    from kvplan.architecture.layers import Layer


class Family(NamedTuple):
    """How one architecture is read."""

    layers: Callable[[ConfigFields], tuple[Layer, ...]]
    max_len_default: int | None = None
    """The config class's own context length, where public checkpoints leave it out."""
    vocab_default: int | None = None
    multimodal: bool = False
    hybrid: bool = False
    """vLLM's `is_hybrid`: attention blocks are aligned to the recurrent state."""
    encoder_decoder: bool = False
    unlimited_length: bool = False
    """Its configs name no context length."""


_PLAIN = attention.plain()
_LLAMA = Family(attention.plain(kv_heads="heads"))
_GEMMA2 = Family(attention.alternating(period=2, head_dim=256))
_GEMMA3 = attention.alternating(period=6, head_dim=256, kv_heads=4, heads=8, window=4096)
_MLA = Family(latent.mla)
_GDN = Family(recurrent.gated_delta_net, hybrid=True)
_GDN_VISION = Family(recurrent.gated_delta_net, hybrid=True, multimodal=True)
_QWEN2 = attention.qwen(own_head_dim=False)
_QWEN_MOE = attention.qwen()

FAMILIES: Final[dict[str, Family]] = {
    # Llama and models that vLLM serves with its Llama code or in the same way
    "LlamaForCausalLM": _LLAMA,
    "LLaMAForCausalLM": _LLAMA,
    "MistralForCausalLM": Family(attention.plain(window_default=4096)),
    "Ministral3ForCausalLM": Family(_PLAIN),
    # Its text part is a Mistral or a Ministral 3, whose published configs say `sliding_window: null`.
    "Mistral3ForConditionalGeneration": Family(_PLAIN, multimodal=True),
    "MixtralForCausalLM": Family(_PLAIN),
    "Phi3ForCausalLM": Family(attention.plain(kv_heads="heads")),
    "PhiMoEForCausalLM": Family(_PLAIN),
    "InternLM2ForCausalLM": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    "InternLM3ForCausalLM": _LLAMA,
    "SolarForCausalLM": Family(_PLAIN),
    "TeleChat3ForCausalLM": _LLAMA,
    "StableLmForCausalLM": Family(attention.plain(own_head_dim=False)),
    "OlmoeForCausalLM": Family(attention.plain(own_head_dim=False)),
    "GraniteForCausalLM": Family(_PLAIN),
    "GraniteMoeForCausalLM": Family(attention.plain(own_head_dim=False)),
    "NemotronForCausalLM": Family(attention.plain(kv_heads="heads")),
    "CohereForCausalLM": Family(attention.plain(own_head_dim=False)),
    "Cohere2ForCausalLM": Family(attention.alternating(period=4, head_dim=None, window=4096, extra_window=1)),
    "GPT2LMHeadModel": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    "OPTForCausalLM": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    "BloomForCausalLM": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    "FalconForCausalLM": Family(attention.falcon, max_len_default=2048),
    "BaichuanForCausalLM": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    "MptForCausalLM": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    "MPTForCausalLM": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    # Keys and values of every token: block sparsity saves no cache.
    "Phi3SmallForCausalLM": Family(attention.plain(own_head_dim=False), vocab_default=100352),
    # Qwen
    "Qwen2ForCausalLM": Family(_QWEN2),
    "Qwen2MoeForCausalLM": Family(_QWEN2),
    "Qwen2VLForConditionalGeneration": Family(_QWEN2, multimodal=True),
    "Qwen2_5_VLForConditionalGeneration": Family(_QWEN2, multimodal=True),
    "Qwen3ForCausalLM": Family(attention.qwen(head_dim=128)),
    "Qwen3MoeForCausalLM": Family(_QWEN_MOE),
    "Qwen3VLForConditionalGeneration": Family(attention.qwen(head_dim=128), multimodal=True),
    "Qwen3VLMoeForConditionalGeneration": Family(attention.qwen(head_dim=128), multimodal=True),
    "Qwen3NextForCausalLM": _GDN,
    "Qwen3_5ForCausalLM": _GDN,
    "Qwen3_5MoeForCausalLM": _GDN,
    "Qwen3_5ForConditionalGeneration": _GDN_VISION,
    "Qwen3_5MoeForConditionalGeneration": _GDN_VISION,
    # Gemma
    "GemmaForCausalLM": Family(attention.plain(head_dim=256)),
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": Family(_GEMMA3, max_len_default=131072, vocab_default=262208),
    "Gemma3ForConditionalGeneration": Family(
        _GEMMA3, max_len_default=131072, vocab_default=262208, multimodal=True
    ),
    "Gemma3nForConditionalGeneration": Family(
        attention.gemma3n, max_len_default=32768, vocab_default=262400, multimodal=True
    ),
    "Gemma3nForCausalLM": Family(attention.gemma3n, max_len_default=32768, vocab_default=262400),
    "Gemma4ForCausalLM": Family(attention.gemma4),
    "Gemma4ForConditionalGeneration": Family(attention.gemma4, multimodal=True),
    # GLM
    "ChatGLMModel": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    "ChatGLMForConditionalGeneration": Family(attention.plain(kv_heads="heads", own_head_dim=False)),
    "Glm4ForCausalLM": Family(attention.plain(head_dim=128)),
    "Glm4MoeForCausalLM": Family(_PLAIN),
    "Glm4MoeLiteForCausalLM": _MLA,
    "GlmMoeDsaForCausalLM": Family(latent.sparse_mla),
    # Others with keys and values per head
    "GptOssForCausalLM": Family(attention.gpt_oss),
    "Llama4ForCausalLM": Family(attention.llama4),
    "Llama4ForConditionalGeneration": Family(attention.llama4, multimodal=True),
    "MiniMaxM2ForCausalLM": Family(_PLAIN),
    "MiniMaxM3ForCausalLM": Family(attention.minimax_m3),
    "MiniMaxM3SparseForCausalLM": Family(attention.minimax_m3),
    "DeciLMForCausalLM": Family(attention.nemotron_nas),
    "WhisperForConditionalGeneration": Family(attention.whisper, encoder_decoder=True, multimodal=True),
    # Latent attention
    "DeepseekForCausalLM": Family(latent.deepseek_v1),
    "DeepseekV2ForCausalLM": _MLA,
    "DeepseekV3ForCausalLM": _MLA,
    "DeepseekV32ForCausalLM": Family(latent.sparse_mla),
    "DeepseekV4ForCausalLM": Family(latent.deepseek_v4),
    "KimiK25ForConditionalGeneration": Family(latent.mla, multimodal=True),
    "KimiVLForConditionalGeneration": Family(latent.mla, multimodal=True),
    # Recurrent state
    "JambaForCausalLM": Family(recurrent.jamba, hybrid=True),
    "NemotronHForCausalLM": Family(recurrent.nemotron_h, hybrid=True),
    "GraniteMoeHybridForCausalLM": Family(recurrent.granite_hybrid, hybrid=True),
    "FalconH1ForCausalLM": Family(recurrent.falcon_h1, hybrid=True),
    "KimiLinearForCausalLM": Family(recurrent.kimi_linear, hybrid=True),
    "KimiK3ForConditionalGeneration": Family(recurrent.kimi_linear, hybrid=True, multimodal=True),
    "Lfm2ForCausalLM": Family(recurrent.lfm2, hybrid=True),
    "MambaForCausalLM": Family(recurrent.mamba1, unlimited_length=True),
    "FalconMambaForCausalLM": Family(recurrent.mamba1, unlimited_length=True),
    "Mamba2ForCausalLM": Family(recurrent.mamba2, unlimited_length=True),
}
