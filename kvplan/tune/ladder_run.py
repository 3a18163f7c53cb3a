"""One run of the ladder: prepared, climbed step by step, every step in the journal before the next."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from kvplan.calibration.store import store_path
from kvplan.config.project_file import read_project_file
from kvplan.engine.interrupts import signals_as_interrupts
from kvplan.errors import FailureClass, InputError
from kvplan.tune.identity import installed_vllm, run_context
from kvplan.tune.journal import difference, find_run, new_journal, read_journal, reopened_journal
from kvplan.tune.ladder import (
    CPU_BLOCK_SIZE,
    Scale,
    lengths_for,
    rungs_for,
    scale_for,
    users_for,
)
from kvplan.tune.ladder_result import RungResult
from kvplan.tune.ladder_rungs import RungMaker
from kvplan.tune.ladder_tuned import Tuned, fitting_run, recommended_by, with_notes
from kvplan.tune.problem import Problem
from kvplan.tune.session import require_gpu
from kvplan.tune.setup import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kvplan.tune.journal import Journal, JournalContents
    from kvplan.tune.ladder import Rung
    from kvplan.tune.request import TuneRequest
    from kvplan.tune.setup import Prepared

KIND: Final = "ladder"
"""`what` of the journal's first line."""
_GENERATE_S: Final = {"cpu": 90.0, "cuda": 120.0}


class Search(Protocol):
    """Makes a tuning run."""

    def __call__(self, request: TuneRequest, folder: Path | None, begins: Callable[[Path], None], /) -> Path:
        """The finished run's folder.

        Args:
            request: what to search.
            folder: a run to go on with; None begins one.
            begins: told the folder before the first launch.
        """


def climb(
    request: TuneRequest,
    runs_dir: Path,
    tell: Callable[[str], None],
    *,
    tuned_run: str | None,
    search: Search,
) -> Path:
    """A new ladder, to its end; gives its folder.

    Args:
        request: as for a tuning run; lengths and users that it leaves open are the articles', scaled on CPU.
        runs_dir: where runs are kept.
        tell: told what happens, a line at a time.
        tuned_run: the run whose recommendation is the last step; None takes the newest that fits, else
            searches.
        search: makes the tuning run of a request, or goes on with the one of a folder.

    Raises:
        InputError: something is unknown, malformed or missing.
        KvplanError: it cannot go on; what finished is in the journal.
        KeyboardInterrupt: interrupted; everything is stopped and what finished is in the journal.
    """
    named = None if tuned_run is None else _tuning_run(tuned_run, runs_dir)
    request = ladder_request(request)
    prepared = prepare(request)
    if prepared.problem.device == "cuda":
        require_gpu()
    scale = scale_of(prepared)
    header = {
        **prepared.header,
        "what": KIND,
        "scale": scale.as_dict(),
        "tuned_run": named,
    }
    with new_journal(runs_dir, header) as journal:
        _Climb(journal, runs_dir, tell, search, request).run()
        return journal.folder


def climb_on(
    folder: Path,
    request: TuneRequest,
    runs_dir: Path,
    tell: Callable[[str], None],
    *,
    tuned_run: str | None,
    search: Search,
) -> Path:
    """A ladder that was begun before, to its end; no step that finished is repeated.

    `tuned_run` may be named now too, as long as the last step was not made.

    Raises:
        InputError: the model, the machine or vLLM are not those that it was begun with.
        KvplanError, KeyboardInterrupt: as for `climb`.
    """
    with reopened_journal(folder) as journal:
        header = journal.contents.header
        found = difference(header["context"], _context_now(header))
        if found:
            raise InputError(
                f"run {journal.run_id} was made differently: " + "; ".join(found[:4]),
                "start a new ladder, or resume it on the machine that it was begun with",
            )
        named = None if tuned_run is None else _tuning_run(tuned_run, runs_dir)
        journal.append("resumed", budget=header["budget"])
        _Climb(journal, runs_dir, tell, search, request, named).run()
        return folder


def _tuning_run(name: str, runs_dir: Path) -> str:
    """The folder of a run that searched settings: one of another kind has none, which the end would show.

    Raises:
        InputError: no such run, or one of another kind.
    """
    folder = find_run(name, runs_dir)
    kind = read_journal(folder).header.get("what", "tune")
    if kind != "tune":
        measured = "a server that ran already" if kind == "server" else "a ladder"
        raise InputError(
            f"--tuned-run {name} is a run of {measured}: it recommends no settings",
            "name a run of kvplan tune without --url and --ladder, or none",
        )
    return str(folder)


