"""The guided search on simulated cards whose overheads and speed it does not know: regret and launches.

Each problem draws its own memory (what vLLM counts before the KV cache, and what it does not count) around
what the memory model expects, and its own throughput surface: a knee over the number of sequences, a factor
for each knob's value, interactions, and 5 % noise on every measurement. Regret: how far the recommended
setting's noiseless throughput is below the best of all candidates that survive with the margin.

    python tests/bench/tune_simulated.py [problems]
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvplan.catalog.gpus import find_gpu
from kvplan.catalog.models import find_model
from kvplan.tune.assumed import AssumedServer
from kvplan.tune.problem import Lengths, Problem, Space
from kvplan.tune.recommend import recommend
from kvplan.tune.rules import kv_rules
from kvplan.tune.strategies import search_of
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.config.serving import ServingConfig
    from kvplan.tune.trial import LoadLevel, TrialSpec

MAX_LAUNCHES = 8
MOST_LAUNCHES = 300
"""Of TPE, then it is given up."""
NOISE = 0.05
RESIDUAL = 0.08
"""Spread of the memory before the KV cache around its prediction (relative, one sigma)."""
KNOBS = {"block_size": (16, 32, 64), "max_num_batched_tokens": (2048, 4096, 8192)}
SEQS = (32, 64, 128, 256)
UTILIZATIONS = [round(0.50 + 0.01 * n, 2) for n in range(50)]


@dataclass(slots=True)
class SimulatedServer(AssumedServer):
    """Memory and speed of one drawn problem."""

    rng: random.Random = dataclasses.field(default_factory=random.Random)
    knee: float = 64.0
    peak: float = 3000.0
    factors: dict[tuple[str, Any], float] = dataclasses.field(default_factory=dict)

    def true_speed(self, settings: ServingConfig, users: int) -> float:
        """Noiseless output tokens per second."""
        running = min(users, settings.max_num_seqs or users)
        given = settings.given()
        factor = math.prod(self.factors.get((name, given.get(name)), 1.0) for name in KNOBS)
        pair = tuple(given.get(name) for name in KNOBS)
        return self.peak * (1 - math.exp(-running / self.knee)) * factor * self.factors[("pair", pair)]

    def speed(self, spec: TrialSpec, level: LoadLevel, repeat: int) -> float:
        """With measurement noise."""
        del repeat
        return self.true_speed(spec.settings, level.concurrency) * math.exp(self.rng.gauss(0, NOISE))


def problem_of(seed: int) -> tuple[Problem, SimulatedServer]:
    """One drawn problem and its hidden server."""
    rng = random.Random(seed)
    source, gpu = find_model("qwen2-7b"), find_gpu(rng.choice(["4090", "l40s", "a100-80gb-sxm"]))
    rules = kv_rules(source.config, gpu, (0, 32, 0))
    problem = Problem(
        model="qwen2-7b",
        device="cuda",
        card_bytes=gpu.total_bytes,
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
    factors: dict[tuple[str, Any], float] = {}
    for name, spread in (("block_size", 0.03), ("max_num_batched_tokens", 0.08)):
        factors |= {(name, value): math.exp(rng.gauss(0, spread)) for value in KNOBS[name]}
    for pair in itertools.product(*KNOBS.values()):
        factors["pair", pair] = math.exp(rng.gauss(0, 0.01))
    weights = 15.0 * GIB
    server = SimulatedServer(
        problem,
        rules,
        non_kv_bytes=round(weights * math.exp(abs(rng.gauss(0, RESIDUAL)))),
        unbudgeted_bytes=round(rng.uniform(0.3, 1.5) * GIB),
        rng=random.Random(seed + 1000),
        knee=rng.uniform(20, 120),
        peak=rng.uniform(1500, 6000),
        factors=factors,
    )
    return problem, server


def holds_its_seats(problem: Problem, server: SimulatedServer, settings: ServingConfig) -> bool:
    """Whether the KV cache holds max_num_seqs requests of the longest length."""
    plan = server.kv_rules(settings)
    kv_bytes = math.ceil(problem.card_bytes * (settings.gpu_memory_utilization or 0)) - server.non_kv_bytes
    holds = plan.concurrent_requests(plan.num_blocks(kv_bytes), problem.lengths.longest_request)
    return holds >= (settings.max_num_seqs or 0)


def best_speed(problem: Problem, server: SimulatedServer) -> float:
    """The best noiseless throughput of all candidates that survive with the margin that was asked for."""
    best = 0.0
    for utilization in UTILIZATIONS:
        with_margin = math.ceil(problem.card_bytes * (utilization + problem.margin))
        if with_margin + server.unbudgeted_bytes > problem.card_bytes:
            continue
        for seqs, *values in itertools.product(SEQS, *KNOBS.values()):
            settings = problem.base_settings().with_flags(
                gpu_memory_utilization=utilization,
                max_num_seqs=seqs,
                **dict(zip(KNOBS, values, strict=True)),
            )
            if holds_its_seats(problem, server, settings):
                best = max(best, server.true_speed(settings, seqs))
    return best


def measured(server: SimulatedServer, problem: Problem, settings: ServingConfig) -> float | None:
    """What one launch of a tool without a memory model learns: a noisy speed, or that it failed."""
    utilization = settings.gpu_memory_utilization or 0.0
    used = math.ceil(problem.card_bytes * (utilization + problem.margin)) + server.unbudgeted_bytes
    if used > problem.card_bytes or not holds_its_seats(problem, server, settings):
        return None
    noise = math.exp(server.rng.gauss(0, NOISE))
    return server.true_speed(settings, settings.max_num_seqs or 0) * noise


def launches_of_tpe(problem: Problem, server: SimulatedServer, best: float, seed: int) -> int | None:
    """Launches that Optuna's TPE makes until the setting it likes best is within 1 % of the best."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    liked: tuple[float, ServingConfig] | None = None
    for launch in range(1, MOST_LAUNCHES + 1):
        trial = study.ask()
        settings = problem.base_settings().with_flags(
            gpu_memory_utilization=trial.suggest_categorical("gpu_memory_utilization", UTILIZATIONS),
            max_num_seqs=trial.suggest_categorical("max_num_seqs", SEQS),
            **{name: trial.suggest_categorical(name, values) for name, values in KNOBS.items()},
        )
        value = measured(server, problem, settings)
        if value is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        study.tell(trial, value)
        if liked is None or value > liked[0]:
            liked = (value, settings)
        if is_within(server, liked[1], best):
            return launch
    return None


