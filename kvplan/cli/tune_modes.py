"""`kvplan tune --url` and `--ladder`: the two that are no search for settings."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import typer

from kvplan.cli.output import emit, tell
from kvplan.errors import ExitCode, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvplan.load.records import Endpoint
    from kvplan.load.workload import Workload
    from kvplan.tune.journal import JournalContents
    from kvplan.tune.request import TuneRequest
    from kvplan.tune.run import Watcher
    from kvplan.tune.setup import Prepared

Mode = Literal["tune", "server", "ladder"]
_FLAG_OF: Final = {
    "strategy": "--strategy",
    "objective": "--objective",
    "utilizations": "--gpu-memory-utilization",
    "kv_cache_dtypes": "--kv-cache-dtype",
    "block_sizes": "--block-size",
    "knobs": "--knob",
    "tolerance": "--tolerance",
    "margin": "--margin",
    "max_launches": "--max-launches",
}
"""Of a request: what only a search for settings takes."""


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """How to reach a server that runs."""

    url: str | None = None
    api_key_env: str | None = None
    ca_file: str | None = None
    insecure: bool = False
    vocab_size: int | None = None


def mode_of(server: ServerFlags, resume: str | None, runs_dir: Path, *, ladder: bool) -> Mode:
    """What is asked for; a run that goes on says it itself.

    Raises:
        InputError: two at once, or a run of another kind; no such run.
    """
    if ladder and server.url is not None:
        raise InputError("--ladder launches servers, --url measures one that runs", "give one of them")
    asked: Mode | None = "ladder" if ladder else ("server" if server.url is not None else None)
    if resume is None:
        if asked is None and server != ServerFlags():
            raise InputError(
                "--api-key-env, --ca-file, --insecure and --vocab-size are for a server that runs",
                "give --url",
            )
        return asked or "tune"
    what = _contents(resume, runs_dir).header.get("what", "tune")
    known: Mode = what if what in {"server", "ladder"} else "tune"
    if asked is not None and asked != known:
        raise InputError(
            f"run {resume} is of another kind ({known})",
            "leave out --url and --ladder: the run says what it is",
        )
    return known


def run_server(
    request: TuneRequest, server: ServerFlags, runs_dir: Path, resume: str | None, output_format: str
) -> ExitCode:
    """Measure a server that runs, print the report, and give the exit code.

    Raises:
        InputError, LoadError: as for `measure_server`.
    """
    from kvplan.tune.journal import find_run, read_journal
    from kvplan.tune.running_server import ServerRequest, measure_on, measure_server

    ignored = list(_only_for_launches(request))
    if ignored:
        raise InputError(
            f"--url measures a server as it is: {', '.join(ignored)} would change nothing of it",
            "leave them out; kvplan tune without --url launches servers of its own",
        )
    folder = None if resume is None else find_run(resume, runs_dir)
    url = server.url or (None if folder is None else str(read_journal(folder).header["url"]))
    plan = request.plan
    asked = ServerRequest(
        endpoint=_endpoint(server, url or "", plan.model or ""),
        workload=_workload(request),
        target_users=plan.target_concurrency,
        constraints=request.constraints,
        max_minutes=request.max_minutes,
        seed=request.seed,
        vocab_size=server.vocab_size,
        max_num_seqs=request.max_num_seqs[0] if request.max_num_seqs else None,
    )

    def measure() -> Path:
        return measure_server(asked, runs_dir, tell) if folder is None else measure_on(folder, asked, tell)

    return _told(_uninterrupted(measure, "server", runs_dir), output_format)


def run_ladder(
    request: TuneRequest, runs_dir: Path, resume: str | None, tuned_run: str | None, output_format: str
) -> ExitCode:
    """Climb the ladder, print the report, and give the exit code.

    Raises:
        InputError, KvplanError: as for `climb`.
    """
    from kvplan.tune.journal import find_run
    from kvplan.tune.ladder_run import climb, climb_on

    def climb_it() -> Path:
        search = _search(runs_dir)
        if resume is None:
            return climb(request, runs_dir, tell, tuned_run=tuned_run, search=search)
        folder = find_run(resume, runs_dir)
        return climb_on(folder, request, runs_dir, tell, tuned_run=tuned_run, search=search)

    return _told(_uninterrupted(climb_it, "ladder", runs_dir), output_format)


def show_ladder(request: TuneRequest, output_format: str) -> str:
    """The dry run of a ladder: its steps, loads and settings."""
    from kvplan.report.ladder import render_ladder_plan
    from kvplan.tune.ladder_run import ladder_request, scale_of
    from kvplan.tune.setup import prepare

    prepared = prepare(ladder_request(request))
    return render_ladder_plan(prepared, scale_of(prepared), output_format)


def _search(runs_dir: Path) -> Callable[..., Path]:
    """The search of `kvplan tune`, for the ladder's last step."""
    from kvplan.planning import PlanRequest
    from kvplan.report.tune_progress import watching
    from kvplan.tune.request import TuneRequest
    from kvplan.tune.session import begin, go_on
    from kvplan.tune.setup import prepare

    def search(request: TuneRequest, folder: Path | None, begins: Callable[[Path], None]) -> Path:
        with watching(runs_dir) as watch:

            def of(path: Path, prepared: Prepared) -> Watcher:
                begins(path)
                return watch.of(path, prepared)

            if folder is not None:
                return go_on(folder, TuneRequest(PlanRequest()), of, tell)
            return begin(prepare(request), runs_dir, of)

    return search


