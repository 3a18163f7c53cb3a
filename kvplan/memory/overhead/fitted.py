"""Coefficients as fitted: written by `kvplan profiles calibrate --fit`."""

from __future__ import annotations

from typing import Final

from kvplan.memory.overhead.coefficients import Coefficients

FITTED: Final = Coefficients(
    sort_bytes_per_logit=36.01,
    fused_bytes_per_logit=12.0,
    compiled_hidden_copies=3.982,
    eager_hidden_copies=3.0,
    encoder_hidden_copies=4.39,
    recurrent_hidden_copies=8.18,
    non_torch_gib=0.04246,
    non_torch_recent_gib=0.1399,
    non_torch_hopper_gib=0.1094,
    peers_gib=0.1002,
    peers_hopper_gib=0.3996,
    peers_nccl_hopper_gib=1.228,
    peers_fused_gib=1.857,
    context_gib=0.4144,
    peers_outside_gib=1.127,
    own_kernels_rows=10.0,
    unified_gib=2.471,
    graph_pool_gib=0.1501,
    graph_hopper_gib=0.1307,
    graph_kib_per_layer=131.2,
    graph_rows_per_layer=0.8051,
    graph_experts_factor=1.658,
    cpu_worker_gib=0.68,
    cpu_compiled_gib=0.08,
    cpu_beside_gib=0.67,
    spread_scale=1.9,
)
