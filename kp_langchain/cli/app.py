"""The program `kp-langchain`: its commands, what it does with errors, its exit statuses."""

from __future__ import annotations

import sys
from importlib import import_module
from io import StringIO
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from kp_langchain import __version__
from kp_langchain.cli.output import discard, is_closed_pipe, replace_unencodable, say
from kp_langchain.errors import KPError

_CLOSED_PIPE = 141  # what a shell reports for a command that SIGPIPE ended

COMMANDS = {
    "demo": "Run a few agents, score each run, and show what was kept and why.",
    "review": "List scored runs, explain one, or sum up whole domains.",
    "report": "Review runs in a browser: what each domain keeps and why.",
    "label": "Record how runs really ended.",
    "calibrate": "Learn each domain's confidence from verdicts, and propose a gate.",
    "recall": "Show which kept traces a run with a task would be shown.",
    "patterns": "Show plans that recur among kept successes, and write them as skills.",
    "import": "Record runs that other tools recorded.",
    "export": "Write kept and judged runs in forms that other programs read.",
    "score": "Score past runs in files, and write them with their scores.",
    "store": "Delete runs for good, and remove what the store no longer needs.",
    "registry": "Exchange traces with a registry.",
    "doctor": "Show what is in force, and what is broken.",
    "schema": "Print the JSON Schema of a ReasoningTrace.",
}
"""Each command with its help in one line."""

# Where a command is that is not `app` in the module of its name.
_PLACES = {
    "import": "traces:import_app",
    "schema": "traces:schema_app",
}


_SUBCOMMANDS = {
    **dict.fromkeys(("list", "show", "stats", "compare"), "review"),
    **dict.fromkeys(("next", "pull"), "label"),
    **dict.fromkeys(("delete", "prune"), "store"),
    **dict.fromkeys(("register", "quarantine", "outbox", "withdraw"), "registry"),
}
"""The command of each subcommand that is often typed alone."""


class _Program(TyperGroup):
    """The program. A command is imported when it is asked for, and not for the help."""

    def list_commands(self, _: Any) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, _: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module, app_name = _PLACES.get(cmd_name, f"{cmd_name}:app").split(":")
        app_ = getattr(import_module(f"kp_langchain.cli.{module}"), app_name)
        command = typer.main.get_command(app_)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return a command; for a subcommand alone, say of which command it is one."""
        if args[0] in _SUBCOMMANDS:
            name = f"{_SUBCOMMANDS[args[0]]} {args[0]}"
            ctx.fail(f"No such command '{args[0]}'. Did you mean {name}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the help of each command, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="kp-langchain",
    cls=_Program,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; for an error of this package, print its message and exit with 1.

    When the reader of the output closes its pipe, as `head` does, exit silently with status 141, as
    other programs on Unix do.
    """
    replace_unencodable(sys.stdin, sys.stdout, sys.stderr)
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
        from rich.text import Text

        from kp_langchain.cli.output import make_console

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
        # A default subcommand has no name, which leaves a second blank in its usage.
        text = message.getvalue().replace("  [", " [").replace("  --help", " --help")
        text = text.replace("Value error, ", "").replace("Error: Invalid value: ", "Error: ")
        say(text.rstrip("\n"), file=sys.stderr)
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
