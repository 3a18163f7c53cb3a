"""The `kvplan` command: finds the command asked for and turns what it raises into exit codes."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.core

from kvplan import __version__
from kvplan.cli import COMMANDS, GROUPS
from kvplan.errors import ExitCode, KvplanError

_COMPLETION: Final = "_KVPLAN_COMPLETE"
"""Set by the shell while it asks for completions (typer's own name for it)."""

_LONGEST_COMPLAINT: Final = 300


class _Commands(typer.core.TyperGroup):
    """Commands whose interruption reaches `main`: typer alone turns it into a bare exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            Abort: it was interrupted.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


app = typer.Typer(
    name="kvplan",
    cls=_Commands,
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


def _register(argv: list[str]) -> None:
    """Add the command that is asked for; all of them where none is, for --help and completion."""
    asked = next((word for word in argv if not word.startswith("-")), None)
    known = COMMANDS | GROUPS
    names = [asked] if asked in known and _COMPLETION not in os.environ else list(known)
    for name in names:
        module = importlib.import_module(known[name])
        if name in GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))


def main() -> NoReturn:
    """Run the command line; never returns.

    Exit codes are those of `kvplan.errors.ExitCode`. An unexpected exception is a bug of ours: traceback on
    stderr and exit 3, because Python's own 1 would read as "judged, and the answer is no".
    """
    # What was made so far is looked through for garbage twice at the end of the process, in vain.
    atexit.register(gc.freeze)
    try:
        _register(sys.argv[1:])
        # Not standalone: typer then returns an exit code, and leaves usage errors to be said in one line.
        code = app(standalone_mode=False)
    except KvplanError as error:
        _complain(error.message, error.hint)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except OSError as error:
        # The machine's, not ours: a name that is too long, a folder that is gone, a disk that is full.
        where = f": {error.filename}" if error.filename else ""
        _complain(f"{error.strerror or error}{where}"[:_LONGEST_COMPLAINT], "see what the system says of it")
        sys.exit(ExitCode.CANNOT_JUDGE)
    except Exception as error:  # noqa: BLE001  the boundary: a bug must not look like an answer
        sys.exit(_usage_error(error) or _bug())
    sys.exit(code if isinstance(code, int) else ExitCode.OK)


def _complain(message: str, hint: str | None = None) -> None:
    """One line on stderr: what, where, and what to do. Control characters are spelled out."""
    text = f"kvplan: {message}" + (f" ({hint})" if hint else "")
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    with contextlib.suppress(OSError):
        typer.echo(printable, err=True)


def _usage_error(error: Exception) -> ExitCode | None:
    """Say a wrong command line in one line; None if the error is not of that kind.

    typer carries its own copy of click, and older ones used click itself: what makes an error one of usage is
    that it can say itself to a user.
    """
    say = getattr(error, "format_message", None)
    if say is None:
        return None
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        typer.echo(context.get_help(), err=True)
    else:
        command = context.command_path if context is not None else "kvplan"
        _complain(" ".join(say().split()), f"see {command} --help")
    return ExitCode.CANNOT_JUDGE


def _bug() -> ExitCode:
    import traceback

    traceback.print_exc()
    _complain("this is a bug of kvplan; please report it with the lines above")
    return ExitCode.BUG
