"""A `Document` as one self-contained HTML page, in the dress of the tuning report."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kvplan import __version__
from kvplan.report.document import Code, Items, Table
from kvplan.report.html import tables
from kvplan.report.html.page import page_script, template_environment
from kvplan.report.html.speed_figures import load_curve
from kvplan.report.html.svg import drawing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.report.document import Document
    from kvplan.report.html.figures import Drawn
    from kvplan.tune.load_point import LoadPoint


def render_document(document: Document, curve: Sequence[LoadPoint] = ()) -> str:
    """The whole page.

    Args:
        document: what to show.
        curve: loads of one server, drawn as throughput against latency.

    Raises:
        MissingDependencyError: jinja2 or matplotlib is not installed; the hint names the extra.
    """
    environment = template_environment()
    script, digest = page_script()
    sections = [
        {"title": section.title, "parts": [_part(part) for part in section.shown]}
        for section in document.sections
        if section.shown
    ]
    page: str = environment.get_template("document.html.j2").render(
        document=document,
        sections=sections,
        figures=_figures(curve),
        version=__version__,
        script=script,
        script_digest=digest,
    )
    return page


def _figures(curve: Sequence[LoadPoint]) -> list[Drawn]:
    usable = [point for point in curve if point.is_usable]
    if len(usable) < 2:
        return []
    with drawing():
        figure = load_curve(usable, None)
    caption = "The figure at each point is its number of users."
    return [] if figure is None else [dataclasses.replace(figure, caption=caption)]


def _part(part: Table | Items | Code) -> dict[str, Any]:
    match part:
        case Table():
            caption = part.caption or " ".join(title for title in part.header if title)
            left = frozenset(part.left)
            table = tables.Table(caption, part.header, part.rows, left, part.highlighted)
            return {"kind": "table", "table": table}
        case Items():
            return {"kind": "items", "lines": part.lines}
        case Code():
            return {"kind": "code", "title": part.title or part.language, "text": part.text}
