"""Coefficients as fitted: written by `kvplan profiles calibrate --fit`."""

from __future__ import annotations

from typing import Final

from kvplan.memory.overhead.coefficients import Coefficients

FITTED: Final = Coefficients(
    sort_bytes_per_logit=36.0,
    fused_bytes_per_logit=12.0,
    compiled_hidden_copies=4.0,
    eager_hidden_copies=3.0,
    encoder_hidden_copies=4.0,
    recurrent_hidden_copies=12.0,
    non_torch_gib=0.05,
    non_torch_recent_gib=0.13,
    non_torch_hopper_gib=0.1,
    peers_gib=0.15,
    peers_hopper_gib=0.42,
    peers_nccl_hopper_gib=1.3,
    peers_fused_gib=1.85,
    context_gib=0.45,
    unified_gib=2.2,
    graph_pool_gib=0.1,
    graph_hopper_gib=0.2,
    graph_kib_per_layer=140.0,
    graph_rows_per_layer=1.0,
    graph_experts_factor=1.5,
    cpu_worker_gib=0.6,
    cpu_beside_gib=0.7,
    spread_scale=1.0,
)
