"""A dry run of the tuner: what it would launch, what each launch decides, the commands and the minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.report.table import render_table
from kvplan.report.tune_text import changed_flags
from kvplan.units import format_gib

if TYPE_CHECKING:
    from kvplan.tune.session import LaunchForecast
    from kvplan.tune.setup import Prepared

SCHEMA: Final = "kvplan.tune-plan/1"


def render_plan(prepared: Prepared, plan: LaunchForecast, output_format: str) -> str:
    """The plan as `text`, `markdown` or `json`."""
    if output_format == "json":
        import json

        return json.dumps(plan_as_dict(prepared, plan), indent=2)
    markdown = output_format == "markdown"
    problem = prepared.problem
    launches = "launch" if len(plan.trials) == 1 else "launches"
    head = (
        f"{len(plan.trials)} {launches}, about {plan.minutes_text} min, if memory is as the model says "
        f"({plan.start_s:.0f} s a start: {plan.start_source})"
    )
    where = (
        f"{problem.model} on a card of {format_gib(problem.card_bytes)}, {problem.target_concurrency} users, "
        f"max_model_len {problem.max_model_len}; at most {prepared.budget.max_launches} launches and "
        f"{limit_min(prepared.budget.max_minutes)}"
    )
    rows = [
        (
            f"{t.number}",
            t.spec.phase,
            changed_flags(t.spec.settings.given()),
            t.failure or "starts",
            t.spec.decides,
        )
        for t in plan.trials
    ]
    table = render_table(
        ("", "phase", "tries", "expected", "decides"), rows, left=(1, 2, 3, 4), markdown=markdown
    )
    numbered = (f"# {t.number}\n{c}" for t, c in zip(plan.trials, plan.commands, strict=True))
    commands = "\n\n".join([plan.setup, *numbered])
    parts = [f"**{head}**" if markdown else head, where, table]
    parts.append(f"```sh\n{commands}\n```" if markdown else commands)
    if prepared.assumptions:
        parts.append("assumed: " + "; ".join(prepared.assumptions))
    if plan.most_minutes > prepared.budget.max_minutes:
        verb = "does" if plan.minutes > prepared.budget.max_minutes else "may"
        parts.append(
            f"the budget of {limit_min(prepared.budget.max_minutes)} {verb} not hold this plan of about "
            f"{plan.minutes_text} min: the run would end with what it has by then (--max-minutes)"
        )
    parts += [f"warning: {warning}" for warning in prepared.warnings]
    return "\n\n".join(parts)


def limit_min(minutes: float) -> str:
    """A limit in minutes, without fractions that nobody reads: `101 min`, `2.5 min`."""
    return f"{int(minutes)} min" if minutes >= 10 else f"{minutes:g} min"


def plan_as_dict(prepared: Prepared, plan: LaunchForecast) -> dict[str, Any]:
    """The documented JSON object."""
    return {
        "schema": SCHEMA,
        "kvplan_version": __version__,
        "problem": prepared.problem.as_dict(),
        "budget": {
            "max_launches": prepared.budget.max_launches,
            "max_minutes": prepared.budget.max_minutes,
        },
        "expected_minutes": plan.minutes,
        "expected_minutes_most": plan.most_minutes,
        "expected_start_s": plan.start_s,
        "expected_start_from": plan.start_source,
        "setup": plan.setup,
        "launches": [
            {
                "number": trial.number,
                "phase": trial.spec.phase,
                "settings": trial.spec.settings.given(),
                "loads": [level.concurrency for level in trial.spec.levels],
                "decides": trial.spec.decides,
                "expected_failure": trial.failure,
                "command": command,
            }
            for trial, command in zip(plan.trials, plan.commands, strict=True)
        ],
        "assumptions": list(prepared.assumptions),
        "warnings": list(prepared.warnings),
    }
