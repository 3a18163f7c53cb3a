"""Tuning problems with a hidden card: memory off by what real launches were off, a speed nobody told kvplan.

Memory: what the memory model expects of the drawn model on the drawn card, moved by the residual of a launch
drawn from overhead_residuals.json (a source first, then one of its launches); what vLLM does not count
likewise. How memory changes with a knob is the memory model's; the search is told none of it.

Speed: a knee over the number of sequences, in half of the problems a decline after it, a factor for each
value of each knob, and for each pair of values. Every measured repeat has 5 % noise; `launch_share` of its
variance may belong to the launch, which no repeat inside it averages away.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.planning import PlanRequest, plan_for
from kvplan.tune.assumed import AssumedServer
from kvplan.tune.problem import Lengths, Problem, Space
from kvplan.tune.rules import kv_rules
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.config.serving import ServingConfig
    from kvplan.memory.planner import Planner
    from kvplan.tune.trial import LoadLevel, Trial, TrialSpec

RESIDUALS: Final = Path(__file__).parents[1] / "data" / "overhead_residuals.json"
VLLM: Final = "0.32.0"
CARDS: Final = ("4090", "l40s", "a100-80gb-sxm", "h100-sxm")
MODELS: Final = ("qwen2-7b", "llama-3.1-8b")
NOISE: Final = 0.05
KNOBS: Final[Mapping[str, tuple[int, ...]]] = {
    "block_size": (16, 32, 64),
    "max_num_batched_tokens": (2048, 4096, 8192),
}
SEQS: Final = (32, 64, 128, 256)
UTILIZATIONS: Final = tuple(round(0.50 + 0.01 * n, 2) for n in range(50))
CANDIDATES: Final = len(UTILIZATIONS) * len(SEQS) * math.prod(len(values) for values in KNOBS.values())


@dataclass(slots=True)
class SimulatedServer(AssumedServer):
    """Memory and speed of one drawn problem."""

    planner: Planner = dataclasses.field(kw_only=True)
    residual_bytes: int = dataclasses.field(kw_only=True)
    """Of the memory before the KV cache: what is there beyond the memory model's answer."""
    rng: random.Random = dataclasses.field(kw_only=True)
    knee: float = dataclasses.field(kw_only=True)
    decline: float = dataclasses.field(kw_only=True)
    """Share of the speed that each doubling of the sequences beyond twice the knee costs."""
    peak: float = dataclasses.field(kw_only=True)
    factors: Mapping[tuple[str, Any], float] = dataclasses.field(kw_only=True)
    launch_share: float = 0.0
    """Of the noise's variance: what all repeats of one launch share."""
    _launch_noise: float = 0.0
    _before_kv: dict[tuple[Any, ...], int] = dataclasses.field(default_factory=dict)

    def run_trial(self, spec: TrialSpec) -> Trial:
        """With the memory of these settings, and this launch's own luck."""
        self.non_kv_bytes = self.before_kv_bytes(spec.settings)
        self._launch_noise = self.rng.gauss(0, NOISE * math.sqrt(self.launch_share))
        return AssumedServer.run_trial(self, spec)

    def before_kv_bytes(self, settings: ServingConfig) -> int:
        """What vLLM counts before the KV cache."""
        given = settings.given()
        key = tuple(given.get(name) for name in (*KNOBS, "max_num_seqs"))
        if key not in self._before_kv:
            self._before_kv[key] = expected_before_kv(self.planner, settings) + self.residual_bytes
        return self._before_kv[key]

    def true_speed(self, settings: ServingConfig, users: int) -> float:
        """Noiseless output tokens per second."""
        running = min(users, settings.max_num_seqs or users)
        given = settings.given()
        factor = math.prod(self.factors.get((name, given.get(name)), 1.0) for name in KNOBS)
        pair = tuple(given.get(name) for name in KNOBS)
        beyond = max(0.0, math.log2(running / (2 * self.knee)))
        curve = (1 - math.exp(-running / self.knee)) * (1 - self.decline * beyond)
        return self.peak * curve * factor * self.factors[("pair", pair)]

    def speed(self, spec: TrialSpec, level: LoadLevel, repeat: int) -> float:
        """With measurement noise."""
        del repeat
        own = self.rng.gauss(0, NOISE * math.sqrt(1 - self.launch_share))
        return self.true_speed(spec.settings, level.concurrency) * math.exp(own + self._launch_noise)


def expected_before_kv(planner: Planner, settings: ServingConfig) -> int:
    """The memory model's answer for what vLLM counts before the KV cache."""
    budget = planner.estimate(settings.with_flags(gpu_memory_utilization=0.9)).budget
    kv_bytes = next(line.bytes.mid for line in budget.lines if line.name == "kv_cache")
    return budget.requested_bytes - kv_bytes


def drawn_residual(rng: random.Random, records: list[dict[str, Any]], key: str) -> float:
    """A source, then one of its launches: each source counts once."""
    source = rng.choice(sorted({record["source"] for record in records}))
    return float(rng.choice([record[key] for record in records if record["source"] == source]))


