"""A run that was begun before: as its journal has it, and as the flags beside `--resume` would have it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kvplan.config.serving import ServingConfig
from kvplan.planning import PlanRequest
from kvplan.tune.expectations import Assumed
from kvplan.tune.identity import workload_from_record
from kvplan.tune.problem import Budget, Constraints, Problem
from kvplan.tune.replay import rules_of
from kvplan.tune.request import TuneRequest
from kvplan.tune.setup import Prepared, prepare
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping


def prepare_again(header: Mapping[str, Any], max_launches: int | None, max_minutes: float | None) -> Prepared:
    """The run of a journal, to be gone on with; only its budget may be another."""
    problem = Problem.from_dict(header["problem"])
    budget = header["budget"]
    return Prepared(
        problem=problem,
        workload=workload_from_record(header["context"]["workload"]),
        rules=rules_of(header),
        assumed=Assumed(**header["assumed"]),
        budget=Budget(max_launches or budget["max_launches"], max_minutes or budget["max_minutes"]),
        header=header,
        assumptions=tuple(header["assumptions"]),
    )


def as_begun(request: TuneRequest, header: Mapping[str, Any]) -> Prepared | None:
    """The run that these flags would be, everything that they leave open being as in a run's journal.

    None when the flags say nothing (but perhaps a budget): the run is then what its journal says.

    Raises:
        InputError: as for `prepare`.
    """
    if dataclasses.replace(request, max_launches=None, max_minutes=None) == TuneRequest(PlanRequest()):
        return None
    then, plan = Problem.from_dict(header["problem"]), request.plan
    names_lengths = plan.workload is not None or plan.input_len is not None or plan.output_len is not None
    filled = dataclasses.replace(
        plan,
        model=plan.model or then.model,
        device=plan.device or then.device,
        gpu_memory_gib=plan.gpu_memory_gib or (then.card_bytes / GIB if then.device == "cpu" else None),
        target_concurrency=plan.target_concurrency or then.target_concurrency,
        serving=ServingConfig().with_flags(**{**then.fixed, **plan.serving.given()}),
    )
    limits = {
        f.name: now
        if (now := getattr(request.constraints, f.name)) is not None
        else getattr(then.constraints, f.name)
        for f in dataclasses.fields(Constraints)
    }
    return prepare(
        dataclasses.replace(
            request,
            plan=filled,
            demo=request.demo or then.prove_low_end,
            constraints=Constraints(**limits),
            kv_cache_dtypes=request.kv_cache_dtypes or then.space.kv_cache_dtype,
            block_sizes=request.block_sizes or then.space.block_size,
            max_num_seqs=request.max_num_seqs or then.space.max_num_seqs,
            utilizations=request.utilizations or then.space.utilization,
            knobs=request.knobs or then.space.other,
            objective=request.objective or then.objective,
            strategy=request.strategy or then.strategy,
            tolerance=then.tolerance if request.tolerance is None else request.tolerance,
            margin=then.margin if request.margin is None else request.margin,
            quality_gate=then.quality_gate if request.quality_gate is None else request.quality_gate,
            seed=then.seed if request.seed is None else request.seed,
        ),
        None if names_lengths else workload_from_record(header["context"]["workload"]),
    )
