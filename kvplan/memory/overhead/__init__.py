"""Memory of a launch beside weights and KV cache: a physical model of each term, fitted to real launches.

`predict_overhead` is a function of values. What it knows of vLLM (which tensors are alive at the peak of the
profile run, what each version charges) is in `activations`, `graphs`, `resident` and `eras`; what had to be
measured is in `coefficients`, written by `kvplan profiles calibrate --fit`.
"""

from __future__ import annotations

from kvplan.memory.overhead.facts import overhead_inputs
from kvplan.memory.overhead.inputs import EncoderShape, MoeShape, Overhead, OverheadInputs, combine
from kvplan.memory.overhead.model import predict_overhead

__all__ = [
    "EncoderShape",
    "MoeShape",
    "Overhead",
    "OverheadInputs",
    "combine",
    "overhead_inputs",
    "predict_overhead",
]
