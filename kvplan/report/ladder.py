"""The report of a ladder (`kvplan.ladder-report/1`), from its journal alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.report.document import Code, Document, Items, Section, Table
from kvplan.report.paste import serve_command
from kvplan.report.tune_text import LIMITS, UNKNOWN, figure, gib
from kvplan.tune.journal import tuned_by
from kvplan.tune.ladder import INPUT_LEN, OUTPUT_LEN, REPEATS, USERS, rungs_for, scale_words
from kvplan.tune.ladder_run import fixed_flags, results_of, rungs_of, scale_from, tuned_of
from kvplan.tune.problem import Problem
from kvplan.units import format_duration, format_gib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kvplan.tune.journal import JournalContents
    from kvplan.tune.ladder import Load, Rung, Scale
    from kvplan.tune.ladder_result import RungResult
    from kvplan.tune.ladder_tuned import Tuned
    from kvplan.tune.load_point import LoadPoint
    from kvplan.tune.setup import Prepared

SCHEMA: Final = "kvplan.ladder-report/1"
PLAN_SCHEMA: Final = "kvplan.ladder-plan/1"
_ARTICLES: Final = (
    ("1 Transformers, use_cache=False", "100 tokens in almost a minute", UNKNOWN),
    ("3 vLLM 0.85 / 8192 / 32", "2,200", "350 ms"),
    ("4 and 5: FP8, 64 seqs and prefix caching at once", "4,300", "180 ms; below 60 ms with a fixed prefix"),
)
"""What the first of the three articles of docs/articles.md states (section 6), mean TTFT."""


@dataclass(frozen=True, slots=True)
class LadderReport:
    """What each step gave."""

    run: str
    header: Mapping[str, Any]
    problem: Problem
    scale: Scale
    rungs: tuple[Rung, ...]
    results: Mapping[str, RungResult]
    tuned: Tuned | None
    is_finished: bool
    warnings: tuple[str, ...]
    climbed_by: str | None = None
    """Who is at it right now, as `process N`."""

    @classmethod
    def of(cls, contents: JournalContents) -> LadderReport:
        """The report of a journal, finished or not."""
        last = contents.lines[-1]
        return cls(
            run=contents.run_id,
            header=contents.header,
            problem=Problem.from_dict(contents.header["problem"]),
            scale=scale_from(contents.header),
            rungs=rungs_of(contents.header),
            results=results_of(contents),
            tuned=tuned_of(contents),
            is_finished=last["kind"] == "outcome" and bool(last["finished"]),
            warnings=contents.warnings,
            climbed_by=tuned_by(contents.path),
        )

    @property
    def met(self) -> bool:
        """Every step was made and worked."""
        return all(
            (result := self.results.get(rung.name)) is not None and result.failure is None
            for rung in self.rungs
        )

    def render(self, output_format: str) -> str:
        """The report as `text`, `markdown`, `json` or `html`."""
        if output_format == "json":
            return json.dumps(self.as_dict(), indent=2, allow_nan=False)
        if output_format == "html":
            from kvplan.report.html.document import render_document

            return render_document(self.document())
        return self.document().render(markdown=output_format == "markdown")

    def save(self, folder: Path) -> None:
        """Keep it beside the journal: report.md and report.json."""
        (folder / "report.md").write_text(self.render("markdown") + "\n")
        (folder / "report.json").write_text(self.render("json") + "\n")

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        return {
            "schema": SCHEMA,
            "kvplan_version": __version__,
            "run": self.run,
            "created_at": self.header["at"],
            "finished": self.is_finished,
            "context": dict(self.header["context"]),
            "device": self.problem.device,
            "card_bytes": self.problem.card_bytes,
            "scale": {
                **self.scale.as_dict(),
                "articles_users": USERS,
                "articles_input_len": INPUT_LEN,
                "articles_output_len": OUTPUT_LEN,
                "users_factor": self.scale.users_factor,
                "length_factor": self.scale.length_factor,
                "shared_prefix_tokens": self.scale.shared_tokens,
            },
            "tuned_from": None if self.tuned is None else self.tuned.run,
            "rungs": [self._rung(number, rung) for number, rung in enumerate(self.rungs, start=1)],
            "warnings": list(self.warnings),
        }

    def _rung(self, number: int, rung: Rung) -> dict[str, Any]:
        result = self.results.get(rung.name)
        base = {"number": number, "name": rung.name, "title": rung.title, "changes": rung.changes}
        return {**base, "result": None if result is None else result.as_dict()}

    def document(self) -> Document:
        """The report as tables and lists."""
        loads = {load.name: load for load in self.scale.loads()}
        main = self._table(loads["own"], all_rungs=True)
        return Document(
            title=f"The ladder of {self.problem.model.rstrip('/').rsplit('/', 1)[-1]}",
            headline=self._headline(),
            details=scale_words(self.scale),
            sections=(
                Section(f"{loads['own'].title}", (main, Items(_COLUMNS))),
                Section(
                    f"{loads['shared'].title}",
                    (self._table(loads["shared"], all_rungs=False), Items(_SHARED_NOTE)),
                ),
                Section(f"{loads['twice'].title}", (self._table(loads["twice"], all_rungs=False),)),
                Section("What each step changes at once", (Items(tuple(self._changes())),)),
                Section("Failed, and why", (Items(tuple(self._failures())),)),
                Section("Tuned settings", (Code(self._command() or ""),)),
                Section("What the article states", (Table(("", "tokens/s", "TTFT"), _ARTICLES, (0, 1, 2)),)),
                Section("How", (Items(tuple(self._how())),)),
            ),
        )

    def _headline(self) -> str:
        made = [
            (rung, point.output_throughput)
            for rung in self.rungs
            if (point := self._point(rung.name, "own")) is not None and point.output_throughput is not None
        ]
        if not made:
            return "no step of the ladder gave a figure"
        (first, slowest), (last, fastest) = made[0], made[-1]
        missing = len(self.rungs) - len(made)
        tail = f"; {missing} of {len(self.rungs)} steps without a figure" if missing else ""
        return (
            f"from {figure(slowest)} to {figure(fastest)} output tokens/s ({fastest / slowest:,.1f} times): "
            f"{first.title} to {last.title}, {self.scale.users} users{tail}"
        )

    def _point(self, rung: str, load: str) -> LoadPoint | None:
        result = self.results.get(rung)
        return None if result is None else result.loads.get(load)

    def _table(self, load: Load, *, all_rungs: bool) -> Table:
        header = ("", "tokens/s", "gain", "TTFT p50", "p99 ms", "TPOT p50", "at once", "KV tokens", "memory")
        rows: list[tuple[str, ...]] = []
        before: Rung | None = None
        for number, rung in enumerate(self.rungs, start=1):
            if not all_rungs and rung.engine == "transformers":
                continue
            rows.append(self._row(number, rung, load, before))
            before = before if self._point(rung.name, load.name) is None else rung
        return Table(
            header,
            tuple(rows),
            caption=f"every step: {load.title}",
            highlighted=len(rows) - 1,
        )

    def _row(self, number: int, rung: Rung, load: Load, before: Rung | None) -> tuple[str, ...]:
        name, result = f"{number} {rung.title}", self.results.get(rung.name)
        point = self._point(rung.name, load.name)
        if result is None:
            return (name, "not made", *[""] * 7)
        if point is None:
            return (name, f"{result.failure or UNKNOWN}", *[""] * 6, gib(result.peak_memory_bytes))
        waited = " *" if self._was_short(rung, load) else ""
        return (
            name,
            figure(point.output_throughput),
            "" if before is None else self._gain(before, rung, load),
            figure(point.p50_ttft_ms),
            figure(point.p99_ttft_ms),
            figure(point.p50_tpot_ms, 1),
            figure(point.peak_running) + waited,
            figure(result.kv_cache_tokens),
            gib(result.peak_memory_bytes),
        )

    def _gain(self, before: Rung, rung: Rung, load: Load) -> str:
        """Times the step before; marked where repeats of one of the two were further apart than that."""
        old, new = self._point(before.name, load.name), self._point(rung.name, load.name)
        if old is None or new is None or not old.output_throughput or new.output_throughput is None:
            return UNKNOWN
        gain = new.output_throughput / old.output_throughput
        apart = max(self.results[name].spreads.get(load.name, 0.0) for name in (before.name, rung.name))
        return f"{gain:.2f}x" + ("?" if abs(gain - 1) < apart else "")

    def _changes(self) -> Iterator[str]:
        told: dict[str, list[str]] = {}
        for number, rung in enumerate(self.rungs, start=1):
            result = self.results.get(rung.name)
            yield f"{number} {rung.title}: {rung.changes}"
            for note in () if result is None else result.notes:
                told.setdefault(note, []).append(f"{number}")
        yield from (f"in step {', '.join(numbers)}: {note}" for note, numbers in told.items())
        limited = [
            f"{number}"
            for number, rung in enumerate(self.rungs, start=1)
            if any(
                (p := self._point(rung.name, load.name)) and p.client_limited for load in self.scale.loads()
            )
        ]
        if limited:
            yield f"in step {', '.join(limited)}: the load client was late; the figures may be the client's"
        if any(self._was_short(rung, load) for rung in self.rungs for load in self.scale.loads()):
            yield "*: requests waited for KV cache, or were preempted"

    def _was_short(self, rung: Rung, load: Load) -> bool:
        point = self._point(rung.name, load.name)
        return point is not None and bool(point.waited_for_memory or point.preemptions)

    def _is_the_clients(self, rung: Rung, load: Load) -> bool:
        point = self._point(rung.name, load.name)
        return point is not None and point.client_limited is not None

    def _failures(self) -> Iterator[str]:
        for number, rung in enumerate(self.rungs, start=1):
            result = self.results.get(rung.name)
            if result is not None and result.failure is not None:
                where = f"; log {result.log_path}" if result.log_path else ""
                yield f"{number} {rung.title}: {result.failure}: {result.evidence}{where}"

    def _command(self) -> str | None:
        if self.tuned is None:
            return None
        return serve_command(self.problem.model, self.tuned.settings, self.problem.device)

    def _how(self) -> Iterator[str]:
        context, problem = self.header["context"], self.problem
        machine = context["machine"]
        where = (
            f"{machine['cores']} cores of {machine['cpu']}"
            if problem.device == "cpu"
            else f"{machine.get('gpu') or 'a GPU'}"
        )
        yield f"{problem.model}, vLLM {context['vllm_version']}, on {where}"
        if problem.device == "cpu":
            yield (
                f"the card is {format_gib(problem.card_bytes)} of memory ({LIMITS['cgroup']}, where one can "
                "be made); Transformers and vLLM compute on the same cores under the same limit"
            )
        yield (
            "Transformers generates one static batch of all users that is there from the start: no requests, "
            "no HTTP, no queue; vLLM is loaded by as many users, each of whom waits for the answer and asks "
            "again. On a model so small that a step computes almost nothing, that work "
            "outside the model can weigh more than what the engine saves"
        )
        if self.tuned is not None and problem.device == "cpu":
            yield "the tuned step may use the whole card; the steps before it hold what stands for 0.85"
        spreads = [spread for result in self.results.values() for spread in result.spreads.values()]
        if spreads:
            apart = f"{min(spreads):.0%} to {max(spreads):.0%} apart"
            yield (
                f"vLLM got each load {REPEATS} times: shown is the repeat of middle throughput; repeats "
                f"were {apart}, and another launch of the same settings may differ by as much: smaller gains "
                "say nothing"
            )
        spent = sum(result.wall_s for result in self.results.values())
        yield f"run {self.run}: {len(self.results)} steps in {format_duration(spent)}"
        if self.climbed_by is not None:
            yield f"not finished: {self.climbed_by} is climbing it"
        elif not self.is_finished:
            yield f"not finished: continue with kvplan tune --resume {self.run}"
        yield from (f"assumed: {text}" for text in self.header.get("assumptions", ()))
        yield from (f"warning: {warning}" for warning in self.warnings)


_COLUMNS: Final = (
    "gain: tokens/s over those of the step before; ?: repeats of one load were further apart than that",
    "at once: requests that ran together at most",
    "memory: the highest of the whole step",
)
_SHARED_NOTE: Final = (
    "not to be compared with the load above: its prompts are another text, of which most is the same",
)


def render_ladder_plan(prepared: Prepared, scale: Scale, output_format: str) -> str:
    """A dry run: what would be made, without making it."""
    rungs = rungs_for(scale, fixed_flags(prepared.problem))
    if output_format == "json":
        record = {
            "schema": PLAN_SCHEMA,
            "kvplan_version": __version__,
            "scale": scale.as_dict(),
            "rungs": [
                {"number": n, "name": r.name, "title": r.title, "changes": r.changes, "flags": dict(r.flags)}
                for n, r in enumerate(rungs, start=1)
            ],
            "loads": [{"name": load.name, "title": load.title} for load in scale.loads()],
        }
        return json.dumps(record, indent=2)
    model, device = prepared.problem.model, prepared.problem.device
    commands = "\n\n".join(
        f"# {n} {r.title}\n{serve_command(model, r.flags, device)}"
        for n, r in enumerate(rungs, start=1)
        if r.flags
    )
    document = Document(
        title="ladder",
        headline=f"{len(rungs)} steps of the ladder for {model}; nothing was launched",
        details=scale_words(scale),
        sections=(
            Section(
                "Steps", (Items(tuple(f"{n} {r.title}: {r.changes}" for n, r in enumerate(rungs, start=1))),)
            ),
            Section("Loads of every vLLM step", (Items(tuple(load.title for load in scale.loads())),)),
            Section("Commands", (Code(commands),)),
        ),
    )
    return document.render(markdown=output_format == "markdown")
