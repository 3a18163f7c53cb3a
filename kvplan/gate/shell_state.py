"""What every part of reading one shell text shares: its bytes, the variables of the point, what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from kvplan.gate.shell_expand import Value
    from kvplan.gate.taint import Taint

    Locate = Callable[[int, int, str], tuple[int, int]]

MAX_DEPTH: Final = 80


class ShellState(Record):
    """The state of reading one shell text."""

    source: bytes
    taint: Taint
    locate: Locate
    """Physical line and column of a row, column and piece of the text."""
    vars: dict[str, Value]
    """The variables of the point that is read; replaced where branches part and meet."""
    depth: int = 0

    def text(self, node: Node) -> str:
        """A node as written."""
        return self.piece(node.start_byte, node.end_byte)

    def piece(self, begin: int, end: int) -> str:
        """The bytes between two places as text."""
        return self.source[begin:end].decode("utf-8", "replace")

    def line(self, node: Node) -> int:
        """The physical line that a node begins on."""
        return self.locate(node.start_point.row, 0, "")[0]
