"""How the profile run of a vLLM version differs from another's: sampler, runner, what is charged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from kvplan.memory.overhead.inputs import OverheadInputs

Sampler = Literal["sort", "sort_or_flashinfer", "fused", "v2_fp32", "v2"]

_V2_FROM: Final = {
    "Qwen3ForCausalLM": (0, 22, 0),
    "LlamaForCausalLM": (0, 23, 0),
    "MistralForCausalLM": (0, 23, 0),
    "DeepseekV2ForCausalLM": (0, 24, 0),
    "Qwen2MoeForCausalLM": (0, 24, 0),
    "GraniteMoeForCausalLM": (0, 24, 0),
}


@dataclass(frozen=True, slots=True)
class Era:
    """The accounting and profiling rules that matter to the overhead of one launch."""

    sampler: Sampler
    v2_runner: bool
    compiled: bool
    """torch.compile runs before the profile (V1, not eager)."""
    graphs_charged: bool
    graphs_captured: bool
    nccl_charged: bool
    context_charged: bool
    resident_charged: bool
    """Buffers that the runner allocates before the weights count (total consumed, 0.27+)."""


def era_of(facts: OverheadInputs) -> Era:
    """The rules for one launch.

    Source: vLLM 0.6.6 to 0.32.0, v1/worker/gpu_worker.py::determine_available_memory,
    v1/sample/ops/topk_topp_sampler.py, v1/worker/gpu/sample/sampler.py, config/vllm.py::use_v2_model_runner.
    """
    version = facts.vllm_version
    v2 = _uses_v2_runner(facts)
    graphs = not facts.enforce_eager and facts.platform != "cpu"
    estimated = version >= (0, 20, 0) and not (v2 and version < (0, 29, 0))
    return Era(
        sampler=_sampler(facts, v2=v2),
        v2_runner=v2,
        compiled=facts.engine == "V1" and not facts.enforce_eager,
        graphs_charged=graphs and estimated,
        graphs_captured=graphs,
        nccl_charged=version < (0, 11, 0),
        context_charged=(0, 8, 0) <= version < (0, 9, 1),
        resident_charged=version >= (0, 27, 0),
    )


def _uses_v2_runner(facts: OverheadInputs) -> bool:
    version = facts.vllm_version
    if version >= (0, 29, 0):
        return True
    first = _V2_FROM.get(facts.architecture)
    if first is not None and version >= first:
        return version >= (0, 24, 0) or facts.quantization is None
    return version >= (0, 25, 0) and facts.moe is None and not facts.is_hybrid


def _sampler(facts: OverheadInputs, *, v2: bool) -> Sampler:
    version = facts.vllm_version
    if v2:
        return "v2_fp32" if version < (0, 26, 0) else "v2"
    if version >= (0, 17, 0):
        # Fewer than 8 rows take the sorting path of the PyTorch fallback; FlashInfer (0.22+) takes any.
        return "sort" if facts.max_num_seqs < 8 and version < (0, 22, 0) else "fused"
    if (0, 9, 1) <= version < (0, 12, 0):
        return "sort_or_flashinfer"
    return "sort"
