"""What commands share of their usage: options, filters, points in time, and subcommands."""

from __future__ import annotations

import functools
import getpass
import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from kp_langchain.errors import KPError
from kp_langchain.text import near_name, printable

if TYPE_CHECKING:
    from kp_langchain.archive.results import Results
    from kp_langchain.store import TraceStore

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended."""

AsJsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Database = Annotated[
    str | None,
    typer.Option(help="Database URL or SQLite file; by default that of the settings."),
]
Archive = Annotated[
    str | None,
    typer.Option(metavar="DEST", help="In place of a store: the folder or URL of `score --out`."),
]
RunId = Annotated[
    str, typer.Argument(metavar="ID", help="Trace id, run id, or the first 4 characters or more.")
]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Show at most this many.")]


# ------------------------------------------------------------------ commands


def new_app(**options: Any) -> typer.Typer:
    """Return the `Typer` of one command.

    Args:
        options: Further arguments of `Typer`.
    """
    return typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, **options
    )


def group_app(*, default: str, of_id: str = "", metavar: str = "", help: str) -> typer.Typer:  # noqa: A002
    """Return the `Typer` of a command with subcommands, one of which runs where none is named.

    Args:
        default: The subcommand for no words, or options alone.
        of_id: The subcommand for any other word, such as the id of a run; empty for none.
        metavar: What follows the options in the usage line.
        help: The help.
    """

    class Group(TyperGroup):
        """A command with a default subcommand, whose options are in its own help."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
                args = [default, *args]
            return super().parse_args(ctx, args)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if of_id and args[0] not in self.commands:
                args = [of_id, *args]
            name, command, rest = super().resolve_command(ctx, args)
            return None if command is not None and command.hidden else name, command, rest

        def format_options(self, ctx: Any, formatter: Any) -> None:
            self.commands[default].format_options(ctx, formatter)
            self.format_commands(ctx, formatter)

    app = new_app(cls=Group, help=help, subcommand_metavar=metavar or "[COMMAND] [ARGS]...")
    app.callback()(lambda: None)  # without it, a single subcommand would be no subcommand
    return app


# ------------------------------------------------------------------ the store


def open_store(database: str | None, *, creates: bool = False) -> TraceStore:
    """Return the store at `database`, or that of the settings.

    Args:
        database: The option `--database`.
        creates: Whether the command may create the database of the settings.

    Raises:
        KPError: The file does not exist, or the settings cannot be used.
    """
    # Here, because the help of a command needs neither.
    from kp_langchain.config import Settings
    from kp_langchain.store import TraceStore

    store = TraceStore(database or Settings().database_url)
    # Neither a mistyped file name nor a command that reads may create a database.
    if is_missing(store) and (database or not creates):
        hint = "check --database" if database else "the first run that is recorded creates it"
        raise KPError(f"there is no database at {store.location}; {hint}")
    return store


def open_archive(url: str, filters: dict[str, Any], database: str | None) -> Results:
    """Return the runs of an archive that filters select.

    Args:
        url: The option `--archive`.
        filters: The filters, of which those by domain and time are possible.
        database: The option `--database`, which is another way to name what is read.

    Raises:
        BadParameter: The options do not go together.
        KPError: There are no results, or not all of them yet.
    """
    from kp_langchain.archive.results import Results

    if database is not None:
        raise typer.BadParameter("give one of --archive and --database")
    if others := sorted(filters.keys() - {"domain", "since", "until"}):
        raise typer.BadParameter(
            f"an archive is read by --domain, --since and --until alone, not by {', '.join(others)}"
        )
    return Results(url, **filters)


def is_missing(store: TraceStore) -> bool:
    """Return whether a store is a file that does not exist (yet)."""
    return "://" not in store.location and not Path(store.location).exists()


def person() -> str:
    """Return who decides something at the command line, as the store has it."""
    with suppress(Exception):  # the system may know no name for this process
        return f"person: {getpass.getuser()}"
    return "person"


def domain_hint(domain: str | None) -> str:
    """Return a question that names the built-in domain of which `domain` is a misspelling."""
    from kp_langchain.policy import PROFILES

    near = domain and near_name(domain, PROFILES)
    return f" Did you mean --domain {near}?" if near else ""


