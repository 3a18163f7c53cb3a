"""Tables for a terminal: nothing is cut, whatever its width; a pipe gets the same text from each of them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.report.table import output_width, prose, render_table

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = ("model", "max length", "config")
ROWS = (
    ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "131,072", "derived"),
    ("openai/gpt-oss-20b", "131,072", "whole file"),
)


def test_a_table_that_fits_is_left_as_it_is() -> None:
    assert render_table(HEADER, ROWS, left=(0, 2), width=80) == (
        "  model                                          max length  config\n"
        "  mistralai/Mistral-Small-3.2-24B-Instruct-2506     131,072  derived\n"
        "  openai/gpt-oss-20b                                131,072  whole file"
    )


def test_titles_give_way_first() -> None:
    assert render_table(HEADER, ROWS, left=(0, 2), width=68) == (
        "  model                                              max  config\n"
        "                                                  length\n"
        "  mistralai/Mistral-Small-3.2-24B-Instruct-2506  131,072  derived\n"
        "  openai/gpt-oss-20b                             131,072  whole file"
    )


def test_names_are_broken_at_their_joints() -> None:
    assert render_table(HEADER, ROWS, left=(0, 2), width=50) == (
        "  model                            max  config\n"
        "                                length\n"
        "  mistralai/Mistral-Small-     131,072  derived\n"
        "  3.2-24B-Instruct-2506\n"
        "  openai/gpt-oss-20b           131,072  whole file"
    )


def test_lines_beneath_a_row() -> None:
    text = render_table(("a", "b"), [("x", "1"), ("y", "2")], beneath=["one two three", ""], width=12)
    assert text == "  a  b\n  x  1\n    one two\n    three\n  y  2"
    markdown = render_table(("a", "b"), [("x|y", "1")], beneath=["one"], markdown=True)
    assert markdown == "| a | b |  |\n| :-- | --: | :-- |\n| x\\|y | 1 | one |"


def test_a_cell_is_one_line_that_can_be_seen() -> None:
    assert render_table(("a",), [("x\x1b[2J\ny",)], width=80) == "  a\n  x\\u001b[2J\\u000ay"


def test_prose_keeps_commands_whole() -> None:
    """41 columns: 19 and a flag with its value, 21; then an indent of 2, 5, a command of 24, 10."""
    text = "helps most of all: --kv-cache-dtype fp8, then `kvplan profiles models` and words"
    assert prose(text, width=41) == (
        "helps most of all: --kv-cache-dtype fp8,\n  then `kvplan profiles models` and words"
    )
    assert prose(text, width=38) == (
        "helps most of all:\n  --kv-cache-dtype fp8, then\n  `kvplan profiles models` and words"
    )
    assert prose(text, markdown=True, width=41) == text


cells = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=60)


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(
            st.lists(cells, min_size=n, max_size=n),
            st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=4),
        )
    ),
    st.integers(40, 140),
)
def test_no_character_of_a_cell_is_lost(
    table: tuple[Sequence[str], Sequence[Sequence[str]]], width: int
) -> None:
    header, rows = table
    text = render_table(header, rows, left=range(len(header)), width=width)
    shown = sorted(re.sub(r"\s", "", text))
    assert shown == sorted(re.sub(r"\s", "", "".join(("".join(header), *("".join(row) for row in rows)))))
    if len(header) * 8 <= width:
        assert max(map(len, text.splitlines())) <= width


COMMANDS = (
    ("profiles", "models"),
    ("profiles", "gpus"),
    ("profiles", "show", "4090"),
    ("estimate", "--model", "qwen2-7b", "--gpu", "all", "--input-len", "1000", "--output-len", "200"),
    ("estimate", "--model", "qwen2-7b", "--gpu", "4090", "--solve", "--target-concurrency", "8"),
    ("profiles", "calibrate"),
    ("estimate", "--model", "qwen3-8b", "--gpu", "4090", "--explain"),
    ("estimate", "--model", "qwen3-32b", "--gpu", "4090", "--what-if", "all"),
    ("workload", "chat"),
)


def on_terminal(argv: Sequence[str], columns: int) -> list[str]:
    """What the command prints on a terminal of that width."""
    leader, follower = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    with subprocess.Popen(
        [sys.executable, "-c", SET_SIZE.format(columns=columns), *argv],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        os.close(follower)
        parts = []
        while True:
            try:
                part = os.read(leader, 65_536)
            except OSError:
                break
            if not part:
                break
            parts.append(part)
        process.wait(timeout=120)
    os.close(leader)
    return b"".join(parts).decode().replace("\r\n", "\n").splitlines()


SET_SIZE = (
    "import fcntl, struct, sys, termios; "
    "fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, {columns}, 0, 0)); "
    "from kvplan.cli.main import main; main()"
)


def is_table_line(line: str) -> bool:
    """A line to be laid out: an address or a key is never broken."""
    return not any(len(word) > 60 for word in line.split())


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_wide_tables_keep_to_the_terminal(argv: tuple[str, ...]) -> None:
    for columns in (80, 100, 120):
        lines = on_terminal(argv, columns)
        assert len(lines) > 5
        assert [line for line in lines if is_table_line(line) and len(line) > columns] == []


@pytest.mark.parametrize("argv", COMMANDS[:2], ids=" ".join)
def test_a_pipe_gets_the_same_from_every_terminal(argv: tuple[str, ...]) -> None:
    def piped(columns: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "kvplan", *argv],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=os.environ | {"COLUMNS": columns},
        )
        return done.stdout

    narrow, wide = piped("40"), piped("300")
    assert narrow == wide
    assert max(map(len, narrow.splitlines())) <= 100


def test_the_width_of_what_is_no_terminal() -> None:
    assert output_width() == 100
