"""Coefficients as fitted: written by `kvplan profiles calibrate --fit`."""

from __future__ import annotations

from typing import Final

from kvplan.memory.overhead.coefficients import Coefficients

FITTED: Final = Coefficients(
    sort_bytes_per_logit=36.0,
    fused_bytes_per_logit=12.0,
    compiled_hidden_copies=3.985,
    eager_hidden_copies=3.0,
    encoder_hidden_copies=4.686,
    recurrent_hidden_copies=9.734,
    non_torch_gib=0.0471,
    non_torch_recent_gib=0.1272,
    non_torch_hopper_gib=0.1133,
    peers_gib=0.1372,
    peers_hopper_gib=0.3912,
    peers_nccl_hopper_gib=1.219,
    peers_fused_gib=1.871,
    context_gib=0.4863,
    peers_outside_gib=1.0,
    own_kernels_rows=10.0,
    unified_gib=2.088,
    graph_pool_gib=0.1613,
    graph_hopper_gib=0.1697,
    graph_kib_per_layer=100.8,
    graph_rows_per_layer=0.8942,
    graph_experts_factor=1.777,
    cpu_worker_gib=0.6,
    cpu_beside_gib=0.7,
    spread_scale=3.99,
)
