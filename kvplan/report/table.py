"""Aligned columns for a terminal, or the same cells as a Markdown table.

rich draws the live views; here its import alone would cost half of what `kvplan estimate` may take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def render_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[int] = (0,),
    markdown: bool = False,
) -> str:
    """The table as text.

    Args:
        header: column titles; an empty title is allowed.
        rows: cells, as many as titles.
        left: columns that are text (left-aligned); all others are numbers (right-aligned).
        markdown: a Markdown table instead of aligned columns.
    """
    if markdown:
        rule = [":--" if i in left else "--:" for i in range(len(header))]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            c.ljust(w) if i in left else c.rjust(w)
            for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return ("  " + "  ".join(padded)).rstrip()

    return "\n".join(line(cells) for cells in (header, *rows))
