"""`kvplan bench`: load a running server and print what it gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.estimate import Format
from kvplan.cli.output import emit, tell
from kvplan.cli.values import finite
from kvplan.errors import ExitCode, InputError, LoadError

if TYPE_CHECKING:
    from kvplan.load.workload import Workload


def bench(
    url: Annotated[str, typer.Option(help="The server, with or without /v1: http://127.0.0.1:8000")],
    model: Annotated[str, typer.Option(help="The served model name.")],
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Users at once; several times for a sweep on the same server.")
    ] = None,
    num_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests of each load; default: four a user.")
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(min=0.1, callback=finite, help="Seconds of each load, instead of a number of requests."),
    ] = None,
    input_len: Annotated[int | None, typer.Option(help="Prompt tokens.")] = None,
    output_len: Annotated[int | None, typer.Option(help="Answer tokens.")] = None,
    workload: Annotated[str | None, typer.Option(help="A workload file or preset.")] = None,
    warmup_requests: Annotated[
        int | None, typer.Option(min=0, help="Default: waves until the server's speed no longer rises.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Order of the lengths, and prompts.")] = 0,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="VLLM_API_KEY",
            help="The key; others see a command line, not a variable.",
            show_envvar=True,
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Another variable that holds the key: OPENAI_API_KEY.")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(help="Certificates (PEM) to trust instead of the system's.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not verify the TLS certificate.")] = False,
    vocab_size: Annotated[
        int | None, typer.Option(min=32, help="For a server without /tokenize: size of its vocabulary.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="The server's, to tell waiting for a seat from waiting for memory.")
    ] = None,
    stall_timeout: Annotated[
        float,
        typer.Option(
            min=0.1, callback=finite, help="Seconds without a token after which a request is given up."
        ),
    ] = 300.0,
    profiles: Annotated[str | None, typer.Option(help="A folder of profiles that wins.")] = None,
    output_format: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
) -> None:
    """Load a running server: throughput, latencies, KV cache.

    Exit code: 0 measured, 2 no request was answered, 130 interrupted (what was measured is printed).
    """
    import asyncio

    from kvplan.load.bench import BenchPlan, run_bench
    from kvplan.load.endpoint import make_endpoint
    from kvplan.report.bench import render_bench

    plan = BenchPlan(
        endpoint=make_endpoint(
            url, model, api_key=api_key, api_key_env=api_key_env, ca_file=ca_file, insecure=insecure
        ),
        workload=_workload(workload, input_len, output_len, profiles),
        concurrencies=tuple(concurrency or ()),
        num_requests=num_requests,
        duration_s=duration,
        warmup_requests=warmup_requests,
        seed=seed,
        vocab_size=vocab_size,
        max_num_seqs=max_num_seqs,
        stall_timeout_s=stall_timeout,
    )
    outcome = asyncio.run(run_bench(plan, tell=tell))
    if outcome.measurements:
        emit(render_bench(outcome.measurements, plan.endpoint.base_url, model, output_format.value))
    if outcome.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    for measurement in outcome.measurements:
        if not measurement.summary.completed:
            reason = next((text for text, _ in measurement.summary.errors if text), "the load was stopped")
            raise LoadError(f"no request was answered: {reason}", "look at the server's own log")
    raise typer.Exit(ExitCode.OK)


def _workload(
    name: str | None, input_len: int | None, output_len: int | None, profiles: str | None
) -> Workload:
    from kvplan.load.workload import Workload, load_workload

    if name is not None:
        if input_len is not None or output_len is not None:
            raise InputError("--workload says the lengths already", "leave out --input-len and --output-len")
        return load_workload(name, profiles)
    if input_len is None or output_len is None:
        raise InputError(
            "the lengths of the requests are missing", "--input-len and --output-len, or --workload"
        )
    return Workload.fixed(input_len, output_len)
