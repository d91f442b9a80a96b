"""The program `kp-langchain`: its commands, what it does with errors, its exit statuses."""

from __future__ import annotations

import sys
from importlib import import_module
from io import StringIO
from pkgutil import iter_modules
from typing import Annotated

import typer
from rich.text import Text

from kp_langchain import __version__
from kp_langchain.cli import commands
from kp_langchain.cli.output import discard, is_closed_pipe, replace_unencodable, say
from kp_langchain.errors import KPError

_CLOSED_PIPE = 141  # what a shell reports for a command that SIGPIPE ended

app = typer.Typer(
    name="kp-langchain",
    help="Agent runs as scored, shareable knowledge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _add_commands() -> None:
    for module in iter_modules(commands.__path__):
        command = getattr(import_module(f"{commands.__name__}.{module.name}"), module.name)
        name = module.name.removesuffix("_")  # of a command whose name Python reserves
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)


_add_commands()


def main() -> None:
    """Run the command line; for an error of this package, print its message and exit with 1.

    When the reader of the output closes its pipe, as `head` does, exit silently with status 141, as
    other programs on Unix do.
    """
    replace_unencodable(sys.stdout, sys.stderr)
    try:
        status = _run()
    except (BrokenPipeError, SystemExit) as error:
        if not is_closed_pipe(error):
            raise
        discard(sys.stdout, sys.stderr)
        status = _CLOSED_PIPE
    sys.exit(status)


def _run() -> int:
    """Run the command and return its exit status."""
    try:
        status = app(standalone_mode=False)
        if sys.stdout is not None:  # None if it was closed before this process began
            sys.stdout.flush()
    except KPError as error:
        from kp_langchain.cli.console import make_console

        make_console(stderr=True).print(Text(f"error: {error}", style="red"), soft_wrap=True)
        return 1
    except typer.Abort:
        say("Aborted!", file=sys.stderr)
        return 1
    except OSError as error:
        if isinstance(error, BrokenPipeError) or error.filename is not None:
            raise
        discard(sys.stdout)
        say(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except Exception as error:
        # Wrong usage. typer would print arguments, such as file names, unescaped.
        show = getattr(error, "show", None)
        if show is None:
            raise
        message = StringIO()
        show(file=message)
        say(message.getvalue().rstrip("\n"), file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    return status if isinstance(status, int) else 0


def _print_version(is_requested: bool) -> None:
    if is_requested:
        say(f"kp-langchain {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Agent runs as scored, shareable knowledge."""