def ladder_request(request: TuneRequest) -> TuneRequest:
    """The request with the articles' load where it names none."""
    plan = request.plan
    device = device_of(request)
    if plan.workload is not None:
        raise InputError(
            "--ladder compares one prompt length and one answer length",
            "give --input-len and --output-len instead of --workload, or nothing for the articles' load",
        )
    input_len, output_len = lengths_for(device, plan.input_len, plan.output_len)
    filled = dataclasses.replace(
        plan,
        input_len=input_len,
        output_len=output_len,
        target_concurrency=users_for(device, plan.target_concurrency),
    )
    return dataclasses.replace(request, plan=filled)


def device_of(request: TuneRequest) -> Literal["cuda", "cpu"]:
    """Where this request will run; as `prepare` decides it."""
    plan = request.plan
    if plan.device is not None:
        return "cpu" if plan.device == "cpu" else "cuda"
    if plan.gpu is not None:
        return "cuda"
    if request.demo:
        return "cpu"
    from kvplan.catalog.gpus import detect_gpus

    return "cuda" if detect_gpus() else "cpu"


def scale_of(prepared: Prepared) -> Scale:
    """The load of a prepared ladder, and what stands for the articles' settings."""
    problem = prepared.problem
    plan = None
    if problem.device == "cpu":
        base = problem.base_settings().with_flags(kv_cache_dtype="auto", block_size=CPU_BLOCK_SIZE)
        plan = prepared.rules(base)
    return scale_for(
        problem.device,
        problem.target_concurrency,
        problem.lengths.longest_input,
        problem.lengths.longest_output,
        plan,
    )


def scale_from(header: Mapping[str, Any]) -> Scale:
    """The scale back from a journal."""
    return Scale(**header["scale"])


def rungs_of(header: Mapping[str, Any]) -> tuple[Rung, ...]:
    """The steps of a journal's ladder."""
    return rungs_for(scale_from(header), fixed_flags(Problem.from_dict(header["problem"])))


def results_of(contents: JournalContents) -> dict[str, RungResult]:
    """Step name -> what it gave, the last time that it was made."""
    lines = (line["rung"] for line in contents.lines if line["kind"] == "rung")
    return {result["name"]: RungResult.from_dict(result) for result in lines}


def tuned_of(contents: JournalContents) -> Tuned | None:
    """The recommendation that the last step is made of, once it is known."""
    line = contents.last("tuned")
    return None if line is None else Tuned(line["from_run"], line["settings"], tuple(line["notes"]))


def fixed_flags(problem: Problem) -> dict[str, Any]:
    """Flags that every launch gets: those that the steps set themselves are theirs."""
    own = {"model", "max_model_len", "max_num_seqs", "kv_cache_dtype", "enable_prefix_caching", "block_size"}
    return {name: value for name, value in problem.fixed.items() if name not in own}


def _context_now(header: Mapping[str, Any]) -> dict[str, Any]:
    from kvplan.catalog.models import find_model
    from kvplan.memory.hardware import GpuSpec
    from kvplan.tune.identity import workload_from_record

    problem, gpu = Problem.from_dict(header["problem"]), dict(header["gpu"])
    if gpu["compute_capability"] is not None:
        gpu["compute_capability"] = tuple(gpu["compute_capability"])
    return run_context(
        find_model(problem.model, offline=True),
        GpuSpec(**gpu),
        problem.device,
        workload_from_record(header["context"]["workload"]),
        installed_vllm(),
    )