def problem_of(seed: int, launch_share: float = 0.0) -> tuple[Problem, SimulatedServer, float]:
    """One drawn problem, its hidden server, and the utilisation that kvplan would start its probe at."""
    rng = random.Random(seed)
    residuals = json.loads(RESIDUALS.read_text(encoding="utf-8"))
    while True:
        model, card = rng.choice(MODELS), rng.choice(CARDS)
        planned = plan_for(
            PlanRequest(model=model, gpu=card, vllm_version=VLLM, offline=True, local_calibration=False)
        )
        planner = planned.planner
        problem = _problem(model, planner.gpu.total_bytes)
        answer = planner.estimate(problem.base_settings().with_flags(gpu_memory_utilization=0.9))
        outside = answer.overhead.outside_budget.mid + answer.overhead.cuda_graphs_outside.mid
        percent = drawn_residual(rng, residuals["kv_cache"], "percent_of_card")
        more = drawn_residual(rng, residuals["outside_budget"], "gib")
        server = SimulatedServer(
            problem,
            kv_rules(planned.source.config, planner.gpu, planner.rules.version),
            non_kv_bytes=0,
            unbudgeted_bytes=max(0, round(outside + more * GIB)),
            planner=planner,
            residual_bytes=round(percent / 100 * problem.card_bytes),
            rng=random.Random(seed + 1_000_000),
            knee=rng.uniform(20, 120),
            decline=rng.choice((0.0, rng.uniform(0.0, 0.08))),
            peak=rng.uniform(1500, 6000),
            factors=_factors(rng),
            launch_share=launch_share,
        )
        outside_high = answer.overhead.outside_budget.high + answer.overhead.cuda_graphs_outside.high
        cautious = (problem.card_bytes - outside_high) / problem.card_bytes
        if best_speed(problem, server) > 0:
            return problem, server, round(max(0.5, min(0.9, cautious - 0.02)), 3)


def _problem(model: str, card_bytes: int) -> Problem:
    return Problem(
        model=model,
        device="cuda",
        card_bytes=card_bytes,
        target_concurrency=SEQS[0],
        lengths=Lengths(mean_input=500, mean_output=200, longest_input=800, longest_output=224),
        space=Space(
            block_size=KNOBS["block_size"],
            max_num_seqs=SEQS,
            other={"max_num_batched_tokens": KNOBS["max_num_batched_tokens"]},
            utilization_step=0.01,
        ),
        objective="throughput",
        tolerance=0.01,
        margin=0.02,
    )


def _factors(rng: random.Random) -> dict[tuple[str, Any], float]:
    factors: dict[tuple[str, Any], float] = {}
    for name, spread in (("block_size", 0.03), ("max_num_batched_tokens", 0.08)):
        factors |= {(name, value): math.exp(rng.gauss(0, spread)) for value in KNOBS[name]}
    for pair in itertools.product(*KNOBS.values()):
        factors["pair", pair] = math.exp(rng.gauss(0, 0.01))
    return factors


def candidate(problem: Problem, utilization: float, seqs: int, values: tuple[int, ...]) -> ServingConfig:
    """The settings of one point of the space."""
    return problem.base_settings().with_flags(
        gpu_memory_utilization=utilization, max_num_seqs=seqs, **dict(zip(KNOBS, values, strict=True))
    )


def is_safe(problem: Problem, server: SimulatedServer, settings: ServingConfig) -> bool:
    """It survives with the margin, and its KV cache holds max_num_seqs requests of the longest length."""
    utilization = settings.gpu_memory_utilization or 0.0
    with_margin = math.ceil(problem.card_bytes * (utilization + problem.margin))
    if with_margin + server.unbudgeted_bytes > problem.card_bytes:
        return False
    plan = server.kv_rules(settings)
    kv_bytes = math.ceil(problem.card_bytes * utilization) - server.before_kv_bytes(settings)
    if kv_bytes <= 0:
        return False
    holds = plan.concurrent_requests(plan.num_blocks(kv_bytes), problem.lengths.longest_request)
    return holds >= (settings.max_num_seqs or 0)


def best_speed(problem: Problem, server: SimulatedServer) -> float:
    """The best noiseless throughput of all safe candidates."""
    # More memory never hurts here, so of each setting the highest safe utilisation says all.
    highest = max(
        (
            u
            for u in UTILIZATIONS
            if math.ceil(problem.card_bytes * (u + problem.margin)) + server.unbudgeted_bytes
            <= problem.card_bytes
        ),
        default=0.0,
    )
    every = (
        candidate(problem, highest, seqs, values)
        for seqs in SEQS
        for values in itertools.product(*KNOBS.values())
    )
    return max(
        (server.true_speed(c, c.max_num_seqs or 0) for c in every if is_safe(problem, server, c)), default=0.0
    )
