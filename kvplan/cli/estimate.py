"""`kvplan estimate`: does this model fit this card, will vLLM start, and what does it serve?"""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from kvplan.errors import ExitCode, InputError

_SETTINGS = "vLLM settings"
_WORKLOAD = "Workload"


class Format(enum.StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class FailOn(enum.StrEnum):
    """Which verdict exits 1."""

    NO = "no"
    TIGHT = "tight"


def estimate(
    names: Annotated[
        list[str] | None, typer.Argument(help="With --compare: models, cards or vLLM versions.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Profile name, folder, config.json or hub id.")] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Card by name, or all; default: the one found here.")
    ] = None,
    gpu_memory_gib: Annotated[
        float | None, typer.Option(help="Memory that software sees on the card, for any other card.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda (default) or cpu: vLLM's CPU backend.")] = None,
    vllm_version: Annotated[
        str | None, typer.Option(help="Rules and defaults of this version; default: installed, else newest.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="A vLLM YAML config file; flags win over it.", rich_help_panel=_SETTINGS),
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of the card that vLLM plans with.", rich_help_panel=_SETTINGS)
    ] = None,
    kv_cache_memory_bytes: Annotated[
        str | None, typer.Option(help="KV cache of one GPU, exactly (2G, 512M).", rich_help_panel=_SETTINGS)
    ] = None,
    max_model_len: Annotated[
        str | None, typer.Option(help="8192, 8k, 32K or auto.", rich_help_panel=_SETTINGS)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most requests that run at once.", rich_help_panel=_SETTINGS)
    ] = None,
    max_num_batched_tokens: Annotated[
        str | None, typer.Option(help="Most tokens of one step (8192, 8k, 8K).", rich_help_panel=_SETTINGS)
    ] = None,
    kv_cache_dtype: Annotated[
        str | None, typer.Option(help="auto, fp8, fp8_e5m2, nvfp4, ...", rich_help_panel=_SETTINGS)
    ] = None,
    kv_cache_dtype_skip_layers: Annotated[
        list[str] | None,
        typer.Option(
            help="A layer kept in the model's dtype, by number, or sliding_window; repeatable.",
            rich_help_panel=_SETTINGS,
        ),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens of a KV block; vLLM may change it.", rich_help_panel=_SETTINGS)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, bfloat16, float16 or float32.", rich_help_panel=_SETTINGS)
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            help="Of the weights: fp8 quantises while loading; a checkpoint's own needs no flag.",
            rich_help_panel=_SETTINGS,
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int | None, typer.Option(help="GPUs that share each layer.", rich_help_panel=_SETTINGS)
    ] = None,
    pipeline_parallel_size: Annotated[
        int | None, typer.Option(help="GPUs that share out the layers.", rich_help_panel=_SETTINGS)
    ] = None,
    data_parallel_size: Annotated[
        int | None,
        typer.Option(help="Replicas; a mixture's experts are divided among them.", rich_help_panel=_SETTINGS),
    ] = None,
    decode_context_parallel_size: Annotated[
        int | None,
        typer.Option(help="Ranks among which a request's KV cache is divided.", rich_help_panel=_SETTINGS),
    ] = None,
    enable_expert_parallel: Annotated[
        bool | None,
        typer.Option(help="Whole experts on each GPU instead of a slice of all.", rich_help_panel=_SETTINGS),
    ] = None,
    enforce_eager: Annotated[
        bool | None, typer.Option(help="No CUDA graphs, no compilation.", rich_help_panel=_SETTINGS)
    ] = None,
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(
            help="Keep blocks of finished requests for the next with the same start.",
            rich_help_panel=_SETTINGS,
        ),
    ] = None,
    async_scheduling: Annotated[
        bool | None, typer.Option(help="Schedule a step while the last one runs.", rich_help_panel=_SETTINGS)
    ] = None,
    target_concurrency: Annotated[
        int | None, typer.Option(help="Requests that shall run at once.", rich_help_panel=_WORKLOAD)
    ] = None,
    input_len: Annotated[int | None, typer.Option(help="Prompt tokens.", rich_help_panel=_WORKLOAD)] = None,
    output_len: Annotated[int | None, typer.Option(help="Answer tokens.", rich_help_panel=_WORKLOAD)] = None,
    workload: Annotated[
        str | None, typer.Option(help="A workload file or preset.", rich_help_panel=_WORKLOAD)
    ] = None,
    used_gib: Annotated[
        float | None, typer.Option(help="Memory that others use on the card (desktop, another engine).")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of a VLLM_* variable of the server; repeatable.")
    ] = None,
    profiles: Annotated[str | None, typer.Option(help="A folder of profiles that wins.")] = None,
    revision: Annotated[str | None, typer.Option(help="Revision of a hub model.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Never touch the network.")] = False,
    local_calibration: Annotated[
        bool, typer.Option(help="Correct the prediction by launches measured here.")
    ] = True,
    compare: Annotated[bool, typer.Option("--compare", help="The named things side by side.")] = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="A small table: attention, paging, block-size, window, skip-layers, offload, pools or all."
        ),
    ] = None,
    solve: Annotated[
        bool, typer.Option("--solve", help="The longest request, the most requests, the smallest cards.")
    ] = False,
    kv_budget: Annotated[
        str | None, typer.Option(help="With --solve: KV cache of one GPU, whatever the card leaves.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Each formula with its numbers.")] = False,
    fail_on: Annotated[FailOn, typer.Option(help="Exit 1 on this verdict.")] = FailOn.NO,
    output_format: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
) -> None:
    """Does it fit, will vLLM start, how many requests does it hold?

    Prints the memory ledger of one GPU and its KV capacity.

    Exit code: 0 it starts (and meets the target, if one was given), 1 it does not, 2 could not be judged.
    """
    from kvplan.cli.output import emit
    from kvplan.config.from_flags import serving_config
    from kvplan.planning import PlanRequest, plan_for
    from kvplan.report.estimate import EstimateReport

    flags = {
        "gpu_memory_utilization": gpu_memory_utilization,
        "kv_cache_memory_bytes": kv_budget if kv_cache_memory_bytes is None else kv_cache_memory_bytes,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_cache_dtype": kv_cache_dtype,
        "kv_cache_dtype_skip_layers": tuple(kv_cache_dtype_skip_layers or ()) or None,
        "block_size": block_size,
        "dtype": dtype,
        "quantization": quantization,
        "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
        "data_parallel_size": data_parallel_size,
        "decode_context_parallel_size": decode_context_parallel_size,
        "enable_expert_parallel": enable_expert_parallel,
        "enforce_eager": enforce_eager,
        "enable_prefix_caching": enable_prefix_caching,
        "async_scheduling": async_scheduling,
    }
    request = PlanRequest(
        model=model,
        gpu=gpu,
        gpu_memory_gib=gpu_memory_gib,
        device=device,
        vllm_version=vllm_version,
        serving=serving_config(flags, config),
        target_concurrency=target_concurrency,
        input_len=input_len,
        output_len=output_len,
        workload=workload,
        profiles=profiles,
        revision=revision,
        offline=offline,
        local_calibration=local_calibration,
        used_gib=used_gib,
        environment=_variables(env or []),
    )
    _one_question(
        {
            "--compare": compare,
            "--gpu all": gpu == "all",
            "--what-if": bool(what_if),
            "--solve": solve,
            "--explain": explain,
            f"--fail-on {fail_on}": fail_on is not FailOn.NO,
        }
    )
    if names and not compare:
        raise InputError(f"unexpected argument {names[0]!r}", "name a model with --model, or --compare A B")
    has_lengths = workload is not None or input_len is not None or output_len is not None
    if (compare or gpu == "all") and target_concurrency is not None and not has_lengths:
        raise _no_lengths("give --input-len and --output-len, or --workload")
    if compare or gpu == "all":
        from kvplan.report.variants import render_variants
        from kvplan.variants import all_cards
        from kvplan.variants import compare as compare_names

        variants = compare_names(names or [], request) if compare else all_cards(request)
        emit(render_variants(variants, output_format.value))
        is_answered = any(variant.estimate is not None for variant in variants)
        raise typer.Exit(ExitCode.OK if is_answered else ExitCode.CANNOT_JUDGE)
    planned = plan_for(request)
    if target_concurrency is not None and planned.planner.lengths is None and not solve:
        raise _no_lengths("give --input-len and --output-len, or --workload; --solve finds the longest")
    if what_if:
        from kvplan.report.what_if import ask_views, render_views

        views, refused = ask_views(planned, what_if)
        emit(render_views(views, refused, output_format.value, asked=planned.estimate()))
        raise typer.Exit(ExitCode.OK)
    if solve:
        from kvplan.report.solution import Solution

        emit(Solution.of(planned, request).render(output_format.value))
        raise typer.Exit(ExitCode.OK)
    report = EstimateReport.of(planned)
    emit(report.render(output_format.value, explain=explain))
    says_no = report.starts == "no" or (fail_on is FailOn.TIGHT and report.starts == "tight")
    raise typer.Exit(ExitCode.NO if says_no or report.meets_target is False else ExitCode.OK)


def _one_question(asked: dict[str, bool]) -> None:
    """Refuse two questions at once: one of them would go unanswered without a word."""
    given = [flag for flag, is_given in asked.items() if is_given]
    if {"--explain", "--fail-on tight"} == set(given):
        return
    if len(given) > 1:
        hint = "--solve lists cards by itself: name one" if "--solve" in given else "ask one after the other"
        raise InputError(f"{given[0]} and {given[1]} cannot be asked at once", hint)


def _no_lengths(hint: str) -> InputError:
    return InputError("--target-concurrency needs the requests' lengths", hint)


def _variables(assignments: list[str]) -> dict[str, str]:
    """`NAME=VALUE` -> {NAME: VALUE}."""
    pairs = [assignment.partition("=") for assignment in assignments]
    for name, equals, _ in pairs:
        if not equals or not name.startswith("VLLM_"):
            raise InputError(f"--env {name!r} is not NAME=VALUE of a VLLM_* variable", "--env VLLM_X=1")
    return {name: value for name, _, value in pairs}
