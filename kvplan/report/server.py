"""The report of a running server's load sweep (`kvplan.server-report/1`), from its journal alone."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.report.document import Document, Items, Section, Table
from kvplan.report.tune_text import UNKNOWN, figure, gib
from kvplan.tune.identity import workload_from_record
from kvplan.tune.journal import tuned_by
from kvplan.tune.load_sweep import highest_kept, knee_of
from kvplan.tune.running_server import goal_of, points_of
from kvplan.tune.server_findings import SAID_BY_FINDINGS, findings, kv_arithmetic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kvplan.load.workload import Workload
    from kvplan.tune.journal import JournalContents
    from kvplan.tune.load_point import LoadPoint
    from kvplan.tune.load_sweep import Goal
    from kvplan.tune.server_findings import Finding, KvArithmetic

SCHEMA: Final = "kvplan.server-report/1"
_YES_NO: Final[Mapping[bool | None, str]] = {True: "yes", False: "no", None: UNKNOWN}


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What a load sweep on a running server gave."""

    run: str
    header: Mapping[str, Any]
    goal: Goal
    workload: Workload
    points: tuple[LoadPoint, ...]
    kv: KvArithmetic | None
    findings: tuple[Finding, ...]
    ended: str | None
    """Why no larger load was tried; None while the run is unfinished."""
    warnings: tuple[str, ...]
    measured_by: str | None = None
    """Who measures right now, as `process N`: the run is neither finished nor interrupted."""

    @classmethod
    def of(cls, contents: JournalContents) -> ServerReport:
        """The report of a journal, finished or not."""
        header = contents.header
        goal, points = goal_of(header), points_of(contents)
        workload = workload_from_record(header["context"]["workload"])
        mean = round(workload.mean_total_len)
        kv = kv_arithmetic(header["context"]["cache_config"], mean, workload.longest_total_len)
        outcome = contents.lines[-1] if contents.lines[-1]["kind"] == "outcome" else None
        return cls(
            run=contents.run_id,
            header=header,
            goal=goal,
            workload=workload,
            points=points,
            kv=kv,
            findings=findings(goal, points, kv, header),
            ended=None if outcome is None else outcome["why"],
            warnings=contents.warnings,
            measured_by=tuned_by(contents.path),
        )

    @property
    def kept(self) -> LoadPoint | None:
        """The highest load that keeps everything asked for."""
        return highest_kept(self.goal, self.points)

    @property
    def met(self) -> bool:
        """Whether the target is kept; without one, whether any load is."""
        kept, target = self.kept, self.goal.target_users
        return kept is not None and (target is None or kept.users >= target)

    def render(self, output_format: str) -> str:
        """The report as `text`, `markdown`, `json` or `html`."""
        if output_format == "json":
            return json.dumps(self.as_dict(), indent=2, allow_nan=False)
        if output_format == "html":
            from kvplan.report.html.document import render_document

            return render_document(self.document(), self.points)
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
            "finished": self.ended is not None and self.measured_by is None,
            "tuned_by": self.measured_by,
            "ended": self.ended,
            "url": self.header["url"],
            "context": dict(self.header["context"]),
            "constraints": dataclasses.asdict(self.goal.constraints),
            "target_users": self.goal.target_users,
            "met": self.met,
            "highest_load_kept": None if self.kept is None else self.kept.users,
            "knee_users": knee_of(self.points),
            "has_metrics": self.header["has_metrics"],
            "kv": None if self.kv is None else dataclasses.asdict(self.kv),
            "loads": [
                {**point.as_dict(), "breaks": list(self.goal.broken_by(point))} for point in self.points
            ],
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "warnings": list(self.warnings),
        }

    def document(self) -> Document:
        """The report as tables and lists."""
        context = self.header["context"]
        changes = tuple(finding.change for finding in self.findings if finding.change is not None)
        return Document(
            title=f"{context['model']['served']} at {self.header['url']}",
            headline=self._headline(),
            sections=(
                Section("Loads", (self._loads(), Items(tuple(self._breaks())))),
                Section("What it means", (Items(tuple(finding.text for finding in self.findings)),)),
                Section(
                    "Change first",
                    (Items(tuple(f"{n}. {text}" for n, text in enumerate(changes, start=1))),),
                ),
                Section("KV cache, as the server says", (self._kv(), Items(tuple(self._kv_notes())))),
                Section("How", (Items(tuple(self._how())),)),
            ),
        )

    def _headline(self) -> str:
        so_far = "" if self.measured_by is None else f"being measured by {self.measured_by}; so far: "
        return so_far + self._answer()

    def _answer(self) -> str:
        kept, target = self.kept, self.goal.target_users
        if not self.points:
            return "nothing was measured yet"
        if kept is None:
            return "no load keeps what was asked for, not even one user"
        figures = (
            f"{figure(kept.output_throughput)} output tokens/s, TTFT p99 {figure(kept.p99_ttft_ms, 0, ' ms')}"
            f", TPOT p99 {figure(kept.p99_tpot_ms, 1, ' ms')}"
        )
        users = f"{kept.users} users" if kept.users > 1 else "1 user"
        if target is not None and kept.users >= target:
            return f"the target of {target} users is kept; the highest load that was: {users}, {figures}"
        if target is not None:
            return f"the target of {target} users is not kept; the highest load that is: {users}, {figures}"
        knee = knee_of(self.points)
        return f"the highest load that is kept: {users}, {figures}" + (
            f"; throughput stops growing at {knee} users" if knee is not None and knee < kept.users else ""
        )

    def _loads(self) -> Table:
        header = (
            "users",
            "tokens/s",
            "TTFT p50",
            "p99 ms",
            "TPOT p50",
            "p99 ms",
            "running",
            "KV used",
            "preempted",
            "waited",
            "kept",
        )
        kept = self.kept
        rows = tuple(self._row(point) for point in self.points)
        marked = next((i for i, p in enumerate(self.points) if kept is not None and p == kept), None)
        return Table(
            header,
            rows,
            left=(),
            caption="loads of rising size",
            highlighted=marked,
        )

    def _row(self, point: LoadPoint) -> tuple[str, ...]:
        return (
            f"{point.users}",
            figure(point.output_throughput),
            figure(point.p50_ttft_ms),
            figure(point.p99_ttft_ms),
            figure(point.p50_tpot_ms, 1),
            figure(point.p99_tpot_ms, 1),
            figure(point.peak_running),
            UNKNOWN if point.peak_kv_usage is None else f"{point.peak_kv_usage:.0%}",
            figure(point.preemptions),
            _YES_NO[point.waited_for_memory],
            "no" if self.goal.broken_by(point) else "yes",
        )

    def _breaks(self) -> Iterator[str]:
        yield "waited: for KV cache while all users were being served; kept: all that was asked for"
        for point in self.points:
            broken = self.goal.broken_by(point)
            if broken:
                yield f"{point.users} users: {'; '.join(broken)}"

    def _kv(self) -> Table:
        kv = self.kv
        if kv is None:
            return Table((), ())
        rows = [
            ("kv_cache_dtype", kv.cache_dtype or UNKNOWN),
            ("gpu_memory_utilization", figure(kv.gpu_memory_utilization, 2)),
            *(
                [("kv_cache_memory_bytes", gib(kv.kv_cache_memory_bytes))]
                if kv.kv_cache_memory_bytes is not None
                else []
            ),
            ("block_size", figure(kv.block_size)),
            ("num_gpu_blocks", figure(kv.num_gpu_blocks)),
            ("KV cache tokens", figure(kv.kv_cache_tokens)),
            (f"requests of {kv.mean_request_tokens:,} tokens (mean) at once", figure(kv.requests_at_mean)),
            (
                f"requests of {kv.longest_request_tokens:,} tokens (longest) at once",
                figure(kv.requests_at_longest),
            ),
            ("prefix caching", _YES_NO[kv.enable_prefix_caching]),
        ]
        return Table(("from /metrics", ""), tuple(rows))

    def _kv_notes(self) -> Iterator[str]:
        kv, target = self.kv, self.goal.target_users
        if kv is None:
            return
        if not kv.is_exact and kv.kv_cache_tokens is not None:
            yield (
                "The server does not say that its blocks hold that many tokens (layers of several kinds, or "
                "vLLM before 0.24): requests that fit are a guess, right if every layer keeps every token."
            )
        if self.workload.shared_prefix_tokens and kv.enable_prefix_caching:
            yield "The shared prefix is held once, so more requests fit than counted here."
        if target is not None and kv.requests_at_longest is not None:
            fits = kv.requests_at_longest >= target
            verb = "holds" if fits else "does not hold"
            yield f"The cache {verb} the target's {target} requests at their longest at once."

    def _how(self) -> Iterator[str]:
        context, lengths = self.header["context"], self.workload
        version = context["vllm_version"]
        served = context["model"]["max_model_len"]
        said = "" if served is None else f", max_model_len {served:,}"
        yield (
            f"{context['model']['served']} at {self.header['url']}, "
            f"{'vLLM ' + version if version else 'a server that states no version'}{said}"
        )
        shared = lengths.shared_prefix_tokens
        yield (
            f"workload: {round(lengths.mean_input_len):,} tokens in and {round(lengths.mean_output_len):,} "
            f"out on average, longest request {lengths.longest_total_len:,}"
            + (f"; the first {shared:,} of every prompt are the same" if shared else "; all prompts differ")
        )
        asked = [
            f"{name} {value:g}"
            for name, value in dataclasses.asdict(self.goal.constraints).items()
            if value is not None
        ]
        yield "asked for: " + (", ".join(asked) or "no limit") + "; and no waiting for KV cache"
        yield "nothing was launched or stopped; requests are closed loops: each user waits for the answer"
        if self.measured_by is not None:
            yield f"not finished: {self.measured_by} is measuring it"
        elif self.ended is None:
            yield f"not finished: continue with kvplan tune --url {self.header['url']} --resume {self.run}"
        else:
            yield f"ended: {self.ended}"
        loads_of: dict[str, list[str]] = {}
        for point in self.points:
            # What the findings say of every load is not said again.
            known = {point.client_limited, f"the load was stopped: {point.stopped}", *SAID_BY_FINDINGS}
            for note in point.notes:
                if note not in known:
                    loads_of.setdefault(note, []).append(f"{point.users}")
        yield from (f"{', '.join(users)} users: {note}" for note, users in loads_of.items())
        yield from (f"warning: {warning}" for warning in self.warnings)
