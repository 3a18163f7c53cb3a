"""--help: every option of every command says what it is, and no line is wider than a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.main import get_command

from kvplan.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands() -> dict[str, Any]:
    """Every command and group by the words that call it."""
    app = typer.Typer()
    before, main.app = main.app, app
    try:
        app.callback()(main._root)
        main._register([])
    finally:
        main.app = before

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from below(f"{words} {name}".strip(), inner)

    return dict(below("", get_command(app)))


COMMANDS = commands()


def test_all_commands_are_there() -> None:
    assert {"estimate", "tune", "report", "check", "bench", "workload", "profiles models"} <= COMMANDS.keys()


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_says_what_it_is(words: str) -> None:
    shown = [p for p in COMMANDS[words].params if not getattr(p, "hidden", False)]
    assert [p.name for p in shown if not (getattr(p, "help", None) or "").strip()] == []
    assert COMMANDS[words].help


@pytest.mark.parametrize("words", ["", "profiles"])
def test_no_description_in_a_list_of_commands_is_cut(words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *words.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "80"},
    )
    listed = done.stdout.partition("\nCommands:\n")[2].splitlines()
    assert len(listed) >= 5
    assert [line for line in listed if line.endswith("...")] == []


@pytest.mark.parametrize("columns", ["80", "240"])
@pytest.mark.parametrize("words", ["", *COMMANDS][1:])
def test_help_is_no_wider_than_a_terminal(words: str, columns: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *words.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"COLUMNS": columns},
    )
    assert max(map(len, done.stdout.splitlines())) <= min(int(columns), 100)
