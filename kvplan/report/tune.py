"""What `kvplan tune` ends with and `kvplan report` renders: one model, as text, Markdown or JSON.

The JSON is `kvplan.report/1` (docs/reports.md). Everything in it comes from the journal.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.report.paste import serve_command, vllm_yaml
from kvplan.tune.journal import tuned_by
from kvplan.tune.problem import Problem
from kvplan.tune.replay import INTERRUPTED, outcome_of
from kvplan.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kvplan.tune.journal import JournalContents
    from kvplan.tune.recommend import Recommendation
    from kvplan.tune.trial import Trial

SCHEMA: Final = "kvplan.report/1"
_WORTH_TELLING_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class TuneReport:
    """A run, told from its journal."""

    run: str
    header: Mapping[str, Any]
    problem: Problem
    trials: tuple[Trial, ...]
    recommendation: Recommendation
    is_finished: bool
    warnings: tuple[str, ...]
    tuned_by: str | None = None
    """Who tunes it right now, as `process N`: it is neither finished nor interrupted."""

    @classmethod
    def of(cls, contents: JournalContents) -> TuneReport:
        """The report of a journal.

        Raises:
            InputError: the journal's model has no exact rule here, so an unfinished run can't be told.
        """
        owner = tuned_by(contents.path)
        outcome = outcome_of(contents)
        recommendation = outcome.recommendation
        if owner is not None:
            recommendation = _so_far(recommendation, f"{owner} is still at it")
        return cls(
            run=contents.run_id,
            header=contents.header,
            problem=Problem.from_dict(contents.header["problem"]),
            trials=contents.trials,
            recommendation=recommendation,
            is_finished=outcome.is_finished and owner is None,
            warnings=contents.warnings,
            tuned_by=owner,
        )

    @property
    def chosen_as(self) -> str:
        """What the setting that is shown may be called."""
        return "recommended" if self.recommendation.met else "nearest"

    @property
    def wall_s(self) -> float:
        """Time that launches, loads and stops took together."""
        return sum(trial.wall_s for trial in self.trials)

    @property
    def waited_s(self) -> float | None:
        """Time beside that, in which other engines had the device; None where no trial tells."""
        told = [trial.waited_s for trial in self.trials if trial.waited_s is not None]
        return sum(told) if told else None

    @property
    def cost(self) -> str:
        """Launches and time in words; waiting is told when there was any to speak of."""
        number = len(self.trials)
        spent = f"{number} {'launch' if number == 1 else 'launches'}, {format_duration(self.wall_s)}"
        waited_s = self.waited_s or 0.0
        if waited_s < _WORTH_TELLING_S:
            return spent
        return f"{spent}, and {format_duration(waited_s)} of waiting for other engines"

    @property
    def memory_limit(self) -> str:
        """What really bounded the memory: gpu, cgroup, rss or none."""
        limits = {trial.launch.memory_limit for trial in self.trials if trial.launch is not None}
        return ", ".join(sorted(limits)) or "none"

    @property
    def command(self) -> str | None:
        """The recommended `vllm serve` line."""
        settings = self.recommendation.settings
        return None if settings is None else serve_command(self.problem.model, settings, self.problem.device)

    @property
    def yaml(self) -> str | None:
        """The recommended vLLM YAML file."""
        settings = self.recommendation.settings
        return None if settings is None else vllm_yaml(self.problem.model, settings, self.problem.device)

    def render(self, output_format: str) -> str:
        """The report as `text`, `markdown` or `json`."""
        if output_format == "json":
            import json

            return json.dumps(self.as_dict(), indent=2)
        from kvplan.report.tune_text import render_text

        return render_text(self, markdown=output_format == "markdown")

    def save(self, folder: Path) -> None:
        """Keep the report beside the journal: report.md, report.json and, if any, recommended.yaml."""
        (folder / "report.md").write_text(self.render("markdown") + "\n")
        (folder / "report.json").write_text(self.render("json") + "\n")
        if self.yaml is not None:
            (folder / "recommended.yaml").write_text(self.yaml)

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        return {
            "schema": SCHEMA,
            "kvplan_version": __version__,
            "run": self.run,
            "made_with": self.header["kvplan_version"],
            "created_at": self.header["at"],
            "finished": self.is_finished,
            "tuned_by": self.tuned_by,
            "context": dict(self.header["context"]),
            "problem": self.problem.as_dict(),
            "memory_limit": self.memory_limit,
            "recommendation": dataclasses.asdict(self.recommendation),
            "command": self.command,
            "vllm_yaml": self.yaml,
            "trials": [_without_scores(trial.as_dict()) for trial in self.trials],
            "launches": len(self.trials),
            "wall_s": self.wall_s,
            "waited_s": self.waited_s,
            "warnings": list(self.warnings),
        }


def _so_far(recommendation: Recommendation, why: str) -> Recommendation:
    """Told while the run goes on: what has no answer yet was not interrupted."""
    stopped = recommendation.stopped
    return dataclasses.replace(
        recommendation,
        reasons=tuple(reason.replace(INTERRUPTED, why) for reason in recommendation.reasons),
        stopped=None if stopped is None else stopped.replace(INTERRUPTED, why),
    )


def _without_scores(trial: dict[str, Any]) -> dict[str, Any]:
    """The trial without its thousands of log-probabilities: they are in the journal."""
    quality = trial.get("quality")
    if quality is None:
        return trial
    return trial | {"quality": {k: v for k, v in quality.items() if k not in {"first", "repeat"}}}
