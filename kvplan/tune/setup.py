"""From what the user names to a problem that can be run, with everything that was assumed on the way."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.config.project_file import FILE_NAME, read_project_file
from kvplan.config.serving import ServingConfig
from kvplan.errors import InputError
from kvplan.gate.redact import SECRET_FLAGS, holds_named_secret
from kvplan.planning import PlanRequest, plan_for
from kvplan.tune.card import Card
from kvplan.tune.grid import knob_settings, utilizations
from kvplan.tune.identity import installed_vllm, run_context, workload_from_record
from kvplan.tune.knobs import check_values
from kvplan.tune.problem import Budget, Constraints, Device, Lengths, Objective, Problem, Space, Strategy
from kvplan.tune.replay import rules_of
from kvplan.units import GIB, format_gib

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvplan.load.workload import Workload
    from kvplan.planning import Planned
    from kvplan.tune.card import KvRules

DEMO_CARD_GIB: Final = 2.0
DEMO_TARGET: Final = 8
DEMO_INPUT_LEN: Final = 256
DEMO_OUTPUT_LEN: Final = 64
START_S: Final = {"cpu": 35.0, "cuda": 120.0}
"""Expected seconds of a start before one was seen: measured with small models on CPU (24 to 36 s eager);
on a GPU what a 7B model takes with compilation and graph capture."""
TOLERANCE: Final = 0.02
MARGIN: Final = 0.02
MAX_LAUNCHES: Final = 14
MAX_MINUTES: Final = 60.0
LOAD_S: Final = 15.0
"""Expected seconds of the loads of one launch before one was seen."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What the user gave; None is "not given"."""

    plan: PlanRequest
    demo: bool = False
    constraints: Constraints = field(default_factory=Constraints)
    objective: Objective | None = None
    strategy: Strategy | None = None
    utilizations: tuple[float, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    block_sizes: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()
    knobs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Any other flag of vLLM's, each with its values, the base first."""
    tolerance: float | None = None
    margin: float | None = None
    quality_gate: bool | None = None
    """False lets a quantised KV cache win without a look at its answers."""
    seed: int | None = None
    max_launches: int | None = None
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that nothing can be computed with.

        Raises:
            InputError: a value that its flag does not take, or a flag that a knob gives again.
        """
        named = {
            "gpu_memory_utilization": self.utilizations,
            "kv_cache_dtype": self.kv_cache_dtypes,
            "block_size": self.block_sizes,
            "max_num_seqs": self.max_num_seqs,
        }
        for name, values in (*named.items(), *self.knobs.items()):
            check_values(name, values)
        for name, values in named.items():
            flag = f"--{name.replace('_', '-')}"
            if len(set(values)) < len(values):
                raise InputError(f"{flag} has the same value twice", "give each value once")
            if name in self.knobs:
                raise InputError(f"{name} is given twice, as {flag} and as a knob", "leave out one of them")


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the memory model expects before anything was launched; bytes."""

    non_kv_bytes: int
    unbudgeted_bytes: int
    probe_utilization: float


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
    request = _without_secrets(request, assumptions)
    request = (_with_demo if request.demo else _with_project)(request, assumptions)
    device, request = _device(request, assumptions)
    planned = plan_for(dataclasses.replace(request.plan, vllm_version=version))
    gpu = planned.planner.gpu
    workload = workload or _workload(request)
    target = _target(request, workload)
    space = _space(request, planned, device)
    fixed = {k: v for k, v in request.plan.serving.given().items() if k not in _SEARCHED}
    problem = Problem(
        model=planned.source.path or planned.source.id,
        device=device,
        card_bytes=gpu.total_bytes,
        target_concurrency=target,
        lengths=_lengths(workload),
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
    assumed = _assumed(planned, problem)
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
        warnings=(*planned.warnings, *_out_of_reach(problem, rules, assumed)),
    )


def _out_of_reach(problem: Problem, rules: KvRules, assumed: Assumed) -> tuple[str, ...]:
    """Said before the first launch: the card is not expected to hold the target's requests at once."""
    card = Card(problem.card_bytes, assumed.non_kv_bytes, assumed.unbudgeted_bytes)
    highest = min(card.boundary_utilization, problem.space.highest_utilization)
    held = 0
    for dtype in problem.space.kv_cache_dtype:
        plan = rules(problem.base_settings().with_flags(kv_cache_dtype=dtype))
        blocks = plan.num_blocks(card.kv_bytes(highest))
        held = max(held, plan.concurrent_requests(blocks, problem.lengths.mean_request))
    if held >= problem.target_concurrency:
        return ()
    said = (
        f"the target of {problem.target_concurrency:,} users is out of reach by the memory model: the card "
        f"should hold {held:,} requests of {problem.lengths.mean_request:,} tokens at once"
    )
    return (said,)


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


def _without_secrets(request: TuneRequest, assumptions: list[str]) -> TuneRequest:
    """The request without keys and passwords: its settings are printed, and kept in the journal.

    Raises:
        InputError: a secret within a value that the launch needs, or one to be tried in several values.
    """
    serving = request.plan.serving
    for name, value in serving.given().items():
        if holds_named_secret(value):
            raise InputError(
                f"--config: {name.replace('_', '-')} holds a secret, which a run's journal would repeat",
                "leave it out, and give it to vLLM in a variable of the environment",
            )
    for name, values in request.knobs.items():
        if name in SECRET_FLAGS or holds_named_secret(values):
            raise InputError(
                f"--knob {name} holds a secret, which a run's journal would repeat", "leave it out"
            )
    left_out = sorted(SECRET_FLAGS & set(serving.other_flags))
    if not left_out:
        return request
    assumptions.append(
        f"no {', no '.join(left_out)} of --config: secrets are not kept in a run, its servers have a key of "
        "their own (a token for the hub belongs into HF_TOKEN)"
    )
    rest = {name: value for name, value in serving.other_flags.items() if name not in SECRET_FLAGS}
    plan = dataclasses.replace(request.plan, serving=dataclasses.replace(serving, other_flags=rest))
    return dataclasses.replace(request, plan=plan)


def _with_demo(request: TuneRequest, assumptions: list[str]) -> TuneRequest:
    """The tiny model on a small card with a small load; what the user gave stays."""
    plan = request.plan
    if plan.model is None:
        from kvplan.engine.demo_model import make_demo_model

        plan = dataclasses.replace(plan, model=str(make_demo_model()))
        assumptions.append("a tiny model with random weights (--demo)")
    if plan.device is None and plan.gpu is None:
        plan = dataclasses.replace(plan, device="cpu")
        assumptions.append("vLLM's CPU backend (--device)")
    if plan.device == "cpu" and plan.gpu_memory_gib is None:
        plan = dataclasses.replace(plan, gpu_memory_gib=DEMO_CARD_GIB)
        assumptions.append(f"a card of {DEMO_CARD_GIB:g} GiB (--gpu-memory-gib)")
    if plan.workload is None and plan.input_len is None and plan.output_len is None:
        plan = dataclasses.replace(plan, input_len=DEMO_INPUT_LEN, output_len=DEMO_OUTPUT_LEN)
        assumptions.append(f"{DEMO_INPUT_LEN} tokens in, {DEMO_OUTPUT_LEN} out (--input-len, --output-len)")
    if plan.target_concurrency is None:
        plan = dataclasses.replace(plan, target_concurrency=DEMO_TARGET)
        assumptions.append(f"{DEMO_TARGET} users at once (--target-concurrency)")
    if plan.serving.enforce_eager is None:
        plan = dataclasses.replace(plan, serving=plan.serving.with_flags(enforce_eager=True))
        assumptions.append("no compilation, so that starts are short (--no-enforce-eager)")
    return dataclasses.replace(request, plan=plan)


def _with_project(request: TuneRequest, assumptions: list[str]) -> TuneRequest:
    """What `.kvplan.yaml` gives where the command line gave nothing."""
    project, plan = read_project_file(), request.plan
    if project is None:
        return request
    names = ["target_concurrency"]
    names += ["model"] if plan.serving.model is None else []
    names += ["gpu", "gpu_memory_gib", "device"] if plan.gpu is None and plan.device is None else []
    names += ["workload"] if plan.input_len is None and plan.output_len is None else []
    taken = {
        name: value
        for name in names
        if getattr(plan, name) is None and (value := getattr(project, name)) is not None
    }
    assumptions += [f"{name} {value} ({FILE_NAME})" for name, value in taken.items()]
    return dataclasses.replace(request, plan=dataclasses.replace(plan, **taken))


def _device(request: TuneRequest, assumptions: list[str]) -> tuple[Device, TuneRequest]:
    """cuda where there is a card or one was named, else cpu."""
    plan = request.plan
    named = plan.device or ("cuda" if plan.gpu is not None else None)
    if named is None:
        from kvplan.catalog.gpus import detect_gpus

        named = "cuda" if detect_gpus() else "cpu"
        if named == "cpu":
            if plan.gpu_memory_gib is None:
                raise InputError(
                    "no GPU was found here through NVML, so there is nothing to tune on",
                    "run it on the GPU machine; or try --demo (a tiny model on this CPU), --device cpu "
                    "--gpu-memory-gib N (your model on this CPU), --url of a server that runs, --gpu NAME "
                    "--dry-run (the plan alone); kvplan estimate needs no GPU",
                )
            assumptions.append("vLLM's CPU backend: no GPU was found here (--device)")
    if named not in {"cuda", "cpu"}:
        raise InputError(f"--device {named!r} is not known", "cuda or cpu")
    device: Device = "cuda" if named == "cuda" else "cpu"
    if device == "cpu" and plan.gpu_memory_gib is None:
        raise InputError(
            "on CPU the card has the size that you give it, and none was given",
            "for example --gpu-memory-gib 4",
        )
    plan = dataclasses.replace(plan, device=device if device == "cpu" else plan.device)
    return device, dataclasses.replace(request, plan=plan)


def _workload(request: TuneRequest) -> Workload:
    from kvplan.load.workload import Workload, load_workload

    plan = request.plan
    if plan.workload is not None:
        return load_workload(plan.workload, plan.profiles)
    if plan.input_len is not None and plan.output_len is not None:
        return Workload.fixed(plan.input_len, plan.output_len)
    missing = [
        flag
        for flag, value in (("--input-len", plan.input_len), ("--output-len", plan.output_len))
        if value is None
    ]
    raise InputError(
        f"the length of the requests is not known: {' and '.join(missing)} missing",
        "give both in tokens, or --workload FILE",
    )


def _target(request: TuneRequest, workload: Workload) -> int:
    target = request.plan.target_concurrency
    target = workload.concurrency if target is None else target
    if target is None:
        raise InputError(
            "nothing says how many users the setting is for", "give --target-concurrency, for example 32"
        )
    if target < 1:
        raise InputError(f"--target-concurrency {target} is below 1", "give a whole number from 1 up")
    return target


def _lengths(workload: Workload) -> Lengths:
    longest = workload.longest().samples[0]
    return Lengths(
        mean_input=round(workload.mean_input_len),
        mean_output=round(workload.mean_output_len),
        longest_input=longest.input_len,
        longest_output=longest.output_len,
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


def _assumed(planned: Planned, problem: Problem) -> Assumed:
    """What the memory model expects of memory outside the KV cache.

    Raises:
        InputError: not even the weights fit.
    """
    answer = planned.planner.estimate(problem.base_settings().with_flags(gpu_memory_utilization=0.9))
    total = answer.gpu.total_bytes
    kv_bytes = next(line.bytes.mid for line in answer.budget.lines if line.name == "kv_cache")
    non_kv = answer.budget.requested_bytes - kv_bytes
    outside = answer.overhead.outside_budget.mid + answer.overhead.cuda_graphs_outside.mid
    if answer.weights.bytes.low >= total:
        raise InputError(
            f"the weights are {format_gib(answer.weights.bytes.low)}, the card has {format_gib(total)}",
            "kvplan estimate shows the ledger",
        )
    # Low enough to start even at the unlucky end of what the model expects, high enough to hold KV cache.
    cautious = (
        total - answer.overhead.outside_budget.high - answer.overhead.cuda_graphs_outside.high
    ) / total
    probe = round(max(0.5, min(0.9, cautious - 0.02)), 3)
    return Assumed(non_kv, outside, min(probe, problem.space.highest_utilization))


def expected_start_s(problem: Problem, context: Mapping[str, Any], runs_dir: Path) -> tuple[float, str]:
    """Seconds that a launch will take to be ready, and where that is known from."""
    from kvplan.tune.journal import FILE_NAME, read_journal

    seen: list[float] = []
    for path in sorted(runs_dir.glob(f"*/{FILE_NAME}"))[-20:]:
        try:
            contents = read_journal(path)
        except InputError:
            continue
        then = contents.header["context"]
        if (then["model"], then["machine"]) == (context["model"], context["machine"]):
            seen += [t.launch.ready_s for t in contents.trials if t.launch is not None and t.launch.ready_s]
    if seen:
        return statistics.median(seen), f"median of {len(seen)} starts of this model here"
    gib = problem.card_bytes / GIB
    return START_S[problem.device], f"no start of this model was seen here yet; a guess for {gib:.0f} GiB"
