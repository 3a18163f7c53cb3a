"""The measured part of the model: a handful of coefficients, written by the fit, read by the terms."""

from __future__ import annotations

from kvplan.record import FrozenRecord


class Coefficients(FrozenRecord):
    """What had to be fitted. GiB where a name ends so; counts of tensors or bytes otherwise."""

    sort_bytes_per_logit: float
    """Sampler that sorts (to 0.16): bytes alive per logit, beside the logits in the model's dtype."""
    fused_bytes_per_logit: float
    """Sampler with a fused top-k/top-p kernel (from 0.17): the same."""
    compiled_hidden_copies: float
    """Hidden-size rows alive per token beside the feed-forward's three, torch.compile."""
    eager_hidden_copies: float
    """The same without torch.compile."""
    encoder_hidden_copies: float
    """Rows of the vision tower's hidden size alive per patch."""
    recurrent_hidden_copies: float
    """Rows of hidden size that a linear-attention layer keeps per token beside the others."""
    non_torch_gib: float
    """Kernels, cuBLAS handles and lazily loaded modules, one GPU, to 0.17."""
    non_torch_recent_gib: float
    """The same from 0.18."""
    non_torch_hopper_gib: float
    """What Hopper and newer data-centre cards add (their attention and GEMM kernels are larger)."""
    peers_gib: float
    """Communicator buffers charged to each GPU under tensor parallelism, no fused all-reduce."""
    peers_hopper_gib: float
    """The same on Hopper and newer data-centre cards, 0.11 to 0.17."""
    peers_nccl_hopper_gib: float
    """The same to 0.10, where NCCL's own buffers are charged."""
    peers_fused_gib: float
    """The same with the fused all-reduce and symmetric-memory buffers of Hopper and newer, from 0.18."""
    context_gib: float
    """The CUDA context (outside the budget except in 0.8.0 to 0.9.0, which charge it)."""
    peers_outside_gib: float
    """What more than one GPU adds before the first snapshot, from 0.11: process groups, symmetric memory."""
    own_kernels_rows: float
    """Rows of the expert width per routed token that gpt-oss's own kernels leave reserved, unprofiled."""
    unified_gib: float
    """What a unified-memory machine adds: the process's own host memory counts as the GPU's."""
    graph_pool_gib: float
    """Start of the graph memory: pools and workspaces of the capture."""
    graph_hopper_gib: float
    """What Hopper and newer data-centre cards add to it."""
    graph_kib_per_layer: float
    """Per layer and captured size, KiB."""
    graph_rows_per_layer: float
    """Hidden-size rows of the largest captured batch that stay, per layer."""
    graph_experts_factor: float
    """Layers with routed experts count this many times."""
    cpu_worker_gib: float
    """Resident memory of vLLM's CPU worker before weights and KV cache."""
    cpu_compiled_gib: float
    """What torch.compile adds to it."""
    cpu_beside_gib: float
    """Of the processes beside it: API server, engine core."""
    spread_scale: float
    """Scale of all spreads that makes 80 % intervals hold in leave-one-source-out."""
