"""matplotlib figures as inline SVG whose colours are the page's CSS variables."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from kvplan.errors import MissingDependencyError
from kvplan.report.html.safe import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

INK: Final = "#010101"
MUTED: Final = "#010102"
RULE: Final = "#010103"
PAPER: Final = "#010104"
BLUE: Final = "#010105"
ORANGE: Final = "#010106"
RED: Final = "#010107"
GREEN: Final = "#010108"
VIOLET: Final = "#010109"
GREY: Final = "#01010a"

_VARIABLES: Final = {
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    PAPER: "--paper",
    BLUE: "--blue",
    ORANGE: "--orange",
    RED: "--red",
    GREEN: "--green",
    VIOLET: "--violet",
    GREY: "--grey",
}
"""Colours that no figure uses otherwise -> the variable that takes their place."""

_LONGEST_DESCRIPTION: Final = 4000
_SVG: Final = "{http://www.w3.org/2000/svg}"
_XLINK: Final = "{http://www.w3.org/1999/xlink}"
_STYLE: Final = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and coloured
    "svg.hashsalt": "kvplan",
    "font.size": 11,
    "font.family": ["DejaVu Sans"],
    "text.color": INK,
    "text.parse_math": False,  # labels may come from a journal: a dollar sign is a dollar sign
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.labelcolor": MUTED,
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "figure.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "patch.linewidth": 0,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
}


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """matplotlib with the page's style, and nothing of it left behind.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingDependencyError(
            "the HTML report needs matplotlib", "pip install 'kvplan-tuner[report]'"
        ) from error
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The text stays text: the reader's browser has the letters that the drawing's own font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def new_figure(width: float, height: float, **subplots: Any) -> tuple[Figure, Any]:
    """A figure of that size (in CSS pixels at its natural size) and its axes; within `drawing()`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
    return figure, figure.subplots(**subplots)


def inline_svg(figure: Figure, *, name: str, title: str, description: str) -> str:
    """The figure as an `<svg role="img">` for an HTML page.

    Args:
        figure: what was drawn.
        name: unique in the page; prefixes every id.
        title: what a screen reader says first.
        description: what the figure shows, in words and figures.
    """
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = buffer.getvalue()
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    root = ET.fromstring(text)  # noqa: S314  written by matplotlib a line above
    _own_ids(root, name)
    _without_extras(root)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title {name}-description")
    for tag, content in (("desc", description), ("title", title)):
        element = ET.Element(_SVG + tag, {"id": f"{name}-{'title' if tag == 'title' else 'description'}"})
        element.text = shown(content, _LONGEST_DESCRIPTION)
        root.insert(0, element)
    ET.register_namespace("", _SVG.strip("{}"))
    return ET.tostring(root, encoding="unicode")


def _own_ids(root: ET.Element, name: str) -> None:
    """Ids that something refers to become unique in the page; all others go."""
    references = set(re.findall(r"#([\w-]+)", " ".join(v for e in root.iter() for v in e.attrib.values())))
    for element in root.iter():
        own = element.attrib.pop("id", None)
        if own in references:
            element.set("id", f"{name}-{own}")
        for key, value in list(element.attrib.items()):
            if key == f"{_XLINK}href":
                del element.attrib[key]
                element.set("href", f"#{name}-{value.removeprefix('#')}")
            elif "url(#" in value:
                element.set(key, value.replace("url(#", f"url(#{name}-"))


def _without_extras(root: ET.Element) -> None:
    """No metadata, and no style element: inside HTML it would style the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{_SVG}metadata", f"{_SVG}style"}:
                parent.remove(child)


def variable_of(colour: str) -> str:
    """The CSS variable that takes a colour's place."""
    return _VARIABLES[colour]
