"""A small model with random weights, so that everything runs without a download."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from kvplan.errors import MissingDependencyError

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_VERSION: Final = 1


def make_demo_model(
    folder: Path | None = None,
    *,
    num_hidden_layers: int = 4,
    hidden_size: int = 256,
    num_attention_heads: int = 4,
    num_key_value_heads: int = 2,
    head_dim: int = 64,
    max_position_embeddings: int = 32_768,
    seed: int = 0,
) -> Path:
    """A Qwen2-style model that vLLM serves: byte-level tokenizer, chat template, seeded bf16 weights.

    Args:
        folder: Where it is kept; None is kvplan's cache. A model of the same parameters is not made twice.
        num_hidden_layers: Layers.
        hidden_size: Width.
        num_attention_heads: Query heads.
        num_key_value_heads: KV heads.
        head_dim: Elements of a head.
        max_position_embeddings: Longest context.
        seed: Of the weights.

    Returns:
        The model's own folder.

    Raises:
        MissingDependencyError: no torch or tokenizers, which come with vLLM.
    """
    config = _config(num_hidden_layers, hidden_size, num_attention_heads, num_key_value_heads, head_dim)
    config["max_position_embeddings"] = max_position_embeddings
    content = json.dumps([_VERSION, seed, config], sort_keys=True)
    name = f"demo-qwen2-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    target = (folder or default_folder()) / name
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Made beside its place and moved there whole: an interrupted run leaves no half model behind.
    unfinished = Path(tempfile.mkdtemp(dir=target.parent, prefix=".demo-"))
    try:
        _write_weights(unfinished, config, seed)
        _write_tokenizer(unfinished, max_position_embeddings)
        (unfinished / "config.json").write_text(json.dumps(config, indent=2))
        unfinished.chmod(0o755)
        unfinished.rename(target)
    except OSError:
        if not (target / "config.json").is_file():  # else another process was faster, with the same bytes
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/kvplan/models`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvplan" / "models"


def _config(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 256 + len(_SPECIAL),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "bos_token_id": 256,
        "eos_token_id": 258,
        "torch_dtype": "bfloat16",
    }


def _write_weights(folder: Path, config: dict[str, Any], seed: int) -> None:
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingDependencyError(
            "the demo model needs torch and safetensors", "pip install 'kvplan-tuner[cpu]'"
        ) from error
    generator = torch.Generator().manual_seed(seed)
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int) -> Any:
        return (torch.randn(rows, columns, generator=generator) / columns**0.5).to(torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for name, rows in (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)):
            tensors[f"{layer}.self_attn.{name}.weight"] = matrix(rows, hidden)
            tensors[f"{layer}.self_attn.{name}.bias"] = torch.zeros(rows, dtype=torch.bfloat16)
        tensors[f"{layer}.self_attn.o_proj.weight"] = matrix(hidden, q_size)
        tensors[f"{layer}.mlp.gate_proj.weight"] = matrix(config["intermediate_size"], hidden)
        tensors[f"{layer}.mlp.up_proj.weight"] = matrix(config["intermediate_size"], hidden)
        tensors[f"{layer}.mlp.down_proj.weight"] = matrix(hidden, config["intermediate_size"])
        tensors[f"{layer}.input_layernorm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
        tensors[f"{layer}.post_attention_layernorm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(folder: Path, max_positions: int) -> None:
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise MissingDependencyError(
            "the demo model needs tokenizers", "pip install 'kvplan-tuner[cpu]'"
        ) from error
    # One token a byte: every text has a length that can be reckoned, and any token sequence can be decoded.
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    generation = {"bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 256}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
