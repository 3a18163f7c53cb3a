"""A tiny Qwen2: enough of a model for the arithmetic, and for the fakes in vLLM's place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: Final = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
"""4 layers x 2 x 2 KV heads x 64 x 2 bytes: 2,048 bytes of KV cache a token."""


def make_model(folder: Path, **changes: Any) -> Path:
    """The folder of a model with this configuration, changed so; made anew if it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder
