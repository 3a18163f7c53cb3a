"""The recommended settings on the run's card, and what the memory model says of other settings there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.tune.identity import workload_from_record
from kvplan.tune.problem import settings_from_dict
from kvplan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.config.serving import ServingConfig
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.planner import Planner
    from kvplan.report.tune import TuneReport


def planner_of(header: Mapping[str, Any], target_concurrency: int) -> Planner:
    """The memory model for a journal's model, card, version and workload.

    Raises:
        InputError: the model or version has no exact rule here.
    """
    from kvplan.architecture.model_shape import model_shape
    from kvplan.catalog.engines import rules_for
    from kvplan.config.version import parse_vllm_version
    from kvplan.memory.hardware import GpuSpec
    from kvplan.memory.planner import Planner
    from kvplan.planning import lengths_of

    gpu = dict(header["gpu"])
    if gpu["compute_capability"] is not None:
        gpu["compute_capability"] = tuple(gpu["compute_capability"])
    workload = workload_from_record(header["context"]["workload"])
    return Planner(
        shape=model_shape(header["model_config"]),
        model_config=header["model_config"],
        stored=None,
        gpu=GpuSpec(**gpu),
        rules=rules_for(parse_vllm_version(header["context"]["vllm_version"])),
        lengths=lengths_of(workload, target_concurrency),
    )


@dataclass(frozen=True, slots=True)
class TunedCard:
    """The recommended settings on this card, and how much KV cache they have."""

    planner: Planner
    settings: ServingConfig
    now: Estimate
    kv_bytes: int
    basis: str

    @classmethod
    def of(cls, report: TuneReport) -> TunedCard:
        """The card of a run; where nothing started, as the memory model expects it.

        Raises:
            InputError: the model or version has no exact rule here.
        """
        problem, answer = report.problem, report.recommendation
        planner = planner_of(report.header, problem.target_concurrency)
        trial = next((t for t in report.trials if t.number == answer.trial), None)
        if answer.settings is not None and trial is not None and trial.survived and trial.kv_cache_bytes:
            settings = settings_from_dict(answer.settings)
            if problem.device == "cpu":
                settings = settings.with_flags(kv_cache_memory_bytes=trial.kv_cache_bytes)
            basis = (
                f"{format_gib(trial.kv_cache_bytes)} of KV cache, as trial {trial.number} had it, through "
                "vLLM's arithmetic of blocks; what other settings change in it comes from the memory model"
            )
            return cls(planner, settings, planner.estimate(settings), trial.kv_cache_bytes, basis)
        settings = problem.base_settings().with_flags(
            gpu_memory_utilization=report.header["assumed"]["probe_utilization"]
        )
        now = planner.estimate(settings)
        kv_bytes = max(0, now.budget.available_kv_bytes.mid)
        basis = f"nothing started: {format_gib(kv_bytes)} of KV cache as the memory model expects, unmeasured"
        return cls(planner, settings, now, kv_bytes, basis)

    def requests(self, flags: Mapping[str, Any], num_tokens: int) -> int | None:
        """Requests of that length that run at once with some flags changed; None where vLLM refuses."""
        try:
            after = self.planner.estimate(self.settings.with_flags(**flags))
        except InputError:
            return None
        change = after.budget.available_kv_bytes.mid - self.now.budget.available_kv_bytes.mid
        pool = after.plan.num_blocks(max(0, self.kv_bytes + change))
        return after.plan.concurrent_requests(pool, num_tokens)

    def refusal(self, flags: Mapping[str, Any]) -> str | None:
        """Why vLLM does not take the flags; None when it does."""
        try:
            self.planner.estimate(self.settings.with_flags(**flags))
        except InputError as error:
            return error.message
        return None
