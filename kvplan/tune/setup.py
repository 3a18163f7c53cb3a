"""From what the user names to a problem that can be run, with everything that was assumed on the way."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.errors import InputError
from kvplan.planning import plan_for
from kvplan.tune.expectations import LOAD_S, START_S, expected_memory, out_of_reach
from kvplan.tune.grid import knob_settings, utilizations
from kvplan.tune.identity import installed_vllm, run_context
from kvplan.tune.problem import Budget, Problem, Space
from kvplan.tune.replay import rules_of
from kvplan.tune.request_defaults import with_demo, with_device, with_project
from kvplan.tune.request_load import lengths_of, target_of, workload_of
from kvplan.tune.request_secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.load.workload import Workload
    from kvplan.memory.planner import Planner
    from kvplan.planning import Planned
    from kvplan.tune.card import KvRules
    from kvplan.tune.expectations import Assumed
    from kvplan.tune.problem import Device
    from kvplan.tune.request import TuneRequest

TOLERANCE: Final = 0.02
MARGIN: Final = 0.02
MAX_LAUNCHES: Final = 14
MAX_MINUTES: Final = 60.0
_SEARCHED: Final = frozenset(
    {
        "model",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "kv_cache_dtype",
        "block_size",
        "max_num_seqs",
    }
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can begin."""

    problem: Problem
    workload: Workload
    rules: KvRules
    assumed: Assumed
    budget: Budget
    header: Mapping[str, Any]
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    planner: Planner | None = None
    """The memory model of the run; None for one that is gone on with."""


def prepare(request: TuneRequest, workload: Workload | None = None) -> Prepared:
    """Find everything that the request names.

    Args:
        request: what was given.
        workload: of a run that goes on; None finds the one that the request names.

    Raises:
        InputError: something is unknown, malformed or missing; the message names the flag.
        UnsupportedModelError: the model has no exact rule.
        MissingDependencyError: no vLLM is installed.
    """
    assumptions: list[str] = []
    version = installed_vllm()
    request = without_secrets(request, assumptions)
    request = (with_demo if request.demo else with_project)(request, assumptions)
    device, request = with_device(request, assumptions)
    planned = plan_for(dataclasses.replace(request.plan, vllm_version=version))
    gpu = planned.planner.gpu
    workload = workload or workload_of(request)
    target = target_of(request, workload)
    space = _space(request, planned, device)
    fixed = {k: v for k, v in request.plan.serving.given().items() if k not in _SEARCHED}
    problem = Problem(
        model=planned.source.path or planned.source.id,
        device=device,
        card_bytes=gpu.total_bytes,
        target_concurrency=target,
        lengths=lengths_of(workload),
        space=space,
        constraints=request.constraints,
        objective=request.objective or "target",
        strategy=request.strategy or "guided",
        fixed=fixed,
        tolerance=TOLERANCE if request.tolerance is None else request.tolerance,
        margin=MARGIN if request.margin is None else request.margin,
        prove_low_end=request.demo,
        quality_gate=request.quality_gate is not False,
        seed=request.seed or 0,
    )
    _check(problem, planned)
    budget = _budget(request, problem)
    context = run_context(planned.source, gpu, device, workload, version)
    assumed = expected_memory(planned, problem)
    header = {
        "kvplan_version": __version__,
        "problem": problem.as_dict(),
        "context": context,
        "budget": dataclasses.asdict(budget),
        "assumed": dataclasses.asdict(assumed),
        "gpu": dataclasses.asdict(gpu),
        "model_config": dict(planned.source.config),
        "assumptions": [*assumptions, *planned.assumptions],
    }
    rules = rules_of(header)
    return Prepared(
        problem=problem,
        workload=workload,
        rules=rules,
        assumed=assumed,
        budget=budget,
        header=header,
        assumptions=(*assumptions, *planned.assumptions),
        warnings=(*planned.warnings, *out_of_reach(problem, rules, assumed)),
        planner=planned.planner,
    )


def _space(request: TuneRequest, planned: Planned, device: Device) -> Space:
    """The values to try: what was given, else what the platform is known to support."""
    serving = request.plan.serving
    capability = planned.planner.gpu.compute_capability
    only_full_attention = all(
        type(cache).__name__ == "FullAttention" for layer in planned.planner.shape.layers for cache in layer
    )
    dtypes = request.kv_cache_dtypes or ((serving.kv_cache_dtype,) if serving.kv_cache_dtype else ())
    if not dtypes:
        has_fp8 = device == "cpu" or (capability is not None and capability >= (8, 9))
        dtypes = ("auto", "fp8") if has_fp8 else ("auto",)
    blocks = request.block_sizes or ((serving.block_size,) if serving.block_size else ())
    if not blocks and only_full_attention:
        blocks = (128, 32) if device == "cpu" else (16, 32)
    space = Space(
        kv_cache_dtype=dtypes,
        block_size=blocks,
        max_num_seqs=request.max_num_seqs,
        utilization=tuple(sorted(request.utilizations)),
        other=dict(request.knobs),
    )
    if request.strategy == "grid" or not request.utilizations:
        return space
    # The guided search looks for the boundary between two ends: one value is the upper one.
    lowest = min(request.utilizations) if len(request.utilizations) > 1 else space.lowest_utilization
    return dataclasses.replace(
        space, lowest_utilization=lowest, highest_utilization=max(request.utilizations)
    )


def _budget(request: TuneRequest, problem: Problem) -> Budget:
    """As given; a grid that was asked for may take what it takes."""
    launches, minutes = MAX_LAUNCHES, MAX_MINUTES
    if problem.strategy == "grid":
        launches = 2 + len(knob_settings(problem)) * len(utilizations(problem))
        minutes = max(minutes, launches * (START_S[problem.device] + LOAD_S) / 60)
    return Budget(request.max_launches or launches, request.max_minutes or minutes)


def _check(problem: Problem, planned: Planned) -> None:
    """Refuse what no launch could answer."""
    if problem.max_model_len < problem.lengths.longest_request:
        raise InputError(
            f"--max-model-len {problem.max_model_len} is shorter than the workload's longest request of "
            f"{problem.lengths.longest_request} tokens",
            "give a longer one, or none",
        )
    longest = planned.planner.shape.max_model_len
    if problem.max_model_len > longest:
        raise InputError(
            f"the workload's longest request ({problem.lengths.longest_request} tokens) is longer than the "
            f"model's {longest}",
            "shorten --input-len or --output-len",
        )
    for size in problem.space.block_size:
        if problem.device == "cpu" and size % 32:
            raise InputError(f"block size {size} does not start on CPU", "multiples of 32")
