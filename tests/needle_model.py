"""A Granite of two layers that finds needles: its weights are written down, not trained.

The positive control of the quality probe: a random model finds nothing, and no trained one comes without a
download.

- A token is a random unit vector in slot A of the residual stream; one more dimension is always 1.
- Layer 1: two heads whose queries and keys are constants. RoPE turns them by the distance of two tokens, so
  each attends to one distance alone and copies that token's vector: of the one before into slot B, of the one
  before that into C.
- Layer 2: (A, B) of this token asks for (B, C) of another: who stands behind the same two tokens? Its vector
  is copied into slot D. Without a match the head looks at the token itself, and D - A is 0.
- The answer: D - A against every token's vector, above half the logarithm of how often the token occurs.

So "The code of the cellar is" is continued as it was before, out of keys and values that are in the cache.
"""

from __future__ import annotations

import collections
import json
import math
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kvplan.quality.needles import HAYSTACKS, haystack
from kvplan.quality.passages import PASSAGES

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, HEAD, SLOT = 384, 256, 64
A, B, C, D, ONE = 0, SLOT, 2 * SLOT, 3 * SLOT, 4 * SLOT
"""Where the slots of the residual stream begin."""
THETA = 1e12
NEAR = 22
"""Pairs of RoPE whose frequency (1 down to 0.01) tells near tokens apart."""
STILL = 60
"""From this pair on RoPE does not turn within thousands of tokens: what is compared lies here."""
SHARP = 15.4
"""Of the constants of layer 1: the neighbour of the right token gets a score lower by 20."""
MATCH, SELF = 28.0, 5.6
"""Of layer 2: two equal tokens before add 98, the token itself has 43 to begin with."""
LOGIT = 14.0


def make_needle_model(folder: Path) -> Path:
    """Write the model to the folder, for vLLM; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    words, counts = _tokenizer()
    config: dict[str, Any] = {
        # Llama's layers with biases, and a family whose tokenizer is taken as it lies there.
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "attention_bias": True,
        "attention_multiplier": HEAD**-0.5,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "vocab_size": len(counts),
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": THETA,
        "max_position_embeddings": 16_384,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    words.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in _weights(counts).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tokenizer() -> tuple[Tokenizer, list[int]]:
    """Words with the space before them, punctuation apart; and how often each occurs in the passages."""
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Metaspace(prepend_scheme="never"),
            pre_tokenizers.Punctuation(),
        ]
    )
    hidden = [h for n in range(HAYSTACKS) if (h := haystack(n, 20_000)) is not None]
    texts = [*PASSAGES, *(text for h in hidden for text in (h.text, *h.questions))]
    # Words of one letter, of which the load client makes its prompts.
    letters = [f"\N{LOWER ONE EIGHTH BLOCK}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    known = {piece: index for index, piece in enumerate(("<unk>", "<eos>", *letters))}
    for text in texts:
        for piece, _ in pieces.pre_tokenize_str(text):
            known.setdefault(piece, len(known))
    words = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    words.pre_tokenizer = pieces
    words.decoder = decoders.Metaspace(prepend_scheme="never")
    seen = collections.Counter(token for passage in PASSAGES for token in words.encode(passage).ids)
    return words, [seen[token] for token in range(len(known))]


def _weights(counts: list[int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(len(counts), SLOT, generator=generator)
    codes /= codes.norm(dim=1, keepdim=True)
    embedding = torch.zeros(len(counts), HIDDEN)
    embedding[:, A : A + SLOT] = codes
    embedding[:, ONE] = 1.0
    head = torch.zeros(len(counts), HIDDEN)
    head[:, D : D + SLOT] = LOGIT * codes
    head[:, A : A + SLOT] = -LOGIT * codes
    head[:, ONE] = torch.log(torch.tensor(counts, dtype=torch.float32) + 0.3) / 2
    # RMSNorm divides by the root of the mean square: of 2, 4 and 5 unit parts in HIDDEN dimensions.
    tensors = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": torch.full((HIDDEN,), math.sqrt(5 / HIDDEN)),
    }
    for layer, (parts, attention) in enumerate(((2, _layer_1()), (4, _layer_2()))):
        name = f"model.layers.{layer}"
        tensors |= {f"{name}.self_attn.{part}": tensor for part, tensor in attention.items()}
        tensors |= {
            f"{name}.input_layernorm.weight": torch.full((HIDDEN,), math.sqrt(parts / HIDDEN)),
            f"{name}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{name}.mlp.gate_proj.weight": torch.zeros(64, HIDDEN),
            f"{name}.mlp.up_proj.weight": torch.zeros(64, HIDDEN),
            f"{name}.mlp.down_proj.weight": torch.zeros(HIDDEN, 64),
        }
    return tensors


def _nothing() -> dict[str, torch.Tensor]:
    kinds = ("q_proj", "k_proj", "v_proj")
    attention = {f"{kind}.weight": torch.zeros(2 * HEAD, HIDDEN) for kind in kinds}
    attention |= {f"{kind}.bias": torch.zeros(2 * HEAD) for kind in kinds}
    return attention | {"o_proj.weight": torch.zeros(HIDDEN, 2 * HEAD), "o_proj.bias": torch.zeros(HIDDEN)}


def _at_distance(attention: dict[str, torch.Tensor], head: int, distance: int, size: float) -> None:
    """Constants whose product, turned by RoPE, is highest for a token that far back."""
    for pair in range(NEAR):
        angle = distance * THETA ** (-2 * pair / HEAD)
        attention["q_proj.bias"][head * HEAD + pair] = size
        attention["k_proj.bias"][head * HEAD + pair] = size * math.cos(angle)
        attention["k_proj.bias"][head * HEAD + HEAD // 2 + pair] = size * math.sin(angle)


def _copy(attention: dict[str, torch.Tensor], head: int, slot: int) -> None:
    """The vector of the token that is looked at goes into the slot."""
    for i in range(SLOT):
        attention["v_proj.weight"][head * HEAD + i, A + i] = 1.0
        attention["o_proj.weight"][slot + i, head * HEAD + i] = 1.0


def _layer_1() -> dict[str, torch.Tensor]:
    attention = _nothing()
    for head, slot in enumerate((B, C)):
        _at_distance(attention, head, head + 1, SHARP)
        _copy(attention, head, slot)
    return attention


def _layer_2() -> dict[str, torch.Tensor]:
    attention = _nothing()
    _at_distance(attention, 0, 0, SELF)
    for i in range(SLOT):
        for half, (asked, offered) in enumerate(((A, B), (B, C))):
            place = half * HEAD // 2 + STILL + i
            attention["q_proj.weight"][place, asked + i] = MATCH
            attention["k_proj.weight"][place, offered + i] = MATCH
    _copy(attention, 0, D)
    return attention
