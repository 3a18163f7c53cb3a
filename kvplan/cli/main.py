"""The `kvplan` command: registers one file a command and turns what they raise into exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from kvplan import __version__
from kvplan.cli import COMMANDS, GROUPS
from kvplan.errors import ExitCode, KvplanError

app = typer.Typer(
    name="kvplan",
    help="Plan, tune and gate the GPU memory of vLLM servers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"kvplan {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Plan, tune and gate the GPU memory of vLLM servers."""


for _name, _command in COMMANDS:
    app.command(_name)(_command)
for _name, _group in GROUPS:
    app.add_typer(_group, name=_name)


def main() -> NoReturn:
    """Run the command line; never returns.

    Exit codes are those of `kvplan.errors.ExitCode`. An unexpected exception is a bug of ours: traceback on
    stderr and exit 3, because Python's own 1 would read as "judged, and the answer is no".
    """
    try:
        app(standalone_mode=True)
    except KvplanError as error:
        typer.echo(f"kvplan: {error.message}" + (f" ({error.hint})" if error.hint else ""), err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("kvplan: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader went away (`kvplan ... | head`): nothing is wrong, and nothing more can be said.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.OK)
    except Exception:  # noqa: BLE001  the boundary: a bug must not look like an answer
        import traceback

        traceback.print_exc()
        typer.echo("kvplan: this is a bug of kvplan; please report it with the lines above", err=True)
        sys.exit(ExitCode.BUG)
    sys.exit(ExitCode.OK)