def launches_of_grid(problem: Problem, server: SimulatedServer, best: float, seed: int) -> int | None:
    """Launches of the sweep, in a random order, until the setting that it likes best is within 1 %."""
    every = list(itertools.product(UTILIZATIONS, SEQS, *KNOBS.values()))
    random.Random(seed).shuffle(every)
    liked: tuple[float, ServingConfig] | None = None
    for launch, (utilization, seqs, *values) in enumerate(every, start=1):
        settings = problem.base_settings().with_flags(
            gpu_memory_utilization=utilization, max_num_seqs=seqs, **dict(zip(KNOBS, values, strict=True))
        )
        value = measured(server, problem, settings)
        if value is not None and (liked is None or value > liked[0]):
            liked = (value, settings)
        if liked is not None and is_within(server, liked[1], best):
            return launch
    return None


def is_within(server: SimulatedServer, settings: ServingConfig, best: float) -> bool:
    """Whether a setting is as good as the guided search is asked to be."""
    return server.true_speed(settings, settings.max_num_seqs or 0) >= 0.99 * best


def told(name: str, launches: list[int | None]) -> str:
    """One line of the comparison."""
    known = sorted(count for count in launches if count is not None)
    missed = len(launches) - len(known)
    middle = f"{statistics.median(known):.0f}" if known else "n/a"
    return f"  {name}: median {middle} launches to 1 % regret, {missed} of {len(launches)} never there"


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    candidates = len(UTILIZATIONS) * len(SEQS) * math.prod(len(values) for values in KNOBS.values())
    print(f"{count} problems of {candidates} candidates, noise {NOISE:.0%}, at most {MAX_LAUNCHES} launches")
    regrets: list[float] = []
    launches: list[int] = []
    tpe: list[int | None] = []
    grid: list[int | None] = []
    for seed in range(count):
        problem, server = problem_of(seed)
        state = search_of(
            problem, server.kv_rules, server.run_trial, MAX_LAUNCHES, probe_utilization=0.9
        ).run()
        answer = recommend(state, server.kv_rules)
        best = best_speed(problem, server)
        regret = 1.0
        if state.confirmed is not None:
            settings = state.confirmed.spec.settings
            if holds_its_seats(problem, server, settings):
                regret = 1 - server.true_speed(settings, settings.max_num_seqs or 0) / best
        regrets.append(regret)
        tpe.append(launches_of_tpe(problem, server, best, seed))
        grid.append(launches_of_grid(problem, server, best, seed))
        launches.append(len(state.trials))
        print(f"  {seed:2d}: regret {regret:6.1%}, {len(state.trials)} launches {answer.stopped or ''}")
    print(
        f"median regret {statistics.median(regrets):.2%}, worst {max(regrets):.2%}, "
        f"most launches {max(launches)}"
    )
    within = sum(regret <= 0.01 for regret in regrets)
    print(f"within 1 % of the best: {within} of {count}")
    print("the same by tools that launch every candidate they look at, told only speed or failure:")
    print(told("grid in random order (vllm bench sweep)", grid))
    print(told("Optuna TPE", tpe))


if __name__ == "__main__":
    main()
