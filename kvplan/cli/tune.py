"""`kvplan tune`: find the settings with a handful of real launches."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.estimate import Format
from kvplan.cli.output import emit, tell
from kvplan.cli.tune_modes import ServerFlags, mode_of, run_ladder, run_server, show_ladder
from kvplan.cli.values import finite
from kvplan.errors import ExitCode, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.report.tune import TuneReport
    from kvplan.tune.request import TuneRequest

_SETTINGS = "vLLM settings that every launch gets"
_WORKLOAD = "Target and workload"
_SEARCH = "Search"
_SERVER = "A server that runs already"
_LADDER = "The articles' before and after"


class Objective(enum.StrEnum):
    """What the best setting is best in."""

    TARGET = "target"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    CAPACITY = "capacity"


class Strategy(enum.StrEnum):
    """How the settings to launch are chosen."""

    GUIDED = "guided"
    GRID = "grid"


def tune(
    demo: Annotated[
        bool, typer.Option("--demo", help="A tiny random model on CPU: everything real, nothing downloaded.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Profile name, folder or hub id; with --url its name there.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda (default where a GPU is) or cpu.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Card by name; default: the one found here.")] = None,
    gpu_memory_gib: Annotated[
        float | None,
        typer.Option(callback=finite, help="On CPU the size of the card: a memory cgroup of that size."),
    ] = None,
    target_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Users at once.", rich_help_panel=_WORKLOAD)
    ] = None,
    input_len: Annotated[int | None, typer.Option(help="Prompt tokens.", rich_help_panel=_WORKLOAD)] = None,
    output_len: Annotated[int | None, typer.Option(help="Answer tokens.", rich_help_panel=_WORKLOAD)] = None,
    workload: Annotated[
        str | None, typer.Option(help="A workload file or preset.", rich_help_panel=_WORKLOAD)
    ] = None,
    ttft_p99_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Longest P99 to the first token.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    tpot_p99_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="Longest P99 per further token.",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    e2e_p99_ms: Annotated[
        float | None,
        typer.Option(
            min=0, callback=finite, help="Longest P99 of a whole answer.", rich_help_panel=_WORKLOAD
        ),
    ] = None,
    max_preemptions: Annotated[
        int | None,
        typer.Option(
            min=0, help="Most preemptions of a load; default: any, they are shown.", rich_help_panel=_WORKLOAD
        ),
    ] = None,
    config: Annotated[str | None, typer.Option(help="A vLLM YAML file.", rich_help_panel=_SETTINGS)] = None,
    max_model_len: Annotated[
        str | None, typer.Option(help="Default: the longest request.", rich_help_panel=_SETTINGS)
    ] = None,
    max_num_batched_tokens: Annotated[
        str | None, typer.Option(help="Tokens of one step, prompts included.", rich_help_panel=_SETTINGS)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of weights and activations: bfloat16.", rich_help_panel=_SETTINGS),
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(help="Of weights, if the model is silent.", rich_help_panel=_SETTINGS),
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(help="GPUs of one server.", rich_help_panel=_SETTINGS)
    ] = None,
    enforce_eager: Annotated[
        bool | None,
        typer.Option(help="No compilation and no CUDA graphs: starts are short.", rich_help_panel=_SETTINGS),
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None, typer.Option(help="On by default in vLLM.", rich_help_panel=_SETTINGS)
    ] = None,
    objective: Annotated[
        Objective | None,
        typer.Option(help="Default: the target, then output tokens per second.", rich_help_panel=_SEARCH),
    ] = None,
    strategy: Annotated[
        Strategy | None,
        typer.Option(help="guided (default), or every combination.", rich_help_panel=_SEARCH),
    ] = None,
    gpu_memory_utilization: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01,
            max=1,
            help="guided: the highest to try, or both ends; grid: each value.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        list[str] | None, typer.Option(help="Values to try, the base first.", rich_help_panel=_SEARCH)
    ] = None,
    block_size: Annotated[
        list[int] | None, typer.Option(help="Values to try, the base first.", rich_help_panel=_SEARCH)
    ] = None,
    max_num_seqs: Annotated[
        list[int] | None,
        typer.Option(help="Values to choose from; with --url the server's own.", rich_help_panel=_SEARCH),
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(
            help="Any other vLLM flag: max_num_batched_tokens=2048,4096, the base first.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="A YAML file of knobs: values.", rich_help_panel=_SEARCH)
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.005,
            max=0.5,
            callback=finite,
            help="Width of the boundary's bracket; default 0.02.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.5,
            callback=finite,
            help="Least step back from the boundary; default 0.02.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    min_headroom_gib: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, help="The same in GiB.", rich_help_panel=_SEARCH),
    ] = None,
    no_quality_gate: Annotated[
        bool,
        typer.Option(
            "--no-quality-gate",
            help="Let a quantised KV cache win without a look at its answers.",
            rich_help_panel=_SEARCH,
        ),
    ] = False,
    max_launches: Annotated[
        int | None, typer.Option(min=1, help="Default: 14.", rich_help_panel=_SEARCH)
    ] = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(min=0, callback=finite, help="Default: 60; with --url 30.", rich_help_panel=_SEARCH),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the load; default 0.", rich_help_panel=_SEARCH)] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Measure a server that runs; launch nothing.", rich_help_panel=_SERVER),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="With --url: the variable that holds the key; default VLLM_API_KEY.", rich_help_panel=_SERVER
        ),
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option(help="With --url: certificates (PEM) to trust.", rich_help_panel=_SERVER),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="With --url: verify no certificate.", rich_help_panel=_SERVER)
    ] = False,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            min=32,
            help="With --url, for a server without /tokenize: its vocabulary.",
            rich_help_panel=_SERVER,
        ),
    ] = None,
    ladder: Annotated[
        bool,
        typer.Option(
            "--ladder",
            help="The articles' before and after: Transformers, then vLLM step by step to tuned.",
            rich_help_panel=_LADDER,
        ),
    ] = False,
    tuned_run: Annotated[
        str | None,
        typer.Option(
            help="With --ladder: whose settings are the last step; else the newest run or a search.",
            rich_help_panel=_LADDER,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the launches, what each decides, and the minutes.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(help="Go on with a run (name, folder or `last`); repeats nothing.")
    ] = None,
    runs_dir: Annotated[str, typer.Option(help="Where runs are kept.")] = "kvplan-runs",
    profiles: Annotated[str | None, typer.Option(help="A folder of profiles that wins.")] = None,
    output_format: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
) -> None:
    """Start and load real vLLM, find what fits, recommend a setting.

    Exit code: 0 a confirmed setting meets the target, 1 none does (the nearest is shown), 2 could not judge,
    130 interrupted (what finished is kept; --resume goes on).
    """
    from pathlib import Path

    from kvplan.config.from_flags import serving_config
    from kvplan.planning import PlanRequest
    from kvplan.tune.knobs import read_knobs
    from kvplan.tune.problem import Constraints
    from kvplan.tune.request import TuneRequest
    from kvplan.units import bytes_from_gib

    folder = Path(runs_dir)
    server = ServerFlags(url, api_key_env, ca_file, insecure, vocab_size)
    knobs = read_knobs(knob or (), space)
    flags = {
        "max_model_len": max_model_len,
        "max_num_batched_tokens": max_num_batched_tokens,
        "dtype": dtype,
        "quantization": quantization,
        "tensor_parallel_size": tensor_parallel_size,
        "enforce_eager": enforce_eager,
        "enable_prefix_caching": enable_prefix_caching,
    }
    request = TuneRequest(
        plan=PlanRequest(
            model=model,
            gpu=gpu,
            gpu_memory_gib=gpu_memory_gib,
            device=device,
            serving=serving_config(flags, config),
            target_concurrency=target_concurrency,
            input_len=input_len,
            output_len=output_len,
            workload=workload,
            profiles=profiles,
        ),
        demo=demo,
        constraints=Constraints(
            ttft_p99_ms=ttft_p99_ms,
            tpot_p99_ms=tpot_p99_ms,
            e2e_p99_ms=e2e_p99_ms,
            max_preemptions=max_preemptions,
            min_headroom_bytes=None if min_headroom_gib is None else bytes_from_gib(min_headroom_gib),
        ),
        objective=None if objective is None else objective.value,
        strategy=None if strategy is None else strategy.value,
        utilizations=tuple(gpu_memory_utilization or knobs.pop("gpu_memory_utilization", ())),
        kv_cache_dtypes=tuple(kv_cache_dtype or knobs.pop("kv_cache_dtype", ())),
        block_sizes=tuple(block_size or knobs.pop("block_size", ())),
        max_num_seqs=tuple(sorted(max_num_seqs or knobs.pop("max_num_seqs", ()))),
        knobs=knobs,
        tolerance=tolerance,
        margin=margin,
        quality_gate=False if no_quality_gate else None,
        max_launches=max_launches,
        max_minutes=max_minutes,
        seed=seed,
    )
    mode = mode_of(server, resume, folder, ladder=ladder)
    if tuned_run is not None and mode != "ladder":
        raise InputError("--tuned-run names the last step of a ladder", "give --ladder too")
    if dry_run:
        if mode == "server":
            raise InputError("--dry-run plans launches, and --url makes none", "leave out one of them")
        shown = show_ladder(request, output_format.value) if mode == "ladder" else None
        emit(shown or _plan(request, folder, output_format))
        raise typer.Exit(ExitCode.OK)
    if mode == "server":
        raise typer.Exit(run_server(request, server, folder, resume, output_format.value))
    if mode == "ladder":
        raise typer.Exit(run_ladder(request, folder, resume, tuned_run, output_format.value))
    run = _tuned(request, folder, resume)
    report = _report_of(run)
    emit(report.render(output_format.value))
    raise typer.Exit(ExitCode.OK if report.recommendation.met else ExitCode.NO)


def _plan(request: TuneRequest, runs_dir: Path, output_format: Format) -> str:
    from kvplan.report.tune_plan import render_plan
    from kvplan.tune.session import forecast
    from kvplan.tune.setup import prepare

    prepared = prepare(request)
    return render_plan(prepared, forecast(prepared, runs_dir), output_format.value)


def _tuned(request: TuneRequest, runs_dir: Path, resume: str | None) -> Path:
    """The finished run's folder; the one line to go on with is said whatever ends it before."""
    from kvplan.report.tune_progress import watching
    from kvplan.tune.journal import find_run
    from kvplan.tune.session import begin, go_on
    from kvplan.tune.setup import prepare

    with watching(runs_dir) as watch:
        try:
            if resume is None:
                return begin(prepare(request), runs_dir, watch.of)
            return go_on(find_run(resume, runs_dir), request, watch.of, tell)
        except KeyboardInterrupt:
            tell(watch.how_to_go_on())
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _report_of(run: Path) -> TuneReport:
    from kvplan.report.tune import TuneReport
    from kvplan.tune.journal import read_journal

    report = TuneReport.of(read_journal(run))
    report.save(run)
    return report