# ------------------------------------------------------------------ filters

_KEYS = ("session", "thread", "user", "namespace", "tag", "name")  # `run_keys.KINDS`


def _option(kind: Any, help: str, *names: str, metavar: str | None = None) -> Any:  # noqa: A002
    return Annotated[kind, typer.Option(*names, metavar=metavar, help=help)]


_DECISION = Literal["kept", "below_threshold", "twin"]
_RULE = Literal[
    "single_thought", "recovered_errors", "single_tool",
    "last_call_failed", "unanswered_call", "answer_unable",
    "same_call_twice", "repeated_calls", "same_result_twice",
]  # fmt: skip
_FILTERS: dict[str, Any] = {
    "domain": _option(str | None, "Only this domain."),
    "decision": _option(_DECISION | None, "Only runs with this decision."),
    "min_score": _option(float | None, "Only runs that scored at least this."),
    "since": _option(
        str | None, "Only runs since 2026-03-31T18:00 (local), today, 7d.", metavar="TIME"
    ),
    "until": _option(
        str | None, "Only runs that began before this time, or so long ago: 90d.", metavar="TIME"
    ),
    "search": _option(str | None, "Only runs whose objective has these words.", metavar="WORDS"),
    "rule": _option(_RULE | None, "Only runs that this rule applied to, or with this flag."),
    "tool": _option(str | None, "Only runs that used this tool.", metavar="NAME"),
    "recovered_errors": _option(
        bool, "Only runs that went on after an error.", "--recovered-errors"
    ),
    "where": _option(
        list[str] | None,
        f"Only runs with this key: {', '.join(_KEYS)}. May be repeated.",
        metavar="KEY=VALUE",
    ),
}


def takes_filters(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that select runs, in place of its parameter `filters`.

    `filters` gets what they mean for `TraceStore.runs`, without those that were not given.

    Args:
        names: The filters; all if none is named.
    """
    options = {name: _FILTERS[name] for name in names or _FILTERS}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            chosen = {name: values.pop(name) for name in options}
            command(filters=_filters(chosen), **values)

        parameters = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name != "filters":
                parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
                continue
            parameters += [
                inspect.Parameter(
                    name,
                    parameter.KEYWORD_ONLY,
                    default=False if name == "recovered_errors" else None,
                    annotation=option,
                )
                for name, option in options.items()
            ]
        # typer reads the options of a command from these.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _filters(options: dict[str, Any]) -> dict[str, Any]:
    keys = _parse_keys(options.pop("where", None))
    for name in ("since", "until"):
        if options.get(name) is not None:
            options[name] = parse_time(options[name], f"--{name}")
    return keys | {name: value for name, value in options.items() if value not in (None, False)}


def _parse_keys(options: Iterable[str] | None) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for option in options or ():
        key, _, value = (part.strip() for part in option.partition("="))
        if key not in _KEYS or not value or key in keys:
            raise KPError(
                f"--where {printable(option)}: write KEY=VALUE, each key once; the keys are "
                f"{', '.join(_KEYS)}"
            )
        keys[key] = value
    return keys


# ------------------------------------------------------------------ points in time

_AGE = re.compile(r"(\d{1,6})\s*([hdw])", re.IGNORECASE)
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}  # m would be minutes, or months to many
_DAYS_AGO = {"today": 0, "yesterday": 1}


def parse_time(text: str, option: str) -> datetime:
    """Return the time that a text states, in UTC; a time without a zone is local.

    Args:
        text: A date, `today` or `yesterday`, which mean its beginning; a date and time in ISO 8601;
            or an age, such as `7d`, which is counted back from now.
        option: The option that it was given for, for messages.

    Raises:
        KPError: It is none of these, or no time in the calendar.
    """
    word = text.strip().lower()
    try:
        if age := _AGE.fullmatch(word):
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        if word in _DAYS_AGO:
            day = datetime.now().astimezone().date() - timedelta(_DAYS_AGO[word])
            return datetime.combine(day, datetime.min.time()).astimezone(UTC)
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise KPError(
            f"{option} {printable(text)}: not a time; write a date (2026-03-31, today, "
            "yesterday), a time (2026-03-31T18:00), or an age (12h, 7d, 2w)"
        ) from None
