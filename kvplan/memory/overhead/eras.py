"""How the profile run of one vLLM version differs from another's: sampler, runner, what is charged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from kvplan.memory.overhead.inputs import OverheadInputs

Sampler = Literal["sort", "fused", "v2_fp32", "v2"]

_V2_FROM: Final = {
    "Qwen3ForCausalLM": (0, 22, 0),
    "LlamaForCausalLM": (0, 23, 0),
    "MistralForCausalLM": (0, 23, 0),
    "DeepseekV2ForCausalLM": (0, 24, 0),
    "Qwen2MoeForCausalLM": (0, 24, 0),
    "GraniteMoeForCausalLM": (0, 24, 0),
}
"""Architectures that got model runner V2 before the others."""


class Era(NamedTuple):
    """The accounting and profiling rules that matter to the overhead of one launch."""

    sampler: Sampler
    sampler_may_sort: bool
    """Whether it depends on FlashInfer being installed that the sampler does not sort."""
    triton_top_k: bool
    """The fused top-k/top-p is Triton's, with a scratch row per multiprocessor."""
    v2_runner: bool
    compiled: bool
    """torch.compile runs before the profile (V1, not eager)."""
    compile_shows: bool
    """A compile from a cold cache is inside the profile, with arguments of real sizes (seen from 0.19)."""
    quantises_activations: bool
    expert_workspace_stays: bool
    """The experts' workspaces live on beside the sampler's peak (workspace manager)."""
    graphs_captured: bool
    graphs_charged: bool
    peers_charged: bool
    """Communicators come up after the first snapshot, all of them in the budget (to 0.10)."""
    context_charged: bool
    residents_charged: bool
    """Buffers that the runner makes before it loads weights are in the budget (from 0.27)."""


def era_of(facts: OverheadInputs) -> Era:
    """The rules for one launch.

    Source: vLLM 0.6.6 to 0.32.0, v1/worker/gpu_worker.py::determine_available_memory,
    v1/sample/ops/topk_topp_sampler.py, v1/worker/gpu/sample/sampler.py, config/vllm.py::use_v2_model_runner.
    """
    version = facts.vllm_version
    v2 = uses_v2_runner(facts)
    compiled = facts.engine == "V1" and not facts.enforce_eager and facts.platform != "cpu"
    captured = not facts.enforce_eager and facts.platform != "cpu"
    on_cuda = facts.platform == "cuda"
    # ROCm joined the graph estimate later than CUDA.
    estimated = version >= ((0, 20, 0) if on_cuda else (0, 26, 0)) and not (v2 and version < (0, 29, 0))
    sampler = _sampler(facts, v2=v2)
    quantization = facts.quantization or ""
    return Era(
        sampler=sampler,
        sampler_may_sort=sampler == "fused" and version < (0, 11, 0),
        triton_top_k=sampler == "fused" and (0, 17, 0) <= version < (0, 22, 0),
        v2_runner=v2,
        compiled=compiled,
        compile_shows=compiled and version >= (0, 17, 0) and on_cuda,
        quantises_activations=quantization in {"fp8", "compressed-tensors", "fbgemm_fp8", "modelopt"},
        expert_workspace_stays=version >= (0, 17, 0),
        graphs_captured=captured,
        graphs_charged=captured and estimated,
        peers_charged=version < (0, 11, 0),
        context_charged=(0, 8, 0) <= version < (0, 9, 1),
        residents_charged=version >= (0, 27, 0),
    )


def uses_v2_runner(facts: OverheadInputs) -> bool:
    """Whether model runner V2 serves this model by default.

    Source: vLLM 0.22.1, 0.24.0, 0.28.0, 0.32.0 config/vllm.py::use_v2_model_runner.
    """
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
        # The Triton kernel takes 8 rows and more, below that PyTorch sorts; FlashInfer (0.22+) takes any.
        return "sort" if facts.max_num_seqs < 8 and version < (0, 22, 0) else "fused"
    # FlashInfer, where it is installed (it is in the images of 0.9.2 to 0.10), else a sort. From 0.11 on it
    # had to be asked for.
    return "fused" if (0, 9, 2) <= version < (0, 11, 0) else "sort"