def _uninterrupted(work: Callable[[], Path], kind: Mode, runs_dir: Path) -> Path:
    try:
        return work()
    except KeyboardInterrupt:
        folder = _newest(kind, runs_dir)
        if folder is None:
            tell("kvplan: interrupted before anything was measured")
        else:
            tell(
                f"kvplan: interrupted; what was started is stopped, what was measured is in {folder}\n"
                f"  go on:    kvplan tune --resume {folder}\n  look:     kvplan report {folder}"
            )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _newest(kind: Mode, runs_dir: Path) -> Path | None:
    """The newest run of that kind: a ladder's own search is newer than the ladder."""
    from kvplan.tune.journal import FILE_NAME, read_journal

    for path in sorted(runs_dir.glob(f"*/{FILE_NAME}"), reverse=True):
        with contextlib.suppress(InputError):
            if read_journal(path).header.get("what") == kind:
                return path.parent
    return None


def _told(folder: Path, output_format: str) -> ExitCode:
    from kvplan.report.runs import special_report_of
    from kvplan.tune.journal import read_journal

    report = special_report_of(read_journal(folder))
    if report is None:
        raise InputError(f"{folder} is a run of another kind", "kvplan report shows it")
    report.save(folder)
    emit(report.render(output_format))
    return ExitCode.OK if report.met else ExitCode.NO


def _contents(run: str, runs_dir: Path) -> JournalContents:
    from kvplan.tune.journal import find_run, read_journal

    return read_journal(find_run(run, runs_dir))


def _endpoint(server: ServerFlags, url: str, model: str) -> Endpoint:
    import os

    from kvplan.load.endpoint import DEFAULT_KEY_VARIABLE, make_endpoint

    return make_endpoint(
        url,
        model,
        api_key=os.environ.get(DEFAULT_KEY_VARIABLE),
        api_key_env=server.api_key_env,
        ca_file=server.ca_file,
        insecure=server.insecure,
    )


def _workload(request: TuneRequest) -> Workload | None:
    from kvplan.load.workload import Workload, load_workload

    plan = request.plan
    if plan.workload is not None:
        if plan.input_len is not None or plan.output_len is not None:
            raise InputError("--workload says the lengths already", "leave out --input-len and --output-len")
        return load_workload(plan.workload, plan.profiles)
    if plan.input_len is None and plan.output_len is None:
        return None
    if plan.input_len is None or plan.output_len is None:
        raise InputError("one length of the requests is missing", "give --input-len and --output-len")
    return Workload.fixed(plan.input_len, plan.output_len)


def _only_for_launches(request: TuneRequest) -> Iterator[str]:
    plan = request.plan
    for flag, value in (
        ("--demo", request.demo or None),
        ("--device", plan.device),
        ("--gpu", plan.gpu),
        ("--gpu-memory-gib", plan.gpu_memory_gib),
        ("--min-headroom-gib", request.constraints.min_headroom_bytes),
    ):
        if value is not None:
            yield flag
    yield from (f"--{name.replace('_', '-')}" for name in plan.serving.given())
    for field in dataclasses.fields(request):
        if field.name in _FLAG_OF and getattr(request, field.name):
            yield _FLAG_OF[field.name]
    if len(request.max_num_seqs) > 1:
        yield "--max-num-seqs more than once"
