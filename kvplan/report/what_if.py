"""What-if views as text, Markdown or JSON (`kvplan.what_if/1`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.errors import InputError
from kvplan.memory.what_if import View, each
from kvplan.report.table import prose, render_table
from kvplan.units import format_gib
from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.memory.estimate import Estimate
    from kvplan.planning import Planned

SCHEMA: Final = "kvplan.what_if/1"


def ask_views(planned: Planned, names: list[str]) -> tuple[list[View], list[str]]:
    """The views, and a line for each that does not apply to this model when `all` were asked for.

    Raises:
        InputError: an unknown view, or one view alone that does not apply.
    """
    views, refused = [], []
    for name, view in each(names):
        try:
            views.append(view(planned.planner, planned.serving))
        except InputError as error:
            if "all" not in names:
                raise
            refused.append(f"{name}: {error.message.removeprefix(f'--what-if {name}').lstrip(': ')}")
    return views, refused


def render_views(
    views: Sequence[View], refused: Sequence[str], output_format: str, *, asked: Estimate | None = None
) -> str:
    """The views as `text`, `markdown` or `json`; first of all that what was asked does not start."""
    if output_format == "json":
        import json

        return json.dumps(as_dict(views, refused, asked=asked), indent=2)
    markdown = output_format == "markdown"
    parts = []
    if asked is not None and asked.verdict.starts == "no":
        parts.append(prose(_does_not_start(asked), markdown=markdown))
    for view in views:
        rows = [tuple(_cell(value) for value in row) for row in view.rows]
        table = render_table(view.header, rows, markdown=markdown)
        parts.append(f"{view.title}\n\n{table}\n\n{prose(view.note, indent=2, markdown=markdown)}")
    if refused:
        parts.append(
            "does not apply\n"
            + "\n".join(prose(visible(line), indent=2, markdown=markdown) for line in refused)
        )
    return "\n\n".join(parts)


def as_dict(
    views: Sequence[View], refused: Sequence[str], *, asked: Estimate | None = None
) -> dict[str, Any]:
    """The views as JSON types: each row a mapping of column title to value."""
    return {
        "schema": SCHEMA,
        "kvplan_version": __version__,
        "starts": None if asked is None else asked.verdict.starts,
        "views": [
            {
                "name": view.name,
                "title": view.title,
                "columns": [title or "case" for title in view.header],
                "rows": [list(row) for row in view.rows],
                "note": view.note,
            }
            for view in views
        ],
        "does_not_apply": list(refused),
    }


def _does_not_start(asked: Estimate) -> str:
    kv = asked.budget.available_kv_bytes.mid
    left = f"leaves {format_gib(kv)} for the KV cache" if kv > 0 else "leaves nothing for the KV cache"
    return (
        f"does not start (p = {asked.verdict.probability:.2f}): with these settings {asked.gpu.name} {left}. "
        "A row of 0 requests below does not start either."
    )


def _cell(value: str | float | None) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
