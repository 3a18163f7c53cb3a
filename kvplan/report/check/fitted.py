"""Text of sections, cut to a host's limit where it hurts least: the middle of the most expendable section."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Section:
    """Lines that stay, around items of which the middle ones may go."""

    items: list[str]
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    expendable: int = 0
    """Sections with a greater number are cut first; 0 is never cut."""
    left_out: str = "- *{} left out: the host takes no longer comment*"
    """The line in the place of the items that went, with their number."""
    _hidden: int = 0

    def text(self) -> str:
        """The section as it stands now."""
        keep = len(self.items) - self._hidden
        shown = self.items
        if self._hidden:
            head = (keep + 1) // 2
            shown = [
                *self.items[:head],
                self.left_out.format(self._hidden),
                *self.items[len(self.items) - keep + head :],
            ]
        return "\n".join([*self.before, *shown, *self.after]).rstrip("\n")

    def hide(self, count: int) -> None:
        """Leave so many of the middle items out."""
        self._hidden = count


def fit(sections: list[Section], limit: int) -> str:
    """The sections as one text of at most `limit` characters.

    Raises:
        ValueError: what may not be cut is longer than the limit.
    """
    for section in sorted((one for one in sections if one.expendable), key=lambda one: -one.expendable):
        if len(_joined(sections)) <= limit:
            break
        low, high = 0, len(section.items)
        while low < high:
            middle = (low + high) // 2
            section.hide(middle)
            if len(_joined(sections)) <= limit:
                high = middle
            else:
                low = middle + 1
        section.hide(high)
    text = _joined(sections)
    if len(text) > limit:
        raise ValueError(f"{len(text)} characters that may not be cut, and a limit of {limit}")
    return text


def _joined(sections: list[Section]) -> str:
    return "\n\n".join(text for section in sections if (text := section.text())) + "\n"