@dataclass(slots=True)
class _Climb:
    """Makes the steps that the journal does not hold yet."""

    journal: Journal
    runs_dir: Path
    tell: Callable[[str], None]
    search: Search
    request: TuneRequest
    tuned_run: str | None = None
    """The run that the last step is made of, where it was named."""

    def run(self) -> None:
        """Step after step; the journal ends with an outcome, also when interrupted."""
        contents = self.journal.contents
        header, known = contents.header, results_of(contents)
        rungs = rungs_of(header)
        maker = self._maker(header)
        self.tell(
            f"ladder {self.journal.run_id}: {len(rungs)} steps, {len(rungs) - len(known)} to make; "
            f"{maker.scale.users} users, {maker.scale.input_len:,} + {maker.scale.output_len:,} tokens"
        )
        finished = False
        try:
            with signals_as_interrupts():
                for number, rung in enumerate(rungs, start=1):
                    before = known.get(rung.name)
                    if before is not None and before.is_explained:
                        continue
                    self.tell(f"[{number}/{len(rungs)}] {rung.title}")
                    result = self._make(maker, rung, contents)
                    self.journal.append("rung", rung=result.as_dict())
                    outcome = "ok" if result.failure is None else f"{result.failure}: {result.evidence}"
                    self.tell(f"    {outcome} ({result.wall_s:.0f} s)")
            finished = True
        finally:
            self.journal.append("outcome", finished=finished)

    def _maker(self, header: Mapping[str, Any]) -> RungMaker:
        problem, scale = Problem.from_dict(header["problem"]), scale_from(header)
        return RungMaker(
            model=problem.model,
            scale=scale,
            card_bytes=problem.card_bytes,
            folder=self.journal.folder,
            tell=self.tell,
            seed=problem.seed,
            dtype=problem.fixed.get("dtype"),
            gpu=header["gpu"]["name"] if problem.device == "cuda" else None,
            generate_s=_GENERATE_S[problem.device],
            launches=store_path(read_project_file()),
        )

    def _make(self, maker: RungMaker, rung: Rung, contents: JournalContents) -> RungResult:
        self.journal.append("rung_started", name=rung.name)
        if rung.name != "tuned":
            return maker.make(rung)
        tuned = tuned_of(contents) or self._find_tuned(maker.scale, contents)
        if isinstance(tuned, RungResult):
            return tuned
        self.journal.append(
            "tuned", from_run=tuned.run, settings=dict(tuned.settings), notes=list(tuned.notes)
        )
        self.tell(f"    settings of run {tuned.run}")
        flags = {name: value for name, value in tuned.settings.items() if name != "model"}
        made = maker.make(dataclasses.replace(rung, flags=flags))
        return dataclasses.replace(made, notes=(f"settings of run {tuned.run}", *tuned.notes, *made.notes))

    def _find_tuned(self, scale: Scale, contents: JournalContents) -> Tuned | RungResult:
        header = contents.header
        named = self.tuned_run or header["tuned_run"]
        if named is not None:
            return self._of(named, scale)
        begun = contents.last("search")
        if begun is None:
            fitting = fitting_run(header, scale, self.runs_dir)
            if fitting is not None:
                return fitting
            self.tell("    no run of this model recommends settings for this load yet: searching")
        folder = None if begun is None else self.runs_dir / begun["run_folder"]
        if folder is not None and not folder.is_dir():
            folder = None

        def begins(path: Path) -> None:
            self.journal.append("search", run_folder=path.name)

        return self._of(str(self.search(self._search_request(header), folder, begins)), scale)

    def _search_request(self, header: Mapping[str, Any]) -> TuneRequest:
        """The ladder's own model, load and card, as a tuning run takes them."""
        problem = Problem.from_dict(header["problem"])
        if self.request.plan.model is not None or self.request.demo:
            return self.request
        from kvplan.config.serving import ServingConfig
        from kvplan.planning import PlanRequest
        from kvplan.tune.request import TuneRequest
        from kvplan.units import GIB

        on_cpu = problem.device == "cpu"
        return TuneRequest(
            PlanRequest(
                model=problem.model,
                device=problem.device,
                gpu=None if on_cpu else header["gpu"]["name"],
                gpu_memory_gib=problem.card_bytes / GIB if on_cpu else None,
                serving=ServingConfig().with_flags(**dict(problem.fixed)),
                target_concurrency=problem.target_concurrency,
                input_len=problem.lengths.longest_input,
                output_len=problem.lengths.longest_output,
            ),
            max_launches=self.request.max_launches or header["budget"]["max_launches"],
            max_minutes=self.request.max_minutes or header["budget"]["max_minutes"],
        )

    def _of(self, folder: str, scale: Scale) -> Tuned | RungResult:
        path = find_run(folder, self.runs_dir)
        tuned = recommended_by(path)
        if tuned is not None:
            return with_notes(tuned, Problem.from_dict(read_journal(path).header["problem"]), scale)
        return RungResult(
            "tuned",
            {},
            "",
            failure=FailureClass.UNSUPPORTED,
            evidence=f"run {path.name} recommends no setting that meets its target",
        )
