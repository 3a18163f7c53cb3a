"""Which vLLM releases serve an architecture, as the registries of the releases read have it."""

from __future__ import annotations

from typing import Final

Version = tuple[int, int, int]

_ARRIVALS: Final[dict[Version, tuple[str, ...]]] = {
    (0, 8, 5): ("NemotronHForCausalLM", "GraniteMoeHybridForCausalLM", "FalconH1ForCausalLM"),
    (0, 9, 1): ("Gemma3nForConditionalGeneration",),
    (0, 9, 2): ("Gemma3nForCausalLM", "Glm4MoeForCausalLM", "GptOssForCausalLM", "Llama4ForCausalLM"),
    (0, 10, 1): ("Qwen3NextForCausalLM", "Lfm2ForCausalLM"),
    (0, 10, 2): (
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "MiniMaxM2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "KimiLinearForCausalLM",
    ),
    (0, 14, 1): ("Glm4MoeLiteForCausalLM", "KimiK25ForConditionalGeneration"),
    (0, 15, 1): ("GlmMoeDsaForCausalLM",),
    (0, 16, 0): ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
    (0, 18, 1): ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    (0, 19, 1): ("DeepseekV4ForCausalLM",),
    (0, 22, 1): ("MiniMaxM3SparseForCausalLM",),
    (0, 26, 0): ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "KimiK3ForConditionalGeneration"),
}

ABSENT_UP_TO: Final[dict[str, Version]] = {
    name: version for version, names in _ARRIVALS.items() for name in names
}
"""The newest release read whose registry lacks the name. A name that is not here is in 0.8.5 or, for want of
an own class, was served by vLLM's Transformers fallback before it got one.

Source: vLLM model_executor/models/registry.py of 0.8.5, 0.9.1, 0.9.2, 0.10.1 to 0.20.0, 0.21.0, 0.22.1 and
0.24.0 to 0.32.0, the newest patch release of each.
"""

LAST_VERSION: Final[dict[str, Version]] = {
    "BaichuanForCausalLM": (0, 23, 0),
    "MptForCausalLM": (0, 28, 0),
    "MPTForCausalLM": (0, 28, 0),
    "Phi3SmallForCausalLM": (0, 9, 2),
}
"""The last release that serves the name. Source: vLLM registry.py::_PREVIOUSLY_SUPPORTED_MODELS, 0.32.0."""
