"""Coefficients as fitted: written by `kvplan profiles calibrate --fit`."""

from __future__ import annotations

from typing import Final

from kvplan.memory.overhead.coefficients import Coefficients

FITTED: Final = Coefficients(
    sort_bytes_per_logit=36.01,
    fused_bytes_per_logit=12.0,
    compiled_hidden_copies=3.978,
    eager_hidden_copies=3.0,
    encoder_hidden_copies=4.394,
    recurrent_hidden_copies=8.184,
    non_torch_gib=0.04244,
    non_torch_recent_gib=0.1399,
    non_torch_hopper_gib=0.1095,
    peers_gib=0.1002,
    peers_hopper_gib=0.3996,
    peers_nccl_hopper_gib=1.228,
    peers_fused_gib=1.862,
    context_gib=0.4145,
    peers_outside_gib=1.129,
    own_kernels_rows=10.0,
    unified_gib=2.471,
    graph_pool_gib=0.1505,
    graph_hopper_gib=0.1238,
    graph_kib_per_layer=129.7,
    graph_rows_per_layer=0.7992,
    graph_experts_factor=1.673,
    cpu_worker_gib=0.68,
    cpu_compiled_gib=0.08,
    cpu_beside_gib=0.67,
    spread_scale=2.16,
)
