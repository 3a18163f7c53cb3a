"""A tiny Qwen2 on a CPU card of 2 GiB: what the tests of the tuner's search search over."""

from __future__ import annotations

from typing import Final

from kvplan.memory.hardware import cpu_spec
from kvplan.tune.problem import Lengths
from kvplan.tune.rules import kv_rules
from kvplan.units import GIB

CARD: Final = 2 * GIB
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
}
"""4 layers x 2 x 2 KV heads x 64 x 2 bytes: 2,048 bytes of KV cache a token."""
RULES: Final = kv_rules(CONFIG, cpu_spec(CARD), (0, 32, 0))
LENGTHS: Final = Lengths(mean_input=256, mean_output=128, longest_input=896, longest_output=128)
