"""LoRA buffers: what `--enable-lora` sets aside for adapters, whether any is loaded or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.errors import UnsupportedModelError
from kvplan.memory.interval import Interval

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.architecture.tensors.spec import WeightTensor

_FUSED_SLICES = {"qkv": 3, "gate_up": 2}
"""Modules stored as one tensor that have one A matrix a slice."""


def lora_bytes(
    tensors: Iterable[WeightTensor],
    *,
    max_loras: int,
    max_lora_rank: int,
    tensor_parallel_size: int,
    dtype_bytes: int,
) -> Interval:
    """Bytes of the stacked A and B matrices of every linear layer on one GPU.

    Each layer keeps max_loras x rank x (in + out) values, of its own share of in and out under tensor
    parallelism (without --fully-sharded-loras). The high end adds the embedding and the head, which vLLM
    wraps for models that list them.

    Example: one 4096 x 4096 layer, one adapter of rank 16 in bf16: 16 x 8,192 x 2 = 262,144 B.

    Raises:
        UnsupportedModelError: a mixture of experts, whose adapters are laid out by expert.

    Source: vLLM 0.32.0 lora/layers/base_linear.py::create_lora_weights, column_parallel_linear.py,
    logits_processor.py, vocab_parallel_embedding.py.
    """
    linear, ends = 0, 0
    for tensor in tensors:
        if tensor.role.startswith("expert"):
            raise UnsupportedModelError(
                "--enable-lora: adapters of a mixture of experts are not modelled", "leave it out"
            )
        if len(tensor.shape) != 2:
            continue
        out_features, in_features = tensor.local_shape(tensor_parallel_size)
        if tensor.role == "vocab":
            ends += out_features + in_features
        elif tensor.layers is not None and tensor.quantizable:
            slices = next((n for mark, n in _FUSED_SLICES.items() if mark in tensor.name), 1)
            linear += tensor.total * (slices * in_features + out_features)
    each = max_loras * max_lora_rank * dtype_bytes
    return Interval(each * linear, each * (linear + ends // 2), each * (linear + ends))
