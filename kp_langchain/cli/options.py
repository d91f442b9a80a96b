"""What commands share of their usage: options, filters, points in time, and subcommands."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from kp_langchain.errors import KPError
from kp_langchain.text import printable

if TYPE_CHECKING:
    from kp_langchain.store import TraceStore

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended."""

AsJsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Database = Annotated[
    str | None,
    typer.Option(help="Database URL or SQLite file; by default that of the settings."),
]
RunId = Annotated[
    str, typer.Argument(metavar="ID", help="Trace id, run id, or the beginning of either.")
]
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many.")]
Timeout = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Take at most this long to send.")
]


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
            return super().resolve_command(ctx, args)

        def format_options(self, ctx: Any, formatter: Any) -> None:
            self.commands[default].format_options(ctx, formatter)
            self.format_commands(ctx, formatter)

    app = new_app(cls=Group, help=help, subcommand_metavar=metavar or "[COMMAND] [ARGS]...")
    app.callback()(lambda: None)  # without it, a single subcommand would be no subcommand
    return app


# ------------------------------------------------------------------ the store


def open_store(database: str | None) -> TraceStore:
    """Return the store at `database`, or that of the settings.

    Raises:
        KPError: `database` names a file that does not exist, or the settings cannot be used.
    """
    from kp_langchain.config import Settings
    from kp_langchain.store import TraceStore

    store = TraceStore(database or Settings().database_url)
    # A mistyped file name must not create a database.
    if database and is_missing(store):
        raise KPError(f"there is no database at {store.location}; check --database")
    return store


def is_missing(store: TraceStore) -> bool:
    """Return whether a store is a file that does not exist (yet)."""
    return "://" not in store.location and not Path(store.location).exists()


# ------------------------------------------------------------------ filters

_KEYS = ("session", "thread", "user", "namespace", "tag", "name")  # `run_keys.KINDS`
_FILTERS: dict[str, tuple[Any, Any]] = {
    "domain": (Annotated[str | None, typer.Option(help="Only this domain.")], None),
    "decision": (
        Annotated[
            Literal["kept", "below_threshold", "twin"] | None,
            typer.Option(help="Only runs with this decision."),
        ],
        None,
    ),
    "min_score": (
        Annotated[float | None, typer.Option(help="Only runs that scored at least this.")],
        None,
    ),
    "since": (
        Annotated[
            str | None,
            typer.Option(
                metavar="TIME", help="Only runs since 2026-03-31T18:00 (local), today, 7d."
            ),
        ],
        None,
    ),
    "until": (
        Annotated[
            str | None, typer.Option(metavar="TIME", help="Only runs that began before this time.")
        ],
        None,
    ),
    "search": (
        Annotated[
            str | None,
            typer.Option(metavar="WORDS", help="Only runs whose objective has these words."),
        ],
        None,
    ),
    "rule": (
        Annotated[
            Literal["single_thought", "recovered_errors", "single_tool"] | None,
            typer.Option(help="Only runs that this rule applied to."),
        ],
        None,
    ),
    "tool": (
        Annotated[str | None, typer.Option(metavar="NAME", help="Only runs that used this tool.")],
        None,
    ),
    "recovered_errors": (
        Annotated[
            bool, typer.Option("--recovered-errors", help="Only runs that went on after an error.")
        ],
        False,
    ),
    "near_duplicates": (
        Annotated[
            bool,
            typer.Option(
                "--near-duplicates", help="Only runs that repeat a kept one, or were replaced."
            ),
        ],
        False,
    ),
    "where": (
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="KEY=VALUE",
                help=f"Only runs with this key: {', '.join(_KEYS)}. May be repeated.",
            ),
        ],
        None,
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
                inspect.Parameter(name, parameter.KEYWORD_ONLY, default=default, annotation=option)
                for name, (option, default) in options.items()
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

_AGE = re.compile(r"(\d{1,6})\s*([mhdw])", re.IGNORECASE)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAYS_AGO = {"today": 0, "yesterday": 1}


def parse_age(text: str, option: str) -> timedelta:
    """Return the length of time that a text such as `7d` states.

    Args:
        text: A whole number and a unit: `m`, `h`, `d` or `w`.
        option: The option that it was given for, for messages.

    Raises:
        KPError: It is something else.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise KPError(f"{option} {printable(text)}: not an age; write 90m, 12h, 7d or 2w")
    return timedelta(**{_UNITS[match[2].lower()]: int(match[1])})


def parse_time(text: str, option: str) -> datetime:
    """Return the time that a text states, in UTC; a time without a zone is local.

    Args:
        text: A date, `today` or `yesterday`, which mean its beginning; a date and time in ISO 8601;
            or an age, which is counted back from now.
        option: The option that it was given for, for messages.

    Raises:
        KPError: It is none of these, or no time in the calendar.
    """
    try:
        if _AGE.fullmatch(text.strip()):
            return datetime.now(UTC) - parse_age(text, option)
        if (days := _DAYS_AGO.get(text.strip().lower())) is not None:
            day = datetime.now().astimezone().date() - timedelta(days)
            return datetime.combine(day, datetime.min.time()).astimezone(UTC)
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise KPError(
            f"{option} {printable(text)}: not a time; write a date (2026-03-31, today, "
            "yesterday), a time (2026-03-31T18:00), or an age (90m, 12h, 7d, 2w)"
        ) from None
